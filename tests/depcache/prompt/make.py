# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers, random forests and the naive prefix tree that the tests compare with."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from depcache.prompt.forest import Forest

TEXTS = [
    "\nElon Musk -> founded -> SpaceX -> located in -> Hawthorne",
    "\nElon Musk -> chief executive of -> Tesla -> makes -> Model 3",
    "\nAda Lovelace -> wrote about -> Analytical Engine",
    "Answer the question. Question: who founded SpaceX?",
] * 20


def byte_tokenizer(texts: list[str]) -> list[list[int]]:
    """The simplest tokenizer there is: its ids are the bytes."""
    return [list(text.encode()) for text in texts]


@cache
def make_bpe() -> Tokenizer:
    """A byte-level BPE such as Llama 3 and Qwen have, with special and merely added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|im_start|>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


@cache
def make_sentencepiece_like(style: str) -> Tokenizer:
    """A tokenizer that puts a space before every text, as Llama 2 does ("prepend"), or
    Mistral's newer files ("metaspace"), or RoBERTa ("byte_level")."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    if style == "prepend":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    elif style == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.ByteLevel(add_prefix_space=True)]
        )
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, special_tokens=specials)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def make_huggingface() -> Any:
    from transformers import PreTrainedTokenizerFast

    # A copy: HuggingFace changes the settings of the tokenizer it wraps.
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(make_bpe().to_str()), bos_token="<s>", eos_token="</s>"
    )


@st.composite
def forests(draw: st.DrawFn, max_segments: int = 12) -> Forest:
    """Any forest: each segment hangs on an ancestor-or-self of the one before it, or is a root."""
    lens = draw(st.lists(st.integers(1, 4), max_size=max_segments))
    parents: list[int] = []
    for i in range(len(lens)):
        choices, ancestor = [-1], i - 1
        while ancestor >= 0:
            choices.append(ancestor)
            ancestor = parents[ancestor]
        parents.append(draw(st.sampled_from(choices)))
    system_len = draw(st.integers(0, 4))
    num_tokens = system_len + sum(lens) + draw(st.integers(1, 4))
    return Forest.make(num_tokens, system_len, lens, parents)


def merge_sequences_ref(
    sequences: list[list[int]],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(tokens before the segment, tokens of the segment) in pre-order, from the definition.

    A node of the token trie is a non-empty prefix of some sequence. It starts a segment unless
    it is the only continuation of the prefix before it.
    """
    prefixes: dict[tuple[int, ...], dict[int, None]] = {(): {}}
    for sequence in sequences:
        for i, token in enumerate(sequence):
            prefixes.setdefault(tuple(sequence[:i]), {})[token] = None
            prefixes.setdefault(tuple(sequence[: i + 1]), {})
    segments: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def walk(before: tuple[int, ...], run: tuple[int, ...]) -> None:
        following = prefixes[before + run]
        if len(following) == 1:
            walk(before, run + tuple(following))
            return
        segments.append((before, run))
        for token in following:
            walk(before + run, (token,))

    for token in prefixes[()]:
        walk((), (token,))
    return segments


def read_segments(
    forest: Forest, tokens: list[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The same of a forest: follow the parents of each segment."""
    starts, stops = forest.starts.tolist(), forest.stops.tolist()
    segments = []
    for i in range(forest.num_segments):
        before: tuple[int, ...] = ()
        ancestor = int(forest.parents[i])
        while ancestor >= 0:
            before = (*tokens[starts[ancestor] : stops[ancestor]], *before)
            ancestor = int(forest.parents[ancestor])
        segments.append((before, tuple(tokens[starts[i] : stops[i]])))
    return segments

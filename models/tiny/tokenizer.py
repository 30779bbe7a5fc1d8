# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of depcache-tiny: byte-level BPE, trained on the words it will meet."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

_SPECIAL_TOKENS = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def make_tokenizer(texts: Iterable[str], vocab_size: int, max_len: int) -> Any:
    """A byte-level BPE tokenizer of HuggingFace, with a chat template, trained on `texts`.

    A word has the same tokens at the start of a line as behind a blank: a small model then finds
    a name of the question among the facts by its tokens.

    vocab_size  at most; few texts give fewer
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.normalizer = normalizers.Replace(Regex(r"\n(?=\S)"), "\n ")
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("\n ", "\n")])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, string.printable], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_SPECIAL_TOKENS[0],
        pad_token=_SPECIAL_TOKENS[0],
        additional_special_tokens=_SPECIAL_TOKENS[1:],
        # Without one, SGLang 0.5.17 fails on /v1/tokenize.
        model_max_length=max_len,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _CHAT_TEMPLATE
    return fast

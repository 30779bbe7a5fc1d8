# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of measurements that need no model: read from a file, or trained on the spot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from depcache.prompt.tokenization import PromptTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCAB_SIZE = 8000


def read_tokenizer(file: Path) -> PromptTokenizer:
    """Returns the tokenizer of a model's `tokenizer.json`."""
    from tokenizers import Tokenizer

    return PromptTokenizer(Tokenizer.from_file(str(file)))


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Returns a byte-level BPE of at most so many tokens: the same texts give the same one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer

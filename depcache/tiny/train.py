# SPDX-License-Identifier: Apache-2.0
"""Train depcache-tiny from nothing: `python -m depcache.tiny.train OUT [--minutes 60]`.

A small Llama that reads a path out of the facts, says it, and names where it ends. Three stages:

    copy        random strings that are repeated: heads that look back for what came next
    base        questions over flat text with ordinary attention, as any model is trained
    dependency  the same questions over trees, every token seeing its ancestors only

`OUT/base` is the model before the last stage and `OUT/model` after it; `OUT/log.jsonl` has the
losses. Made-up worlds only (`depcache.tiny.worlds`), new ones at every step. Needs the extra
`finetune`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from depcache.demo.model import make_tokenizer
from depcache.prompt.render import DEFAULT_SYSTEM
from depcache.tiny.worlds import make_examples
from depcache.training.finetune import to_inputs, to_tensors
from depcache.training.packing import Row, make_row, pack
from depcache.training.samples import IGNORED, Attention, Encoder, Sample

SEED = 20261120
MAX_LEN = 8192
COPY_LEN = 40
_CHUNK = 256  # examples that are packed together
_LOG_STEPS = 20
_HELD_OUT = 1_000_003  # added to the seed: worlds that training never sees


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the model and of a step."""

    vocab_size: int = 2048
    width: int = 192
    layers: int = 4
    heads: int = 6
    row_tokens: int = 1024
    rows: int = 8
    learning_rate: float = 2e-3


def make_network(shape: Shape, seed: int = SEED) -> Any:
    """A Llama of this shape with fresh weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        intermediate_size=3 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=MAX_LEN,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
        dtype="float32",
    )
    return LlamaForCausalLM(config)  # its attention is sdpa, which takes masks


def make_vocabulary(shape: Shape, seed: int = SEED) -> Any:
    """A tokenizer of the words of made-up worlds."""
    texts = [DEFAULT_SYSTEM, "\n\nQuestion: ", "\nAnswer: ", "Facts:"]
    for example in islice(make_examples(seed + 7), 2000):
        texts += [example.question, *("\n" + " -> ".join(path) for path in example.paths[:3])]
    return make_tokenizer(texts, shape.vocab_size, MAX_LEN)


def copy_rows(shape: Shape, rng: np.random.Generator) -> Iterator[Row]:
    """Random strings, each said twice; the second time is learned."""
    while True:
        samples: list[Sample] = []
        for _ in range(shape.row_tokens // (2 * COPY_LEN)):
            tokens = np.tile(rng.integers(4, shape.vocab_size, COPY_LEN), 2)
            labels = tokens.copy()
            labels[:COPY_LEN] = IGNORED
            num = len(tokens)
            samples.append(Sample(tokens, np.arange(num), np.full(num, num), 0, labels))
        yield make_row(samples)


def question_rows(shape: Shape, tokenizer: Any, attention: Attention, seed: int) -> Iterator[Row]:
    """Rows of questions about new worlds, without end."""
    encoder = Encoder(tokenizer, attention, max_tokens=shape.row_tokens, seed=seed)
    examples = make_examples(seed)
    while True:
        yield from pack(encoder.encode_all(islice(examples, _CHUNK)), shape.row_tokens)


class Trainer:
    """One network and one log through all stages."""

    def __init__(self, network: Any, shape: Shape, log: Path) -> None:
        self.network = network
        self.shape = shape
        self._log = log

    def run(self, stage: str, rows: Iterator[Row], seconds: float, check: list[Row]) -> None:
        """Train for so long, or until there are no more rows.

        The learning rate rises for a hundred steps and then falls to nothing with the time.
        """
        import torch

        peak = self.shape.learning_rate
        decayed = [p for p in self.network.parameters() if p.dim() > 1]
        others = [p for p in self.network.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0}]
        optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98))
        started = time.perf_counter()
        step = num_tokens = 0
        losses: list[float] = []
        self.network.train()
        while (spent := time.perf_counter() - started) < seconds:
            share = spent / seconds
            rate = peak * min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * share))
            for group in optimizer.param_groups:
                group["lr"] = rate
            batch = list(islice(rows, self.shape.rows))
            if not batch:
                break
            loss = self._loss(batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            num_tokens += sum(map(len, batch))
            losses.append(loss.item())
            if step % _LOG_STEPS == 0:
                self._note(stage, step, losses, num_tokens / (time.perf_counter() - started))
                losses.clear()
        right, whole = self.accuracy(check)
        self._write({"stage": stage, "steps": step, "token_accuracy": right, "whole": whole})

    def accuracy(self, rows: list[Row]) -> tuple[float, float]:
        """Shares of answer tokens, and of whole answers, that come first when forced."""
        import torch

        self.network.eval()
        tokens = right = answers = whole = 0
        with torch.no_grad():
            for row in rows:
                inputs = to_inputs(to_tensors([row]), self.network)
                labels = inputs.pop("labels")[0, 1:].numpy()
                hits = self.network(**inputs).logits[0, :-1].argmax(-1).numpy() == labels
                learned = labels != IGNORED
                tokens += int(learned.sum())
                right += int(hits[learned].sum())
                # An answer is a run of learned tokens; the last of a run is end-of-sequence.
                for run in np.split(np.flatnonzero(learned), _breaks(learned, labels)):
                    answers += len(run) > 0
                    whole += len(run) > 0 and bool(hits[run].all())
        self.network.train()
        return round(right / max(tokens, 1), 4), round(whole / max(answers, 1), 4)

    def _loss(self, rows: list[Row]) -> Any:
        inputs = to_inputs(to_tensors(rows), self.network)
        return self.network(**inputs).loss

    def _note(self, stage: str, step: int, losses: list[float], rate: float) -> None:
        loss = round(sum(losses) / len(losses), 4)
        self._write({"stage": stage, "step": step, "loss": loss, "tokens_per_s": round(rate)})

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry)
        print(line, flush=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(line + "\n")


def _breaks(learned: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Where in the list of learned tokens a new answer begins: behind each end-of-sequence."""
    return np.flatnonzero(labels[learned] == 0)[:-1] + 1


def train(out: Path, minutes: float, shape: Shape, seed: int = SEED) -> None:
    """All three stages: a twentieth of the time, then the rest in two halves."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_vocabulary(shape, seed)
    network = make_network(shape, seed)
    trainer = Trainer(network, shape, out / "log.jsonl")
    seconds = 60 * minutes
    rng = np.random.default_rng(seed)
    copies = copy_rows(shape, rng)
    trainer.run("copy", copies, seconds / 20, list(islice(copies, 4)))
    stages: tuple[tuple[str, Attention, str], ...] = (
        ("base", "flat", "base"),
        ("dependency", "dependency", "model"),
    )
    for stage, attention, folder in stages:
        rows = question_rows(shape, tokenizer, attention, seed)
        check = list(islice(question_rows(shape, tokenizer, attention, seed + _HELD_OUT), 16))
        trainer.run(stage, rows, seconds * 19 / 40, check)
        network.save_pretrained(out / folder)
        tokenizer.save_pretrained(out / folder)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train depcache-tiny from nothing.")
    parser.add_argument("out", type=Path, help="folder for the models and the log")
    parser.add_argument("--minutes", type=float, default=60.0, help="in all (default 60)")
    parser.add_argument("--seed", type=int, default=SEED)
    defaults = Shape()
    for name in Shape.__dataclass_fields__:
        value = getattr(defaults, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(value), default=value, help=f"default {value}")
    args = parser.parse_args()
    shape = Shape(**{name: getattr(args, name) for name in Shape.__dataclass_fields__})
    train(args.out, args.minutes, shape, args.seed)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The loop that trains depcache-tiny: Muon for matrices, AdamW for the rest, for so many seconds.

Made for two cores: bfloat16 where the processor multiplies it, one compiled graph of a fixed
shape, logits of learned tokens only. A GPU is used where there is one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from depcache.training.finetune import to_inputs
from depcache.training.loss import losses_of, right_tokens
from depcache.training.packing import Row, pad
from depcache.training.samples import IGNORED

_LOG_STEPS = 20
_SHORTEST = 128  # tokens of a row
_WARM_UP = 0.03  # of the time, the learning rate rises
_ADAM_SHARE = 0.8  # of the learning rate: AdamW's to Muon's

MAX_LEN = 8192
"""Tokens of the longest prompt that a model takes."""

HEAD_DIM = 64
"""FlashInfer's kernels take 64, 128 and 256."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the model and of a training step."""

    vocab_size: int = 3072
    width: int = 256
    layers: int = 4
    heads: int = 4
    step_tokens: int = 4096
    learning_rate: float = 3e-3

    def num_rows(self, row_tokens: int) -> int:
        """Rows of a step, of so many tokens each."""
        return max(1, self.step_tokens // row_tokens)


def shape_of(folder: Path, shape: Shape) -> Shape:
    """Returns the shape of a model that was saved there, its steps as those of `shape`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return replace(
        shape,
        vocab_size=config["vocab_size"],
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
    )


def add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    """An option for each field of a `Shape`."""
    defaults = Shape()
    for name in Shape.__dataclass_fields__:
        value = getattr(defaults, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(value), default=value, help=f"default {value}")


def read_shape(args: argparse.Namespace) -> Shape:
    """Returns the shape that these options say."""
    return Shape(**{name: getattr(args, name) for name in Shape.__dataclass_fields__})


def make_network(shape: Shape, max_len: int, seed: int) -> Any:
    """A Llama of this shape with fresh weights, on the device that is there."""
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
        head_dim=HEAD_DIM,
        max_position_embeddings=max_len,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=True,
        dtype="float32",
    )
    network: Any = LlamaForCausalLM(config)
    if not torch.cuda.is_available():
        # Compiled, a step of rows of 1,024 tokens takes 800 ms instead of 1,100: on a CPU the
        # backward pass of torch's fused attention is slower than plain matrix products.
        network.set_attn_implementation("eager")
    return network.to("cuda" if torch.cuda.is_available() else "cpu")


Phase = tuple[float, int, Iterator[Row]]
"""Until this share of a stage's time: rows a step, and the rows."""


class Trainer:
    """One network and one log through all stages.

    is_compiled  needs a C++ compiler on a CPU; 1.5 times as fast there after the first half minute
    """

    def __init__(self, network: Any, shape: Shape, log: Path, *, is_compiled: bool = False) -> None:
        import torch

        self.network = network
        self.shape = shape
        self._log = log
        self._body = network.model
        if is_compiled:
            self._body = torch.compile(network.model, dynamic=False)
        self._is_bf16 = network.device.type == "cuda" or (
            torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )

    def run(
        self,
        stage: str,
        phases: Sequence[Phase],
        seconds: float,
        check: Sequence[Row] = (),
        *,
        max_steps: int | None = None,
        has_muon: bool = True,
        peak: float = 1.0,
        cool_down: float = 0.4,
    ) -> None:
        """Train for so long, or until there are no more rows, and then note how it did.

        phases     in order; the first step of each, which may be compiled, is not counted
        check      rows that are not trained on
        max_steps  train for so many steps instead: the same on every machine
        has_muon   False: AdamW for everything, with which copying is learned in fewer steps
        peak       of the shape's learning rate, this much
        cool_down  share of the time in which the learning rate falls to nothing
        """
        optimizers = self._optimizers(has_muon)
        started = time.perf_counter()
        step = num_tokens = 0
        losses: list[float] = []
        warm: set[int] = set()
        self.network.train()
        while True:
            spent = time.perf_counter() - started
            share = step / max_steps if max_steps is not None else spent / seconds
            if share >= 1:
                break
            number = next((i for i, phase in enumerate(phases) if share < phase[0]), -1)
            _, num_rows, rows = phases[number]
            batch = list(islice(rows, num_rows))
            if not batch:
                break
            if number not in warm:
                warm.add(number)
                before = time.perf_counter()
                self.loss(batch).backward()
                self.network.zero_grad(set_to_none=True)
                started += time.perf_counter() - before
            rate = min(1.0, max(share, 1e-3) / _WARM_UP, (1 - share) / cool_down)
            loss = self.loss(batch)
            loss.backward()
            for optimizer, highest in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = highest * peak * rate
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            step += 1
            num_tokens += sum(map(len, batch))
            losses.append(loss.item())
            if step % _LOG_STEPS == 0:
                self._note(stage, step, num_tokens, losses, time.perf_counter() - started)
                losses.clear()
        seconds = round(time.perf_counter() - started, 1)
        right, whole = self.accuracy(check)
        ended = {"stage": stage, "steps": step, "tokens": num_tokens, "seconds": seconds}
        self._write(ended | {"token_accuracy": right, "whole": whole})

    def load(self, folder: Path) -> None:
        """Go on from the weights that were saved there."""
        from transformers import LlamaForCausalLM

        saved = LlamaForCausalLM.from_pretrained(folder, dtype="float32")
        self.network.load_state_dict(saved.state_dict())

    def loss(self, rows: Sequence[Row]) -> Any:
        """Mean over the learned tokens of these rows."""
        logits, right = self._logits(rows, self._body)
        return losses_of(logits, right).mean()

    def accuracy(self, rows: Sequence[Row]) -> tuple[float, float]:
        """Shares of answer tokens, and of whole answers, that come first when forced."""
        import torch

        self.network.eval()
        tokens = right = answers = whole = 0
        with torch.no_grad():
            for row in rows:
                logits, allowed = self._logits([row], self.network.model)
                hits = (logits.argmax(-1)[:, None] == allowed).any(1).cpu().numpy()
                labels = allowed[:, 0].cpu().numpy()
                tokens += len(labels)
                right += int(hits.sum())
                # The last token of an answer is end-of-sequence.
                for run in np.split(hits, np.flatnonzero(labels == 0)[:-1] + 1):
                    answers += 1
                    whole += bool(run.all())
        self.network.train()
        return round(right / max(tokens, 1), 4), round(whole / max(answers, 1), 4)

    def _logits(self, rows: Sequence[Row], body: Any) -> tuple[Any, Any]:
        """(num_learned, vocab_size) and (num_learned, K): what was said, and what was right."""
        import torch

        device = self.network.device
        # Few shapes, so that few are compiled.
        longest = max(map(len, rows))
        padded = pad(rows, max(_SHORTEST, 1 << (longest - 1).bit_length()))
        batch = {name: torch.from_numpy(array).to(device) for name, array in padded.items()}
        inputs = to_inputs(batch, self.network)
        right = right_tokens(batch)[:, 1:]
        learned = right[..., 0] != IGNORED
        dtype = torch.bfloat16 if self._is_bf16 else torch.float32
        visible = inputs["attention_mask"]
        # Added to the scores as it is; a bool mask is turned into this in every layer.
        mask = torch.zeros(visible.shape, dtype=dtype, device=device)
        inputs["attention_mask"] = mask.masked_fill_(~visible, float("-inf"))
        with torch.autocast(device.type, torch.bfloat16, enabled=self._is_bf16):
            hidden = body(**inputs, use_cache=False).last_hidden_state
            return self.network.lm_head(hidden[:, :-1][learned]), right[learned]

    def _optimizers(self, has_muon: bool) -> list[tuple[Any, float]]:
        """Each with its highest learning rate."""
        import torch

        peak = self.shape.learning_rate
        matrices = [p for p in self.network.model.layers.parameters() if p.dim() == 2 and has_muon]
        mine = {id(p) for p in matrices}
        others = [p for p in self.network.parameters() if id(p) not in mine]
        adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        optimizers: list[tuple[Any, float]] = [(adam, peak * _ADAM_SHARE)]
        if matrices:
            muon = torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
            optimizers.append((muon, peak))
        return optimizers

    def _note(
        self, stage: str, step: int, num_tokens: int, losses: list[float], seconds: float
    ) -> None:
        loss = round(sum(losses) / len(losses), 4)
        rate = round(num_tokens / seconds)
        self._write(
            {
                "stage": stage,
                "step": step,
                "seconds": round(seconds),
                "loss": loss,
                "tokens_per_s": rate,
            }
        )

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry)
        print(line, flush=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(line + "\n")

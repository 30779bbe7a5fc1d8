# SPDX-License-Identifier: Apache-2.0
"""How near answers are to ordinary attention over the same tokens, and what absent tables cost.

By HuggingFace with dense masks, float32; no server runs. The gold answer is forced, so a question
takes one forward pass: the answer would be written greedily if every token of it comes first.

    absent  the paper's way (TableCache, section 4.1.1): a table's KV is computed with all it refers
            to, also with tables that are not in the prompt. The task does not see those. It is
            here to be compared with `references`; the product has no such mode
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depcache.tables.catalog import Catalog
from depcache.tables.seen import SEES
from depcache.training.examples import Example
from depcache.training.packing import make_row
from depcache.training.samples import IGNORED, Encoder, Sample
from eval.quality.scores import group_interval
from eval.tables.answers import Asked

ALL = "all"
"""Ordinary attention over the tokens of a mode, in its order."""

ABSENT = "absent"
OPEN = "references, open"
"""The mode `references` over the same prompts as `absent`."""

_MAX_OTHERS = 3  # tables of an open prompt beside those that the answer needs

Logits = NDArray[np.float32]


class Forced:
    """One model; what it says where the gold answer is forced upon it."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()

        self._encoders = {
            mode: Encoder(self.tokenizer, "dependency", ("tree",), sees=mode) for mode in SEES
        }
        self._encoders[ALL] = Encoder(self.tokenizer, "deduplicated", ("tree",))

    def encode(self, asked: Asked, catalog: Catalog, mode: str) -> Sample:
        """The prompt over these tables with the gold answer behind it; `mode` may be `ALL`."""
        # A blank stands before every word, see `models.tiny.tokenizer`.
        example = Example(asked.question.text, (), f" {asked.gold}", tables=tuple(catalog))
        return self._encoders[mode].encode(example)

    def hidden_ranges(
        self, asked: Asked, catalog: Catalog, absent: Sequence[str]
    ) -> list[tuple[int, int]]:
        """Where the tokens of `absent` tables are in the prompt over all of `catalog`."""
        example = Example(asked.question.text, (), "-", tables=tuple(catalog))
        structure = self._encoders["references"].prompt(example, "tree").forest.structure
        order = catalog.references.sort(catalog.names)
        return [
            (int(structure.starts[row]), int(structure.starts[row] + structure.lens[row]))
            for row, name in enumerate(order)
            if name in absent
        ]

    def logits(self, sample: Sample, hidden: Sequence[tuple[int, int]] = ()) -> Logits:
        """(num_learned, vocab_size): what the model says for each token of the answer.

        hidden  ranges of tokens that the task does not see
        """
        import torch

        from depcache.training.finetune import to_inputs, to_tensors

        batch = to_tensors([make_row([sample])])
        inputs = to_inputs(batch, self._model)
        mask = inputs["attention_mask"]
        for start, stop in hidden:
            mask[:, :, sample.task_start :, start:stop] = False
        inputs["attention_mask"] = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
        learned = np.flatnonzero(sample.labels != IGNORED)
        with torch.no_grad():
            found = self._model(**inputs, use_cache=False).logits[0, learned - 1]
        return found.numpy()


def measure_agreement(
    models: Path, questions: Sequence[Asked], *, seed: int = 3
) -> list[dict[str, Any]]:
    """One row for each model of `SEES` and mode, over the same questions; intervals over schemas.

    kl     nats, mean over the tokens of the answers: from ordinary attention over the same tokens,
           in the same order, to this mode, with the same weights
    agree  share of these tokens at which both say the same
    whole  share of the answers of which every token comes first

    `absent` and `references, open` are over prompts that lack some of what they refer to: questions
    whose tables refer to nothing are left out there.
    """
    rows: list[dict[str, Any]] = []
    for name in SEES:
        if not (models / name / "config.json").exists():
            continue
        model = Forced(models / name)
        # The order of the tables is that of the references in every mode, so one is enough.
        flat = [model.logits(model.encode(each, each.catalog, ALL)) for each in questions]
        for mode in SEES:
            found = _compare(model, questions, mode, flat)
            rows.append({"model": name, "mode": mode, **found})
        if name == "references":
            rows += [
                {"model": name, "mode": mode, **found}
                for mode, found in _compare_open(model, questions, random.Random(seed)).items()
            ]
    return rows


def _compare(
    model: Forced, questions: Sequence[Asked], mode: str, flat: Sequence[Logits]
) -> dict[str, Any]:
    samples = [model.encode(each, each.catalog, mode) for each in questions]
    near = [_near(model.logits(s), its, s) for s, its in zip(samples, flat, strict=True)]
    return _summary(near, questions)


def _compare_open(
    model: Forced, questions: Sequence[Asked], rng: random.Random
) -> dict[str, dict[str, Any]]:
    found: dict[str, list[tuple[float, float, float]]] = {OPEN: [], ABSENT: []}
    asked_open: list[Asked] = []
    for asked in questions:
        needed = asked.question.tables
        others = [name for name in asked.catalog.names if name not in needed]
        prompt = {*needed, *rng.sample(others, min(len(others), rng.randint(0, _MAX_OTHERS)))}
        closed = asked.catalog.references.closure(prompt)
        absent = [name for name in closed if name not in prompt]
        if not absent:
            continue
        asked_open.append(asked)
        here = Catalog(table for table in asked.catalog if table.name in prompt)
        all_of_it = Catalog(table for table in asked.catalog if table.name in closed)
        sample = model.encode(asked, here, "references")
        flat = model.logits(model.encode(asked, here, ALL))
        found[OPEN].append(_near(model.logits(sample), flat, sample))
        sample = model.encode(asked, all_of_it, "references")
        hidden = model.hidden_ranges(asked, all_of_it, absent)
        found[ABSENT].append(_near(model.logits(sample, hidden), flat, sample))
    return {mode: _summary(each, asked_open) for mode, each in found.items() if each}


def _near(found: Logits, flat: Logits, sample: Sample) -> tuple[float, float, float]:
    """Mean KL from ordinary attention, share of equal tokens, whether the whole answer is right."""
    from scipy.special import log_softmax

    gold = sample.labels[sample.labels != IGNORED]
    mine, its = log_softmax(found, axis=1), log_softmax(flat, axis=1)
    kl = float((np.exp(its) * (its - mine)).sum(1).mean())
    agree = float((found.argmax(1) == flat.argmax(1)).mean())
    return kl, agree, float((found.argmax(1) == gold).all())


def _summary(
    found: Sequence[tuple[float, float, float]], questions: Sequence[Asked]
) -> dict[str, Any]:
    kl, agree, whole = np.array(found).T
    low, high = group_interval(whole, [asked.schema for asked in questions])
    return {
        "questions": len(found),
        "kl": round(float(kl.mean()), 4),
        "agree": round(float(agree.mean()), 4),
        "whole": round(float(whole.mean()), 4),
        "low": low,
        "high": high,
    }

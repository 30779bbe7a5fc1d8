# SPDX-License-Identifier: Apache-2.0
"""Models as they come: facts written in three ways, of which a share is computed again.

Each question is one line of a JSONL file, so that a run can be stopped and goes on later. A row of
a line is one method:

    form       how the facts are written: merged, paths, triples (see `eval.chunks.written`)
    method     full, reuse, a selector, `warm T S` (temperature and scale of the attention to the
               context), `shared` (one made-up row that all rows see), `shared, full`
    placement  tree, sequential, not mended; none with full attention
    recompute  share of the context that is computed again
    em, f1     of the answer; kl is its divergence from full attention of the same form, in nats
    computed   tokens of the second pass, the task among them; context is what is reused or not

A line of a made-up world has its number as `world` (see `eval.workloads.made_up`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from depcache.demo.sample import final_answer
from eval.chunks.oracle import Answer, Choice, Placement, Question
from eval.chunks.reader import Reader
from eval.chunks.selectors import Selectors
from eval.chunks.written import Form, Writer
from eval.quality.prompts import Asked
from eval.quality.scores import score

FORMS: tuple[Form, ...] = ("merged", "paths", "triples")
SHARES = (0.05, 0.1, 0.15, 0.3)
SELECTORS = ("first", "query", "mixed", "names", "random", "oracle")
PLACED: tuple[Placement, ...] = ("tree", "sequential")

LEAN: dict[tuple[bool, Placement], Sequence[tuple[float, str]]] = {
    (True, "tree"): tuple(product((0.15,), ("first", "mixed"))),
    (True, "sequential"): (*product((0.15,), ("first", "mixed", "oracle")), (0.3, "first")),
    (False, "tree"): tuple(product((0.05, 0.15), ("first", "query", "mixed"))),
    (False, "sequential"): (*product((0.05, 0.1, 0.15), SELECTORS), (0.3, "first")),
}
"""Whether the facts are merged, and placement -> shares and selectors of a lean run, which takes a
third of the time: the text of merged trees loses most by itself."""

CORE: dict[Placement, Sequence[tuple[float, str]]] = {
    "tree": ((0.15, "first"),),
    "sequential": (
        (0.05, "first"),
        (0.1, "first"),
        (0.15, "first"),
        (0.05, "mixed"),
        (0.15, "mixed"),
        (0.15, "query"),
        (0.15, "random"),
        (0.15, "oracle"),
    ),
}
"""Placement -> shares and selectors of a core run: whole paths alone, so that many questions can be
asked of what decides whether a model as it comes can reuse facts."""

REMEDIES = ((0.8, 1.0), (1.25, 1.0), (1.0, 0.8), (0.8, 0.8))
"""Temperature and scale; each is tried with nothing computed again, on rows in a lean run."""

SHARED_ROW = "\nfact -> is -> fact"

NOTHING = np.empty(0, np.int64)

Line = dict[str, Any]


def read_lines(file: Path) -> list[Line]:
    """What earlier runs have written; a last line that was cut off is left out."""
    if not file.is_file():
        return []
    lines: list[Line] = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines


def ask_all(
    sets: Mapping[str, Sequence[Asked]],
    models: Mapping[str, Path],
    file: Path,
    *,
    commit: str | None,
    until: float,
    how: Callable[[Reader, Asked], Iterator[dict[str, Any]]],
    tell: Callable[[str], None],
) -> None:
    """Ask each model each question that `file` does not have, one line each.

    Questions go round the sets, so that a run that stops early has asked of all.

    commit  of the code, for the lines
    until   `time.monotonic()` after which no question begins
    how     the rows of one question
    """
    done = {(line["model"], line["set"], line["number"]) for line in read_lines(file)}
    readers = {name: Reader(folder) for name, folder in models.items()}
    most = max(map(len, sets.values()), default=0)
    for number, name, model in product(range(most), sets, readers):
        if number >= len(sets[name]) or (model, name, number) in done:
            continue
        if time.monotonic() > until:
            return
        asked = sets[name][number]
        rows = list(how(readers[model], asked))
        line = {"model": model, "set": name, "number": number, "commit": commit, "rows": rows}
        if asked.world:
            line["world"] = asked.world
        _append(file, line)
        tell(f"{model}, {name}, question {number + 1}")


def _append(file: Path, line: Line) -> None:
    # One write: several processes may share the file.
    data = (json.dumps(line) + "\n").encode()
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)


def make_row(
    reader: Reader,
    asked: Asked,
    form: str,
    method: str,
    placement: str,
    recompute: float,
    context: int,
    answer: Answer,
) -> dict[str, Any]:
    """One method's row of a question's line; see the top of this file."""
    text = reader.tokenizer.decode(answer.tokens, skip_special_tokens=True)
    judged = score(final_answer(text), asked.answers)
    return {
        "form": form,
        "method": method,
        "placement": placement,
        "recompute": recompute,
        "em": judged.em,
        "f1": round(judged.f1, 4),
        "kl": round(answer.kl, 5),
        "computed": answer.computed,
        "context": context,
    }


def ask_core(reader: Reader, asked: Asked) -> Iterator[dict[str, Any]]:
    """The rows of one question in a core run, see `CORE`."""
    row = partial(make_row, reader, asked, "paths")
    written = Writer(reader.tokenizer).write(asked, "paths")
    question, context = Question(reader, written), written.forest.context_len
    yield row("full", "", 1.0, context, question.full)
    if context:
        selectors = Selectors(question)
        for placement, grid in CORE.items():
            yield from _try(row, question, selectors, placement, grid)


def _try(
    row: Callable[..., dict[str, Any]],
    question: Question,
    selectors: Selectors,
    placement: Placement,
    grid: Iterable[tuple[float, str]],
    remedies: Sequence[tuple[float, float]] = (),
) -> Iterator[dict[str, Any]]:
    """The rows of one placement: nothing computed again, remedies, and shares by selectors."""
    plans: list[tuple[str, float, Choice]] = [("reuse", 0.0, Choice(NOTHING))]
    plans += [
        (f"warm {temperature} {scale}", 0.0, Choice(NOTHING, temperature, scale))
        for temperature, scale in remedies
    ]
    plans += [
        (selector, share, Choice(selectors.choose(selector, share, placement)))
        for share, selector in grid
    ]
    found = question.answer_all(question.alone, placement, [each for *_, each in plans])
    context = question.written.forest.context_len
    for (method, share, _), answer in zip(plans, found, strict=True):
        yield row(method, placement, share, context, answer)


def ask(reader: Reader, asked: Asked, *, lean: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of one question; only those of full attention where retrieval found no path.

    lean  only the shares and selectors of `LEAN`
    """
    writer = Writer(reader.tokenizer)

    for form in FORMS:
        row = partial(make_row, reader, asked, form)
        written = writer.write(asked, form)
        question, context = Question(reader, written), written.forest.context_len
        yield row("full", "", 1.0, context, question.full)
        if not context:
            continue
        selectors = Selectors(question)
        for placement in PLACED:
            is_merged = form == "merged"
            grid = LEAN[is_merged, placement] if lean else product(SHARES, SELECTORS)
            remedies = () if lean and is_merged else REMEDIES
            yield from _try(row, question, selectors, placement, grid, remedies)
        [answer] = question.answer_all(question.alone, "not mended", [Choice(NOTHING)])
        yield row("reuse", "not mended", 0.0, context, answer)
        if form != "merged":
            shared = Question(reader, writer.write(asked, form, SHARED_ROW))
            yield row("shared, full", "", 1.0, context, shared.full)
            for placement in PLACED:
                [answer] = shared.answer_all(shared.alone, placement, [Choice(NOTHING)])
                yield row("shared", placement, 0.0, context, answer)

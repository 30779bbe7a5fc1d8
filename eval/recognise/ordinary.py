# SPDX-License-Identifier: Apache-2.0
"""Prompts of other kinds, from a fixed seed: nothing in them is a fact of a graph.

Many hold what facts are spelled with: arrows, brackets, bullets, bars. Those with data may be
recognised, as long as each row is one of the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from depcache.recognition.recognise import recognise
from eval.recognise.ordinary_code import CODE
from eval.recognise.ordinary_words import maybe, names, numbers, pick, prose, word, words

NUM_PROMPTS = 500
SEED = 20260127


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and the rows of data in it: "" where it holds none."""

    kind: str
    text: str
    data: str = ""


def _poem(rng: Random) -> str:
    lines = [words(rng, 4).capitalize() + pick(rng, ",", ";", ".", " -", "") for _ in range(4)]
    verses = ["\n".join(lines)]
    verses += ["\n".join(f"- {words(rng, 3)} -" for _ in range(3))] * maybe(rng)
    verses.append("\n".join(f"{words(rng, 5)} -> {words(rng, 2)}" for _ in range(2)))
    return "\n\n".join(verses)


def _chat(rng: Random) -> str:
    people = names(rng, 2)
    lines = []
    for number in range(rng.randint(6, 14)):
        said = pick(
            rng,
            prose(rng, 1),
            f"go to Settings -> {word(rng).title()} and look at {word(rng)}",
            f"the facts:\n- {words(rng, 4)}" if number == 2 else words(rng, 6),
            f"see [1]  {words(rng, 3)}",
        )
        lines.append(f"[{10 + number}:0{number % 10}] {people[number % 2]}: {said}")
    return "\n".join(lines)


def _log(rng: Random) -> str:
    lines = []
    for number in range(rng.randint(8, 20)):
        stamp = f"2026-03-{1 + number % 28:02d} 12:{number:02d}:07,113"
        lines.append(
            stamp
            + pick(
                rng,
                f" INFO [{word(rng)}] state IDLE -> READY -> RUNNING",
                f" WARN {word(rng)}|{word(rng)}|{rng.random():.3f}|{rng.randint(0, 9)}",
                f" DEBUG [{{'a': {rng.randint(0, 9)}}}, {{'a': {rng.randint(0, 9)}}}]",
                f" ERROR <Record id={rng.randint(0, 99)}> rejected",
            )
        )
    return "\n".join(lines)


def _json_log(rng: Random) -> str:
    return "\n".join(
        json.dumps(
            {"level": pick(rng, "info", "warn"), "source": word(rng), "message": words(rng, 5)}
        )
        for _ in range(rng.randint(5, 12))
    )


def _diff(rng: Random) -> str:
    lines = [f"diff --git a/{word(rng)}.py b/{word(rng)}.py", "@@ -1,6 +1,7 @@"]
    for _ in range(rng.randint(5, 12)):
        lines.append(
            pick(
                rng,
                f"- {words(rng, 2)} -> {word(rng)} -> {word(rng)}",
                f"+ {words(rng, 2)} -> {word(rng)} -> {word(rng)}",
                f"-['{word(rng)}', '{word(rng)}', '{word(rng)}']",
                f" {words(rng, 4)}",
            )
        )
    return "\n".join(lines)


def _math(rng: Random) -> str:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return (
        f"Let f : X -> Y -> Z and g : Y -> Z -> X be maps, |x| < {a}, |y| < {b}.\n"
        f"f : R -> R -> R\ng : C -> C -> C\nx -> {a}x + {b} -> {a * b}\n"
        f"$$\\lim_{{x \\to {a}}} \\frac{{x^{b}}}{{x - {a}}}$$\n"
        f"Show that [{a}, {b}] \\ {{0}} is open."
    )


def _email(rng: Random) -> str:
    people = names(rng, 3)
    quoted = "\n".join(f"> {words(rng, 7)}" for _ in range(3))
    return (
        f"From: {people[0]} <{word(rng)}@example.org>\nTo: {people[1]}\n"
        f"Subject: {words(rng, 4)}\n\n"
        f"Dear {people[1]},\n\n{prose(rng, 3)}\n\nAgenda:\n- {words(rng, 4)}\n- {words(rng, 5)}\n"
        f"- {people[2]}: {words(rng, 3)}\n\n{quoted}\n\nBest,\n{people[0]}"
    )


def _docs(rng: Random) -> str:
    steps = "\n".join(
        f"{n}. Open File -> {word(rng).title()} -> {word(rng).title()}." for n in (1, 2, 3)
    )
    arrows = "\n".join(f"{word(rng)} -> {word(rng)} -> {word(rng)}" for _ in range(2))
    features = "\n".join(f"- **{word(rng)}**: {words(rng, 6)}" for _ in range(4))
    links = "\n".join(
        f"- [{word(rng)}](https://example.org/{word(rng)}) - {words(rng, 4)}" for _ in range(3)
    )
    return (
        f"# {words(rng, 2).title()}\n\n{prose(rng, 2)}\n\n## Features\n{features}\n\n"
        f"## Steps\n\n{steps}\n\n```\n{arrows}\n```\n\n"
        f"## Sources\n{links}\n\n- [ ] {words(rng, 3)}\n- [x] {words(rng, 4)}\n"
    )


def _yaml(rng: Random) -> str:
    return "\n".join(
        f"{word(rng)}:\n  - name: {word(rng)}\n"
        f"    args: ['{word(rng)}', '{word(rng)}', '{word(rng)}']\n"
        f"    when: {word(rng)} -> {word(rng)}\n  - {word(rng)}: {rng.randint(1, 99)}"
        for _ in range(rng.randint(2, 5))
    )


def _prose(rng: Random) -> str:
    road = f"He took the road {word(rng)} -> {word(rng)} -> {word(rng)}."
    return f"{prose(rng, 4)} {road}\n\n{prose(rng, 5)}"


def _menu(rng: Random) -> str:
    items = "\n".join(
        f"- {words(rng, 2).title()} ({numbers(rng, 1)} g): {rng.randint(1, 30)} min"
        for _ in range(6)
    )
    return f"Ingredients and times:\n{items}\n\n1. {prose(rng, 1)}\n2. {prose(rng, 1)}"


TEXTS: dict[str, Callable[[Random], str]] = {
    "chat": _chat,
    "diff": _diff,
    "docs": _docs,
    "email": _email,
    "json log": _json_log,
    "list": _menu,
    "log": _log,
    "math": _math,
    "poem": _poem,
    "prose": _prose,
    "yaml": _yaml,
    **CODE,
}
"""Kinds in which nothing may be recognised."""


def _columns(rng: Random, separator: str) -> tuple[str, str]:
    head = pick(
        rng, ("id", "name", "price"), ("source", "amount", "unit"), ("name", "town", "size")
    )
    rows = "\n".join(
        separator.join((str(n) if head[0] == "id" else word(rng), words(rng, 2), numbers(rng, 1)))
        for n in range(rng.randint(4, 12))
    )
    return separator.join(head), rows


def _table(rng: Random) -> tuple[str, str]:
    head, rows = _columns(rng, " | ")
    return f"| {head} |\n|---|---|---|", "\n".join(f"| {row} |" for row in rows.split("\n"))


def _fenced(rng: Random) -> tuple[str, str]:
    head, rows = _columns(rng, ",")
    return f"```csv\n{head}", f"{rows}\n```"


def _array(rng: Random) -> tuple[str, str]:
    keys = pick(rng, ("name", "size"), ("subject", "mark"), ("source", "bytes"))
    rows = [
        {keys[0]: words(rng, 2), keys[1]: rng.randint(1, 999)} for _ in range(rng.randint(3, 8))
    ]
    return "", pick(rng, json.dumps(rows), json.dumps(rows, indent=2), str(rows))


DATA: dict[str, Callable[[Random], tuple[str, str]]] = {
    "csv": lambda rng: _columns(rng, ","),
    "csv in a fence": _fenced,
    "json": _array,
    "table": _table,
    "tsv": lambda rng: _columns(rng, "\t"),
}
"""Kinds with rows of data: what stands before them, and the rows."""


def make_prompts(number: int = NUM_PROMPTS, seed: int = SEED) -> list[Prompt]:
    """Returns so many prompts, of each kind in turn; equal for equal seeds."""
    rng = Random(seed)
    kinds = [*TEXTS, *DATA]
    return [_make(kinds[i % len(kinds)], rng) for i in range(number)]


def _make(kind: str, rng: Random) -> Prompt:
    ask = pick(
        rng, "Summarise this.", "What is wrong here?", "Explain:", f"Translate for {words(rng, 2)}:"
    )
    if kind in TEXTS:
        return Prompt(kind, f"{ask}\n\n{TEXTS[kind](rng)}\n\n{words(rng, 4).capitalize()}?")
    head, data = DATA[kind](rng)
    return Prompt(kind, f"{ask}\n\n{head}\n{data}\n\n{words(rng, 4).capitalize()}?", data)


def is_wrong(prompt: Prompt) -> bool:
    """Whether something is recognised that is no row of data."""
    found = recognise(prompt.text, deadline_s=None)
    rows = [found.text[row.start : row.stop].strip(" ,\n") for row in found.rows]
    return not all(row in prompt.data for row in rows) or (
        not prompt.data and found.outline is not None
    )


def measure_ordinary(number: int) -> dict[str, Any]:
    """Prompts, outlines and wrong ones, of each kind and of all."""
    kinds: dict[str, dict[str, int]] = {}
    for prompt in make_prompts(number):
        counts = kinds.setdefault(prompt.kind, {"prompts": 0, "outlines": 0, "wrong": 0})
        counts["prompts"] += 1
        counts["outlines"] += recognise(prompt.text, deadline_s=None).outline is not None
        counts["wrong"] += is_wrong(prompt)
    return {**_sum(list(kinds.values())), "kinds": dict(sorted(kinds.items()))}


def _sum(rows: Sequence[dict[str, int]]) -> dict[str, int]:
    return {key: sum(row[key] for row in rows) for key in ("prompts", "outlines", "wrong")}

# SPDX-License-Identifier: Apache-2.0
"""Recorded prompts of frameworks: the rows of facts in them, and what the next question reuses.

A file is `{"version": ..., "requests": [{"body": {"messages": [...]}}, ...]}` with two questions;
its name begins with that of the framework. Rows are counted by patterns of our own, so that the
table of recognisers does not judge itself.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from depcache.errors import ConfigError
from depcache.recognition.recognise import Recognised, recognise
from depcache.text_file import reading

EXPECTED: dict[str, tuple[str, ...]] = {
    "cognee": (r"^.+? --\[.+?\]--> .+$", r"^Node: .+$"),
    "fast_graphrag": (r"^(?!name\t|source\t)[^\t\n]+\t[^\t\n]+(?:\t[^\t\n]+)?$",),
    "graphiti_context": (r'\{"(?:fact|entity_name)": [^{}]+\}',),
    "graphiti_facts": (r"^- [A-Z].+$",),
    "graphrag_sdk": (r"^- .+? —\[.+$", r"^- (?!.*—\[)[A-Z][^\n:]+: .+$"),
    "hipporag": (r"^Wikipedia Title: .+$",),
    "langchain_neo4j": (r"\{'[^{}\n]+?': [^{}\n]+\}(?=, \{|\]$)",),
    "lightrag": (r'^\{"entity1?": .+\}$', r'^\{"reference_id": .+\}$'),
    "llamaindex_kg": (r"^\['.+'(?:, '.+')+\]$",),
    "llamaindex_pg": (r"^.+? -> .+? -> .+$",),
    "ms_graphrag": (r"^\d+\|.+$",),
    "nano_graphrag": (r'^\d+,\t".+',),
    "neo4j_graphrag_text2cypher": (r"^<Record .+>$",),
    "neo4j_graphrag_vectorcypher": (r"(?<=n)[^\n\\'=]+? - [A-Z_]+ -> [^\n\\'>]+",),
}
"""Beginning of a file's name to what a row of facts looks like."""

NUM_TIMED = 5

_TOKEN = re.compile(r"\s?[A-Za-z]{1,6}|\s?\d|\s|[^\w\s]|\w")


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One recorded request: its texts, those that belong to this question, what was found."""

    texts: list[str]
    asked: list[str]
    found: Recognised
    ms: float

    @property
    def flat(self) -> str:
        return "\n".join(self.texts)


def measure_folder(folder: Path) -> list[dict[str, Any]]:
    """One row of figures for each file. Raises ConfigError when there is none, or it is odd."""
    with reading(folder, ConfigError, "the prompts in"):
        files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise ConfigError(f"{str(folder)!r} holds no prompts: name a folder with *.json")
    return [_measure_file(file) for file in files]


def read_requests(file: Path) -> list[list[dict[str, Any]]]:
    """The messages of each request of a file, at least two. Raises ConfigError."""
    return _read_file(file)[1]


def _read_file(file: Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    with reading(file, ConfigError):
        text = file.read_text(encoding="utf-8")
    try:
        data = json.loads(text)
        requests = [request["body"]["messages"] for request in data["requests"]]
        if len(requests) < 2:
            raise ValueError(f"it has {len(requests)} requests")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{str(file)!r} is no recorded prompt ({error!r})") from error
    return data, requests


def _measure_file(file: Path) -> dict[str, Any]:
    data, requests = _read_file(file)
    first, second = (_read(messages) for messages in requests[:2])
    expected, recognised = _count_rows(file.stem, second)
    num_tokens = len(_tokens(second.flat))
    prefix = _prefix(first.flat, second.flat)
    rows = prefix + _reused_rows(first, second)
    is_same = _is_same_before(first, second)
    return {
        "prompts": file.stem,
        "version": str(data.get("version", "")),
        "rows": expected,
        "recognised": recognised,
        "tokens": num_tokens,
        "prefix_percent": round(100 * prefix / num_tokens, 1),
        "rows_percent": round(100 * rows / num_tokens, 1),
        "same_text_before": is_same,
        "ms": round(median((first.ms, second.ms)), 2),
        "reason": second.found.reason,
    }


def _read(messages: Sequence[dict[str, Any]]) -> _Prompt:
    def is_answer(message: dict[str, Any]) -> bool:
        return message["role"] == "assistant" and isinstance(message.get("content"), str)

    last = max((i for i, message in enumerate(messages) if is_answer(message)), default=-1)
    texts, asked = [], []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
            if number > last or message["role"] == "system":
                asked.append(content)
    times: list[float] = []
    for _ in range(NUM_TIMED):
        started = time.perf_counter()
        recognise(messages, deadline_s=None)
        times.append(time.perf_counter() - started)
    return _Prompt(texts, asked, recognise(messages, deadline_s=None), 1000 * median(times))


def _count_rows(name: str, prompt: _Prompt) -> tuple[int, int]:
    """Rows of facts in the prompt, and those of them that lie in what was found."""
    patterns = [each for stem, each in EXPECTED.items() if name.startswith(stem)]
    num_expected = num_found = 0
    for pattern in patterns[0] if patterns else ():
        for text in prompt.asked:
            starts = [match.start() for match in re.finditer(pattern, text, re.MULTILINE)]
            num_expected += len(starts)
            if text == prompt.found.text:
                num_found += sum(
                    any(row.start <= start < row.stop for row in prompt.found.rows)
                    for start in starts
                )
    return num_expected, num_found


def _tokens(text: str) -> list[str]:
    """Pieces of about the length that a tokenizer makes."""
    return _TOKEN.findall(text)


def _prefix(first: str, second: str) -> int:
    """Tokens that a plain prefix cache reuses."""
    return _common_len(_tokens(first), _tokens(second))


def _common_len(first: Sequence[str], second: Sequence[str]) -> int:
    """How many of the first items are equal."""
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return number
    return min(len(first), len(second))


def _reused_rows(first: _Prompt, second: _Prompt) -> int:
    """Tokens beyond the common prefix in elements that the first prompt has below the same ones."""
    if first.found.outline is None or second.found.outline is None:
        return 0
    known = {way for way, _, _ in _elements(first.found)}
    before = _common_len(first.flat, second.flat)
    shift = second.flat.index(second.found.text)
    return sum(
        len(_tokens(text))
        for way, text, start in _elements(second.found)
        if start + shift >= before and way in known
    )


def _elements(found: Recognised) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """Each element with the way to it from its root, its text, and where that begins."""
    outline = found.outline
    assert outline is not None
    pieces = outline.pieces(found.text)
    starts = list(accumulate(map(len, pieces), initial=outline.start))
    ways: list[tuple[str, ...]] = []
    parents = outline.parents or (-1,) * outline.num_rows
    for (a, b), parent in zip(pairwise(accumulate(outline.rows, initial=0)), parents, strict=True):
        way = ways[parent] if parent >= 0 else ()
        for number in range(a, b):
            way = (*way, pieces[number])
            yield way, pieces[number], starts[number]
        ways.append(way)


def _is_same_before(first: _Prompt, second: _Prompt) -> bool | None:
    """Whether all that stands before the rows is the same; None if no rows are found."""
    before: list[str] = []
    for prompt in (first, second):
        outline = prompt.found.outline
        if outline is None:
            return None
        before.append(prompt.flat[: prompt.flat.index(prompt.found.text) + outline.start])
    return before[0] == before[1]

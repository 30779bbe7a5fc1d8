# SPDX-License-Identifier: Apache-2.0
"""One question with its facts as tokens, in one of three ways to write them, or cut anywhere.

merged   the paths become trees: what they begin with alike stands once
paths    each path is a row that stands whole
triples  each triple of a path is a row that stands whole
cut      the text of `paths`, in chunks of a fixed number of tokens
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.layout import token_positions
from depcache.prompt.outline import Outline
from depcache.prompt.render import render
from depcache.prompt.tokenization import PromptTokenizer
from eval.quality.prompts import Asked

Form = Literal["merged", "paths", "triples", "cut"]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Written:
    """A prompt and how its context hangs together.

    tokens     (n,) int64: system, context, task
    forest     the chunks of the context: rows, segments of trees, or pieces of fixed size
    home       (n,) int64: position at which each token is computed alone, behind the system
    chunks     (n,) int64: number of the chunk of each context token, -1 for system and task
    in_chunk   (n,) int64: tokens of its chunk before it; 0 for system and task
    in_entity  (n,) int64: tokens of its entity's name before it; -1 where there is no name
    """

    tokens: IntArray
    forest: Forest
    home: IntArray
    chunks: IntArray
    in_chunk: IntArray
    in_entity: IntArray

    @property
    def context(self) -> IntArray:
        """(num_context,) int64: indices of the context's tokens."""
        return np.arange(self.forest.system_len, self.forest.task_start, dtype=np.int64)

    def ancestors(self) -> BoolArray:
        """(n, n) bool: a token sees the system and its chunk's ancestors, the task sees all."""
        index, forest = np.arange(len(self.tokens)), self.forest
        ends = forest.structure.ends
        below = index[None, :] <= index[:, None]
        return below & ((index[:, None] < ends[None, :]) | (index[:, None] >= forest.task_start))


class Writer:
    """Writes questions for one model.

    tokenizer  of HuggingFace, with a chat template
    cut_len    tokens of each chunk of the form `cut`
    """

    def __init__(self, tokenizer: Any, cut_len: int = 40) -> None:
        self._chat = tokenizer.apply_chat_template
        self._pieces = PromptTokenizer(tokenizer)
        self._cut_len = cut_len

    def write(self, asked: Asked, form: Form, shared: str = "") -> Written:
        """The prompt; a question without paths is all task.

        shared  text that goes before the rows and that all of them see
        """
        template = "triple" if form == "triples" else "path"
        rendered = render(asked.paths, asked.text, template=template)
        text = self._chat(rendered.messages, tokenize=False, add_generation_prompt=True)
        if not rendered.flat_text:
            tokens = np.array(self._pieces.encode_text(text, first=True), np.int64)
            return _plain(tokens)
        outline = Outline.from_json(rendered.params_in(text)["depcache_outline"])
        if shared:
            text = text[: outline.start] + shared + text[outline.start :]
            outline = outline.moved(outline.start + len(shared))
        if form != "merged":
            outline = replace(outline, merge=False, lead=0)
        prompt = DepPrompt.from_outline(text, outline, tokenizer=self._pieces)
        forest = prompt.forest
        if form == "cut":
            forest = _cut(forest, self._cut_len)
        in_entity = self._find_entities(prompt, outline, text)
        return _place(prompt.tokens, forest, in_entity)

    def _find_entities(self, prompt: DepPrompt, outline: Outline, text: str) -> IntArray:
        """(n,) int64: as `Written.in_entity`."""
        found = np.full(prompt.num_tokens, -1, np.int64)
        elements = self._pieces.encode_elements(outline.pieces(text))
        ways = _ways(prompt) if outline.merge else None
        at, index = 0, prompt.forest.system_len
        for num_elements in outline.rows:
            way: tuple[int, ...] = ()
            for number, ids in enumerate(elements[at : at + num_elements]):
                for offset, token in enumerate(ids):
                    way += (token,)
                    if ways is None:
                        place, index = index, index + 1
                    else:
                        place = ways.get(way, -1)
                    if number % 2 == 0 and place >= 0:
                        found[place] = offset
            at += num_elements
        return found


def _ways(prompt: DepPrompt) -> dict[tuple[int, ...], int]:
    """Tokens from a row's beginning to each token of the trees -> its index.

    A separator that counts to the system stands at the beginning of each way all the same.
    """
    forest, tokens = prompt.forest, prompt.tokens.tolist()
    before: list[tuple[int, ...]] = []
    ways: dict[tuple[int, ...], int] = {}
    for start, stop, parent in zip(
        forest.starts.tolist(), forest.stops.tolist(), forest.parents.tolist(), strict=True
    ):
        way = before[parent] if parent >= 0 else ()
        for index in range(start, stop):
            way += (tokens[index],)
            ways[way] = index
        before.append(way)
    lead = tokens[forest.system_len - 1]
    return ways | {(lead, *way): index for way, index in ways.items()}


def _cut(forest: Forest, length: int) -> Forest:
    """Chunks of `length` tokens; a last one of less than a fifth joins the one before it."""
    num_whole, rest = divmod(forest.context_len, length)
    lens = [length] * num_whole
    if rest >= length / 5 or not lens:
        lens.append(rest)
    else:
        lens[-1] += rest
    return Forest.make(forest.num_tokens, forest.system_len, lens, [-1] * len(lens))


def _place(tokens: IntArray, forest: Forest, in_entity: IntArray) -> Written:
    chunks = np.full(len(tokens), -1, np.int64)
    chunks[forest.system_len : forest.task_start] = np.repeat(
        np.arange(forest.num_segments), forest.lens
    )
    in_chunk = np.zeros(len(tokens), np.int64)
    inside = chunks >= 0
    in_chunk[inside] = np.flatnonzero(inside) - forest.starts[chunks[inside]]
    home = token_positions(forest, "tree")
    return Written(tokens, forest, home, chunks, in_chunk, in_entity)


def _plain(tokens: IntArray) -> Written:
    forest = Forest.make(len(tokens), 0, [], [])
    return _place(tokens, forest, np.full(len(tokens), -1, np.int64))

# SPDX-License-Identifier: Apache-2.0
"""From an example to tokens, positions and visibility: those of the server, plus the answer.

The prompt is made as for a request, by `render`, the chat template and `DepPrompt`; the answer
goes behind the task, as generated tokens do. Nothing here needs torch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, get_args

import numpy as np

from depcache.errors import ConfigError, PromptError, shorten
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.layout import LAYOUTS, Layout, token_positions
from depcache.prompt.outline import Outline
from depcache.prompt.render import (
    DEFAULT_SYSTEM,
    DEFAULT_TABLE_SYSTEM,
    RenderedPrompt,
    render,
    render_rows,
)
from depcache.prompt.template import Template
from depcache.prompt.tokenization import PromptTokenizer
from depcache.tables.catalog import Catalog
from depcache.tables.render import HEADING, render_tables
from depcache.tables.seen import DEFAULT_SEES, read_sees
from depcache.training.examples import Example
from flashinfer_masks.visibility import Structure

IGNORED = -100
"""The label of tokens that are not learned, as torch's cross entropy has it."""

_NO_ALTERNATIVES = np.empty((0, 2), np.int64)
_NO_JOINS = np.empty((0, 4), np.int64)

Attention = Literal["dependency", "flat", "deduplicated"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
"""dependency: trees, of which tokens see their ancestors. flat: the text of all paths, as any
server reads it; tables stand there in the order in which they come. deduplicated: the tokens of the
trees, every token seeing all before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One prompt with its answer, in pre-order, or several that share their context.

        visible(i, j) = j <= i and (i < ends[j] or j < task_start <= i) or a join lets i see j

    tokens     (num_tokens,) int64
    positions  (num_tokens,) int64, RoPE position of each
    ends       (num_tokens,) int64, first index that does not see the token, but for tasks
    task_start index that the first task starts at; tasks see all before it
    labels     (num_tokens,) int64, the token where it is to be learned, else `IGNORED`
    alternatives  (M, 2) int64, index and token: what would be as right there as the label
    joins      (N, 4) int64, start and stop of a tree's tokens, and of those of an earlier segment
               that all of them see too
    """

    tokens: IntArray
    positions: IntArray
    ends: IntArray
    task_start: int
    labels: IntArray
    alternatives: IntArray = field(default_factory=lambda: _NO_ALTERNATIVES)
    joins: IntArray = field(default_factory=lambda: _NO_JOINS)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class Encoder:
    """Turns examples into samples, one layout after another in random order.

    tokenizer  of HuggingFace, with a chat template and an end-of-sequence token
    layouts    of which each example gets one
    max_tokens longer samples are left out and counted in `num_too_long`
    sees       what a table sees, see `depcache.tables.seen.Sees`
    table_system  the system message where there are tables
    write      how an example of paths becomes a request, for those of the same paths alike; None:
               by `render`, with `system` and `template`

    `num_encoded` counts the examples in the samples of `encode_all`.
    """

    tokenizer: Any
    attention: Attention = "dependency"
    layouts: Sequence[Layout] = ("tree",)
    system: str | None = DEFAULT_SYSTEM
    template: str | Template = "path"
    max_tokens: int = 4096
    seed: int = 0
    sees: str = DEFAULT_SEES
    table_system: str | None = DEFAULT_TABLE_SYSTEM
    write: Callable[[Example, Layout], RenderedPrompt] | None = None
    num_too_long: int = 0
    num_encoded: int = 0
    _pieces: PromptTokenizer = field(init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        if self.attention not in ATTENTIONS:
            raise ConfigError(
                f"{shorten(self.attention)} is no attention: use {', '.join(ATTENTIONS)}"
            )
        try:
            read_sees(self.sees)
        except PromptError as error:
            raise ConfigError(str(error)) from None
        unknown = [layout for layout in self.layouts if layout not in LAYOUTS]
        if unknown or not self.layouts:
            raise ConfigError(
                f"layouts are {shorten(list(self.layouts))}: use {', '.join(LAYOUTS)}"
            )
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ConfigError(
                "the tokenizer has no chat template: fine-tune a model that is served for chats"
            )
        if self.tokenizer.eos_token_id is None:
            raise ConfigError("the tokenizer has no end-of-sequence token: set one")
        self._pieces = PromptTokenizer(self.tokenizer)
        self._random = random.Random(self.seed)

    def encode_all(self, examples: Iterable[Example]) -> list[Sample]:
        """The samples of all examples that are not too long.

        Examples of the same paths or tables that follow each other share one sample, as far as it
        is not too long: what they have in common is computed once, as a cache would have it.
        """
        samples: list[Sample] = []
        for _, group in groupby(examples, key=lambda example: (example.paths, example.tables)):
            layout = self._random.choice(self.layouts)
            shared: list[Sample] = []
            for example in group:
                sample = self.encode(example, layout)
                if len(sample) > self.max_tokens:
                    self.num_too_long += 1
                    continue
                self.num_encoded += 1
                if shared and len(share_context([*shared, sample])) > self.max_tokens:
                    samples.append(share_context(shared))
                    shared = [sample]
                else:
                    shared.append(sample)
            if shared:
                samples.append(share_context(shared))
        return samples

    def encode(self, example: Example, layout: Layout | None = None) -> Sample:
        """One sample, however long. Raises PromptError when it cannot be made a prompt.

        layout  None: one is drawn
        """
        answer = [*self._pieces.encode_text(example.answer), self.tokenizer.eos_token_id]
        if self.attention == "flat" or not (example.paths or example.tables):
            return self._encode_flat(example, answer)
        layout = layout or self._random.choice(self.layouts)
        prompt = self.prompt(example, layout)
        tokens = np.concatenate((prompt.tokens, np.array(answer, np.int64)))
        # The answer is more of the task: it sees everything, and its positions go on.
        shape = prompt.forest
        joins = dict(shape.structure.joins)
        forest = Forest.make(len(tokens), shape.system_len, shape.lens, shape.parents, joins)
        if self.attention == "deduplicated":
            return _make_linear(tokens, len(answer), self._alternatives(example, tokens, answer))
        return Sample(
            tokens,
            token_positions(forest, layout),
            forest.structure.ends,
            forest.task_start,
            _labels(tokens, len(answer)),
            self._alternatives(example, tokens, answer),
            _joins(forest.structure),
        )

    def prompt(self, example: Example, layout: Layout) -> DepPrompt:
        """The prompt of an example as a server has it, without the answer.

        Without paths or tables there is nothing to share, and all of it is the task.
        """
        if example.tables:
            rendered: RenderedPrompt = render_tables(
                Catalog(example.tables),
                None,
                example.question,
                system=self.table_system,
                sees=self.sees,
                layout=layout,
            )
        else:
            rendered = self._write(example, layout)
        text = self._chat(rendered.messages)
        if not (example.paths or example.tables):
            return DepPrompt.from_paths((), tokenizer=self._pieces, task=text, layout=layout)
        outline = Outline.from_json(rendered.params_in(text)["depcache_outline"])
        return DepPrompt.from_outline(text, outline, tokenizer=self._pieces, layout=layout)

    def _write(self, example: Example, layout: Layout) -> RenderedPrompt:
        if self.write is not None:
            return self.write(example, layout)
        return render(
            example.paths,
            example.question,
            system=self.system,
            template=self.template,
            layout=layout,
        )

    def _encode_flat(self, example: Example, answer: list[int]) -> Sample:
        if example.tables:
            texts = dict.fromkeys(table.text for table in example.tables)
            rendered = render_rows(
                texts, example.question, heading=HEADING, system=self.table_system
            )
        else:
            rendered = self._write(example, "tree")
        prompt = self._pieces.encode_text(self._chat(rendered.messages), first=True)
        tokens = np.array([*prompt, *answer], np.int64)
        return _make_linear(tokens, len(answer), self._alternatives(example, tokens, answer))

    def _alternatives(self, example: Example, tokens: IntArray, answer: list[int]) -> IntArray:
        """Returns where other answers first differ from `answer`, the end of `tokens`, and how."""
        start = len(tokens) - len(answer)
        found: dict[tuple[int, int], None] = {}
        for text in example.alternatives:
            other = [*self._pieces.encode_text(text), self.tokenizer.eos_token_id]
            pairs = enumerate(zip(other, answer, strict=False), start)
            if first := next(((i, mine) for i, (mine, its) in pairs if mine != its), None):
                found[first] = None
        return np.array(list(found), np.int64).reshape(-1, 2)

    def _chat(self, messages: list[dict[str, str]]) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )


def _make_linear(tokens: IntArray, num_learned: int, alternatives: IntArray) -> Sample:
    num = len(tokens)
    return Sample(
        tokens, np.arange(num), np.full(num, num), 0, _labels(tokens, num_learned), alternatives
    )


def share_context(samples: Sequence[Sample]) -> Sample:
    """One sample with the tasks of all, each of which sees the common context and itself.

    samples  with the same context; of those without trees, the tokens they all begin with
    """
    first = samples[0]
    if len(samples) == 1:
        return first
    num = min(sample.task_start or len(sample) - 1 for sample in samples)
    for sample in samples[1:]:
        differs = (sample.tokens[:num] != first.tokens[:num]) | (
            sample.positions[:num] != first.positions[:num]
        )
        num = int(differs.argmax()) if differs.any() else num
    if any(sample.task_start > num for sample in samples):
        raise ValueError("samples that share a context must have the same trees")
    lens = np.array([len(sample) - num for sample in samples])

    def join(name: str) -> IntArray:
        arrays = [getattr(sample, name) for sample in samples]
        return np.concatenate((arrays[0][:num], *(array[num:] for array in arrays)))

    common_ends = np.minimum(first.ends[:num], num)  # tasks see all of it in any case
    return Sample(
        tokens=join("tokens"),
        positions=join("positions"),
        ends=np.concatenate((common_ends, np.repeat(num + np.cumsum(lens), lens))),
        task_start=num,
        labels=join("labels"),
        alternatives=shift_alternatives(
            [
                # What is common is learned once, so its alternatives are the first sample's.
                sample.alternatives[(sample is first) | (sample.alternatives[:, 0] >= num)]
                for sample in samples
            ],
            np.cumsum(lens) - lens,
        ),
        joins=first.joins,
    )


def _joins(structure: Structure) -> IntArray:
    """The joins of a sample: each joined tree with each segment that it is joined to."""
    counts = np.diff(structure.joined_indptr)
    trees = np.repeat(np.arange(len(counts)), counts)
    stops = np.append(structure.tree_starts[1:], structure.task_start)
    seen = structure.starts[structure.joined]
    return np.stack(
        (structure.tree_starts[trees], stops[trees], seen, seen + structure.lens[structure.joined]),
        axis=1,
    )


def _labels(tokens: IntArray, num_learned: int) -> IntArray:
    labels = np.full(len(tokens), IGNORED, np.int64)
    labels[len(tokens) - num_learned :] = tokens[len(tokens) - num_learned :]
    return labels


def shift_alternatives(alternatives: Sequence[IntArray], offsets: IntArray) -> IntArray:
    """Those of several samples, with the indices that they have behind each other."""
    return np.concatenate(
        [each + np.array([offset, 0]) for each, offset in zip(alternatives, offsets, strict=True)]
    )

# SPDX-License-Identifier: Apache-2.0
"""The two passes of a fused request, for one question and many choices of tokens at once.

Pass A computes each chunk behind the system and the chunks above it, and nothing else. Pass B
computes the chosen tokens and the task by index over these keys, of which those of chosen tokens
are left out. So a token that is not chosen has seen the old copy of a neighbour that is.

Answers are greedy. The answer under full attention goes behind each task as a draft: where a
choice of tokens leads to the same answer, which is the usual case, nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eval.chunks.reader import KV, Pass, Reader, Remedy, attention_of
from eval.chunks.written import Written

IntArray = NDArray[np.int64]

Placement = Literal["tree", "sequential", "not mended"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
"""tree: each chunk behind the system. sequential: position is index. not mended: as sequential,
but cached keys stay turned for where they were computed."""

MAX_TOKENS = 96


@dataclass(frozen=True, eq=False)
class Cached:
    """KV of system and context.

    kv    (num_kv_heads, task_start, head_dim) of each layer
    home  (task_start,) int64: positions that the keys are turned for
    """

    kv: KV
    home: IntArray


@dataclass(frozen=True, eq=False)
class Choice:
    """What pass B does.

    chosen       indices of context tokens to compute again, ascending
    temperature  and scale, of the task's attention to the context; see `Remedy`
    """

    chosen: IntArray
    temperature: float = 1.0
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class Answer:
    """What came out.

    tokens    of the answer, with its end
    logits    (num_draft, vocab_size) float32 at the places of the answer under full attention
    kl        mean over these places of the divergence from full attention, in nats
    computed  rows of pass B without the answer
    """

    tokens: list[int]
    logits: Tensor
    kl: float
    computed: int


class Question:
    """One prompt, read by one model in any way."""

    def __init__(self, reader: Reader, written: Written, max_tokens: int = MAX_TOKENS) -> None:
        self.reader, self.written = reader, written
        self._max_tokens = max_tokens
        self._num = len(written.tokens)
        self._context = written.context
        forest = written.forest
        self._task = np.arange(forest.task_start, self._num)

    @cached_property
    def _full(self) -> tuple[Pass, list[int], Tensor]:
        index = np.arange(self._num)
        below = index[None, :] <= index[:, None]
        tokens = self.written.tokens
        done = self.reader.run(tokens[None], index[None], below[None])
        shared = [(keys[0], values[0]) for keys, values in done.kv]
        answer, logits = [], [done.logits[0, -1]]
        own: KV | None = None
        while True:
            answer.append(int(logits[-1].argmax()))
            if answer[-1] in self.reader.end or len(answer) == self._max_tokens:
                return done, answer, torch.stack(logits)
            at = self._num + len(answer) - 1
            visible = np.ones((1, 1, at + 1), bool)
            step = self.reader.run(
                np.array([answer[-1:]]),
                np.array([[at]]),
                visible,
                shared=shared,
                own=() if own is None else (own,),
            )
            own = step.kv if own is None else _append(own, step.kv)
            logits.append(step.logits[0, -1])

    @cached_property
    def full(self) -> Answer:
        """The answer of full attention, which all others are compared with."""
        _, answer, logits = self._full
        return Answer(answer, logits, 0.0, self._num)

    @cached_property
    def full_kv(self) -> KV:
        """KV of system and context under full attention, at `sequential` positions."""
        stop = self.written.forest.task_start
        return [(keys[0, :, :stop], values[0, :, :stop]) for keys, values in self._full[0].kv]

    @cached_property
    def alone(self) -> Cached:
        """Pass A: each chunk sees the system and the chunks above it."""
        written, stop = self.written, self.written.forest.task_start
        home = written.home[:stop]
        visible = written.ancestors()[:stop, :stop]
        done = self.reader.run(written.tokens[None, :stop], home[None], visible[None])
        return Cached([(keys[0], values[0]) for keys, values in done.kv], home)

    def positions(self, placement: Placement) -> IntArray:
        """(n,) int64: position of each token of the prompt."""
        return self.written.home if placement == "tree" else np.arange(self._num)

    def placed(self, cached: Cached, placement: Placement) -> KV:
        """The cached keys, turned for their positions in this prompt."""
        if placement == "not mended":
            return cached.kv
        stop = self.written.forest.task_start
        shifts = self.positions(placement)[:stop] - cached.home
        return cached.kv if not shifts.any() else self.reader.turn(cached.kv, shifts)

    def deviations(self, cached: Cached) -> list[NDArray[np.float64]]:
        """How far KV lies from that under full attention, keys turned to where they are placed.

        Returns for keys and for values (num_layers, num_context) sums of squares over heads and
        channels (FusionRAG, eq. 7).
        """
        placed = self.placed(cached, "sequential")
        found = []
        for part in (0, 1):
            layers = [
                (full[part] - mine[part]).pow(2).sum((0, 2))[self._context]
                for full, mine in zip(self.full_kv, placed, strict=True)
            ]
            found.append(torch.stack(layers).double().numpy())
        return found

    def question_weights(
        self, cached: Cached, placement: Placement, *, alone: bool, layers: slice = slice(-1, None)
    ) -> NDArray[np.float64]:
        """(num_heads * num_layers, num_task, num_context): what task rows give context keys.

        alone  the task sees the system only, and its queries meet the context afterwards (the
               softmax is over the context); else it sees all, and the softmax is over all
        """
        forest = self.written.forest
        shared = self.placed(cached, placement)
        start, stop = forest.system_len, forest.task_start
        own = np.tri(len(self._task), dtype=bool)
        seen = np.ones((len(self._task), stop), bool)
        if alone:
            seen[:, start:] = False
        done = self.reader.run(
            self.written.tokens[None, self._task],
            self.positions(placement)[None, self._task],
            np.concatenate((seen, own), 1)[None],
            shared=shared,
        )
        found = []
        width = shared[0][0].shape[-1]
        for queries, (mine, _), (keys, _) in list(zip(done.queries, done.kv, shared, strict=True))[
            layers
        ]:
            if alone:
                visible = np.ones((len(self._task), stop - start), bool)
                weights = attention_of(queries[0], keys[:, start:], width**-0.5, visible)
            else:
                everything = torch.cat((keys, mine[0]), 1)
                visible = np.concatenate((seen, own), 1)
                weights = attention_of(queries[0], everything, width**-0.5, visible)
                weights = weights[..., start:stop]
            found.append(weights.double().numpy())
        return np.concatenate(found)

    def answer_all(
        self, cached: Cached, placement: Placement, choices: Sequence[Choice]
    ) -> list[Answer]:
        """Pass B for each choice, those of one size in one batch.

        With all of the context chosen, or none cached, it is full attention in `sequential`.
        """
        shared = self.placed(cached, placement)
        groups: dict[int, list[int]] = {}
        for number, choice in enumerate(choices):
            groups.setdefault(len(choice.chosen), []).append(number)
        found: dict[int, Answer] = {}
        behind: list[tuple[int, KV, NDArray[np.bool_]]] = []
        for numbers in groups.values():
            done = self._verify(shared, placement, [choices[number] for number in numbers])
            for number, answer, kv, usable in zip(numbers, *done, strict=True):
                found[number] = answer
                if not self._is_done(answer.tokens):
                    behind.append((number, kv, usable))
        if behind:
            numbers, own, usable = zip(*behind, strict=True)
            first = int(self.positions(placement)[-1]) + 1
            self._decode(
                [found[number].tokens for number in numbers],
                shared,
                _pad(own),
                _pad_usable(usable),
                first,
                self._remedies([choices[number] for number in numbers]),
            )
        return [found[number] for number in range(len(choices))]

    def _verify(
        self, shared: KV, placement: Placement, choices: Sequence[Choice]
    ) -> tuple[list[Answer], list[KV], list[NDArray[np.bool_]]]:
        """Pass B with the draft behind the task, for choices of one size.

        Returns for each its answer as far as the draft leads, the KV of its rows, and which of
        all keys its next token sees.
        """
        _, draft, full_logits = self._full
        num_draft, stop = len(draft), self.written.forest.task_start
        tail = np.arange(stop, self._num + num_draft - 1)
        rows = np.stack([np.concatenate((choice.chosen, tail)) for choice in choices])
        kept = np.ones((len(choices), stop), bool)
        for number, choice in enumerate(choices):
            kept[number, choice.chosen] = False
        tokens = np.concatenate((self.written.tokens, np.array(draft[:-1], np.int64)))
        positions = self.positions(placement)
        positions = np.concatenate((positions, positions[-1] + np.arange(1, num_draft)))
        seen = kept[:, None] & (np.arange(stop) <= rows[:, :, None])
        own = rows[:, None] <= rows[:, :, None]
        remedies = self._remedies(choices)
        done = self.reader.run(
            tokens[rows],
            positions[rows],
            np.concatenate((seen, own), 2),
            shared=shared,
            remedy=remedies.of(rows.shape[1]) if remedies else None,
            num_kept=num_draft,
        )
        predicted = done.logits.argmax(-1).numpy()
        same = predicted == np.array(draft)
        answers: list[Answer] = []
        usable: list[NDArray[np.bool_]] = []
        for number, choice in enumerate(choices):
            accepted = num_draft if same[number].all() else int(same[number].argmin())
            said = draft[:accepted] + predicted[number, accepted : accepted + 1].tolist()
            logits = done.logits[number]
            kl = _divergence(full_logits, logits)
            answers.append(Answer(said, logits, kl, len(choice.chosen) + len(self._task)))
            usable.append(np.concatenate((kept[number], rows[number] < self._num + accepted)))
        each = [
            [(keys[number], values[number]) for keys, values in done.kv]
            for number in range(len(choices))
        ]
        return answers, each, usable

    def _remedies(self, choices: Sequence[Choice]) -> _Remedies | None:
        forest = self.written.forest
        return _Remedies.make(choices, forest.system_len, forest.task_start)

    def _decode(
        self,
        answers: list[list[int]],
        shared: KV,
        own: KV,
        usable: NDArray[np.bool_],
        first: int,
        remedies: _Remedies | None,
    ) -> None:
        """Append to each answer until its end.

        usable  (batch, num_shared + num_own) bool: keys that an answer sees, but for those of
                what it says itself
        first   position of an answer's first token
        """
        alive = list(range(len(answers)))
        said: KV | None = None
        while alive:
            usable = np.concatenate((usable, np.ones((len(alive), 1), bool)), 1)
            step = self.reader.run(
                np.array([answers[n][-1:] for n in alive]),
                np.array([[first + len(answers[n]) - 1] for n in alive]),
                usable[:, None],
                shared=shared,
                own=(own,) if said is None else (own, said),
                remedy=remedies.of(usable.shape[1] - len(remedies.in_shared)) if remedies else None,
            )
            said = step.kv if said is None else _append(said, step.kv)
            going = np.zeros(len(alive), bool)
            for row, token in enumerate(step.logits[:, -1].argmax(-1).tolist()):
                answer = answers[alive[row]]
                if not self._is_done(answer):
                    answer.append(token)
                    going[row] = not self._is_done(answer)
            # Leaving one out copies all the others, so it is done when half are ready.
            if going.sum() <= len(alive) / 2:
                alive = [n for n, goes in zip(alive, going, strict=True) if goes]
                own = [(keys[going], values[going]) for keys, values in own]
                said = [(keys[going], values[going]) for keys, values in said]
                usable = usable[going]
                remedies = remedies.take(going) if remedies else None

    def _is_done(self, answer: list[int]) -> bool:
        return answer[-1] in self.reader.end or len(answer) >= self._max_tokens


@dataclass(frozen=True, eq=False)
class _Remedies:
    temperature: Tensor
    scale: Tensor
    in_shared: Tensor

    @classmethod
    def make(cls, choices: Sequence[Choice], start: int, stop: int) -> _Remedies | None:
        """The remedies of a batch; None where no choice has one."""
        if all(choice.temperature == choice.scale == 1 for choice in choices):
            return None
        return cls(
            torch.tensor([choice.temperature for choice in choices]),
            torch.tensor([choice.scale for choice in choices]),
            torch.arange(stop) >= start,
        )

    def of(self, num_other: int) -> Remedy:
        """For so many keys behind the cached ones."""
        rest = torch.zeros(num_other, dtype=torch.bool)
        return Remedy(self.temperature, self.scale, torch.cat((self.in_shared, rest)))

    def take(self, index: Any) -> _Remedies:
        index = torch.from_numpy(index)
        return _Remedies(self.temperature[index], self.scale[index], self.in_shared)


def _divergence(full: Tensor, other: Tensor) -> float:
    expected, found = full.log_softmax(-1), other.log_softmax(-1)
    return float((expected.exp() * (expected - found)).sum(-1).mean())


def _append(own: KV, more: KV) -> KV:
    return [
        (torch.cat((keys, new_keys), 2), torch.cat((values, new_values), 2))
        for (keys, values), (new_keys, new_values) in zip(own, more, strict=True)
    ]


def _pad(parts: Sequence[KV]) -> KV:
    """The KV of several answers as one batch, zeros behind what is shorter."""
    return [
        (
            pad_sequence([keys.transpose(0, 1) for keys, _ in layer], True).transpose(1, 2),
            pad_sequence([values.transpose(0, 1) for _, values in layer], True).transpose(1, 2),
        )
        for layer in zip(*parts, strict=True)
    ]


def _pad_usable(parts: Sequence[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    most = max(map(len, parts))
    return np.stack([np.pad(part, (0, most - len(part))) for part in parts])

# SPDX-License-Identifier: Apache-2.0
"""Whether a request is fused or answered as flat prompt, by the tokens that each way computes.

A prefix cache computes little where prompts repeat, and fusing never pays where no row comes again.
So the two are compared, and a row that nobody has computed is settled where it will be of use.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

WINDOW_ROWS = 1_000
"""Rows, and contexts, whose share of acquaintances forecasts that of the next."""

MAX_KNOWN = 200_000
"""Rows, and beginnings of prompts, that are remembered, by their keys alone."""


FIRST_TIME = 1.1
"""How often a context met for the first time comes again, by the mean of the contexts met lately.

No verbatim stream of `eval chunks --tokens` may compute more than 1.05 times what a prefix cache
does. The worst is 1.08 with 0.5, 1.052 with 1.0 and 1.047 with 1.1; with 0.5 paraphrased streams
compute 1 to 3 % less at a share of 15 %.
"""


@dataclass(frozen=True, slots=True)
class Met:
    """What a forecast says of one request.

    was_met   per row whether it was met before, elsewhere than in the same beginning of a prompt
    share     of the rows met lately, those of which this holds; 0 without any
    repeats   how often the same context is expected to come again
    """

    was_met: tuple[bool, ...]
    share: float
    repeats: float


class ReuseForecast:
    """How often rows come again where a prefix cache would not find them, and whole contexts.

    It keeps what every request would have left in a prefix cache without end: all its beginnings,
    row by row. A row met again in the same beginning is no reuse, since a flat prompt has it too.
    It goes by what was asked for, not by what the cache kept, so it does not depend on the choices
    that are made with it.
    """

    def __init__(self, window: int = WINDOW_ROWS, max_known: int = MAX_KNOWN) -> None:
        self._rows: OrderedDict[bytes, None] = OrderedDict()
        self._beginnings: OrderedDict[bytes, int] = (
            OrderedDict()
        )  # how often it was a whole context
        self._max_known = max_known
        self._again = _Share(window)
        self._repeated = _Share(window)

    def meet(self, rows: Sequence[bytes], is_cached: Sequence[bool]) -> Met:
        """Note the rows of a request, in their order in its prompt.

        rows       what tells each row from all others, the system before it included
        is_cached  per row whether it is; a row that is cached was met, by whomever
        """
        beginnings = _beginnings(rows)
        num_known = next(
            (num for num, each in enumerate(beginnings) if each not in self._beginnings), len(rows)
        )
        was_met: list[bool] = []
        for number, (row, cached) in enumerate(zip(rows, is_cached, strict=True)):
            was_met.append((cached or row in self._rows) and number >= num_known)
            self._again.add(was_met[-1])
            _note(self._rows, row, None, self._max_known)
        context = beginnings[-1] if beginnings else b""
        num_times = self._beginnings.get(context, 0)
        self._repeated.add(num_times > 0)
        for each in beginnings:
            _note(self._beginnings, each, self._beginnings.get(each, 0), self._max_known)
        self._beginnings[context] = num_times + 1
        mean = self._repeated.value / max(1 - self._repeated.value, 1e-3)
        return Met(tuple(was_met), self._again.value, num_times or FIRST_TIME * mean)


class _Share:
    """The share of the last yeses and noes that are yes; 0 without any."""

    def __init__(self, window: int) -> None:
        self._recent: deque[bool] = deque(maxlen=window)
        self._num_yes = 0

    @property
    def value(self) -> float:
        return self._num_yes / len(self._recent) if self._recent else 0.0

    def add(self, is_yes: bool) -> None:
        if len(self._recent) == self._recent.maxlen:
            self._num_yes -= self._recent[0]
        self._recent.append(is_yes)
        self._num_yes += is_yes


def _beginnings(rows: Sequence[bytes]) -> list[bytes]:
    """Returns a digest of every beginning: of the first row, the first two, and so on."""
    found: list[bytes] = []
    digest = b""
    for row in rows:
        digest = blake2b(digest + row, digest_size=16).digest()
        found.append(digest)
    return found


def _note[Value](known: OrderedDict[bytes, Value], key: bytes, value: Value, most: int) -> None:
    """Put a key behind all others, and forget those that were longest unseen."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > most:
        known.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do with a fused request.

    is_fused  False: it is answered as the flat prompt that it is
    settled   numbers of the rows to settle first
    """

    is_fused: bool
    settled: tuple[int, ...]


def choose(
    *,
    missing: Sequence[int],
    num_missing_system: int,
    met: Met,
    num_selected: int,
    num_context: int,
    num_prefix: int,
    num_task: int,
    share: float,
    is_pinned: bool,
    num_scoring: int = 0,
    num_patched: int | None = None,
) -> Choice:
    """The cheaper way in tokens computed, now and later.

    missing       per row the tokens that are on no device
    num_missing_system  the same of the system, which each way computes once
    met           what `ReuseForecast.meet` says of the request
    num_selected  tokens that are computed again
    num_context   tokens of system and context
    num_prefix    of these, what a plain prompt would find cached
    num_task      tokens of the task
    share         recomputed share, 0 to 1
    num_patched   of what is selected, what is kept from an equal request; None: the request neither
                  keeps nor reads patches. Then an equal context costs its selection each time, else
                  once, unless the next question selects other tokens
    num_scoring   tokens that a selector by scores computes for them, beside the rows, all of which
                  must be there; 0 without such a selector

    A settled token costs its computation now and spares 1 - share of one whenever its row comes
    again, which happens once more with the probability of the forecast. A row met for the first
    time is settled only where the forecast is above the share: else what it spares is less than
    what fusing costs. A context that comes again as it is costs nothing where it was flat, since
    it is then a prefix; where it was fused, it costs its selection again each time. With
    `num_scoring` there is no choice row by row.
    """
    settled = tuple(
        row
        for row, num in enumerate(missing)
        if num and (is_pinned or num_scoring or met.was_met[row] or met.share > share)
    )
    if is_pinned:
        return Choice(True, settled)
    num_settled = sum(missing[row] for row in settled)
    spared = met.share * (1 - share) * num_settled
    # The first pass computes one token that is thrown away. What is selected in a row that is not
    # settled counts twice, to the disadvantage of fusing.
    num_first_pass = num_scoring or int(bool(settled))
    keeps = num_patched is not None and not num_scoring
    again = met.repeats * (sum(missing) - num_settled + (0 if keeps else num_selected))
    num_recomputed = num_selected - (num_patched or 0)
    computed = sum(missing) + num_missing_system + num_recomputed + num_task + num_first_pass
    fused = computed - spared + again
    flat = num_context - num_prefix + num_task
    return Choice(True, settled) if fused < flat else Choice(False, ())

# SPDX-License-Identifier: Apache-2.0
"""What a server answered: the text, what it cost, and what DepCache reused for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """What became of the prompt's tokens (`metadata.depcache`, or `meta_info.depcache`).

    The counts are of the request's first start.

    layout           position layout the request asked for; None for a plain prompt
    prompt_tokens    the whole prompt, as a tree
    context_tokens   of which before the task: the system and the retrieved facts
    shared           reused where they lie; no copy
    shifted          reused at another position; copied, their keys rotated
    loaded           brought back from a slower tier
    missed           computed now
    recomputed       computed, cached or not: the share that a fused request asked for
    patched          tokens of `shared` that are of this share: an equal request has kept them
    plain            the task, or all of a prompt that was served without dependencies
    tail             tokens of `plain` that came from the cache: turns of a conversation before this
    see              what computed tokens saw: their "ancestors" alone; everything before them
                     ("fused"); or a fused request was answered as "flat" prompt, which is exact
    select           who chose the recomputed tokens; None where none were to be
    recompute        the share that was asked for; with "stored" the share that came of it
    settled          tokens that a pass before this one computed for it: rows, each alone or behind
                     what it was asked to stand behind, and that with them
    behind           rows that were computed behind something that is not in the prompt, as asked
    variants         rows that were reused as a past prompt left them, with the selector "stored"
    fallback_reason  why it was; None if it was not, or was meant to be plain
    differs          in what the answer may differ from that to the flat text under ordinary
                     attention: "merging" (equal beginnings stand once), "visibility" (facts do not
                     see each other), "placement" (other positions). () is exact; None is unknown
    recognised       rows by recogniser, where the server found them by itself, "tables" among the
                     names; None where not
    tables           where rows said what they see or refer to: rows "found", of these "cached" as a
                     whole, and "absent_references" to what is not in the prompt; None where they
                     did not, or merged
    retractions      how often the request gave its memory up and was started again. Then it also
                     reuses what was cached meanwhile, which is exact in the layout `tree` only
    """

    layout: str | None = None
    prompt_tokens: int = 0
    context_tokens: int = 0
    shared: int = 0
    shifted: int = 0
    loaded: int = 0
    missed: int = 0
    recomputed: int = 0
    patched: int = 0
    plain: int = 0
    tail: int = 0
    see: str = "ancestors"
    select: str | None = None
    recompute: float | None = None
    settled: int = 0
    behind: int = 0
    variants: int = 0
    fallback_reason: str | None = None
    differs: tuple[str, ...] | None = None
    recognised: dict[str, int] | None = None
    tables: dict[str, int] | None = None
    retractions: int = 0

    @classmethod
    def from_dict(cls, data: Any) -> ReuseReport | None:
        """The report in a reply; None where there is none. Keys of a newer server are skipped."""
        if not isinstance(data, Mapping):
            return None
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        if isinstance(values.get("differs"), list):
            values["differs"] = tuple(values["differs"])
        return cls(**values)

    @property
    def is_exact(self) -> bool:
        """The answer is that to the flat text under ordinary attention, up to rounding."""
        return self.differs == ()

    @property
    def reused(self) -> int:
        """Tokens that were not computed: shared + shifted + loaded + tail."""
        return self.shared + self.shifted + self.loaded + self.tail

    @property
    def computed(self) -> int:
        """Tokens that were: missed + recomputed + settled + plain - tail."""
        return self.missed + self.recomputed + self.settled + self.plain - self.tail


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `cached_tokens` is 0 unless the server runs with --enable-cache-report."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @classmethod
    def from_dict(cls, data: Any) -> Usage:
        """From OpenAI's `usage` or from SGLang's `meta_info`; nulls count as 0."""
        if not isinstance(data, Mapping):
            return cls()
        details = data.get("prompt_tokens_details") or {}
        return cls(
            prompt_tokens=data.get("prompt_tokens") or 0,
            completion_tokens=data.get("completion_tokens") or 0,
            cached_tokens=data.get("cached_tokens") or details.get("cached_tokens") or 0,
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """One finished answer.

    depcache       what was reused; None when the server runs without DepCache
    finish_reason  "stop", "length", ... as the server said it
    token_ids      ids of the answer; None on the OpenAI routes, which do not send them
    ttft_s         seconds from sending to the first token; None unless streamed
    total_s        seconds from sending to the end
    """

    text: str
    usage: Usage
    depcache: ReuseReport | None
    finish_reason: str | None
    token_ids: tuple[int, ...] | None
    ttft_s: float | None
    total_s: float

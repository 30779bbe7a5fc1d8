# SPDX-License-Identifier: Apache-2.0
"""What a fused request asks for: which share of its context is computed again, and who chooses.

A fused request reuses its rows as they were computed, each alone behind the system, and computes
some of their tokens again with full view (FusionRAG, section 3; CacheBlend; Cache-Craft). The
engine learns one thing only, the indices; everything else here says how they are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from depcache.errors import PromptError, shorten
from depcache.prompt.layout_names import Layout
from depcache.prompt.outline import Outline

See = Literal["ancestors", "fused"]
Select = Literal[
    "first", "query", "query-context", "mixed", "deviation", "random", "stored", "given"
]
Budget = Literal["global", "chunk"]
Focus = Literal["settle"]

SELECTS: tuple[Select, ...] = get_args(Select)
BUDGETS: tuple[Budget, ...] = get_args(Budget)
FOCUSES: tuple[Focus, ...] = get_args(Focus)
DEFAULT_SHARE = 0.15
DEFAULT_SELECT: Select = "first"
BY_SCORE: tuple[Select, ...] = ("query", "query-context", "mixed", "deviation")
"""Those that choose by what a pass of the model says of each token."""

MAX_SEED = 2**32 - 1
MAX_ALPHA = 10

type Part = str | tuple[int, ...]
"""One chunk: its text, or its token ids."""

type Entry = Part | tuple[Part, ...] | None
"""What one row stands behind: a chunk, several, or nothing."""


def parts_of(entry: Entry) -> tuple[Part, ...]:
    """Returns the chunks that a row stands behind, in their order."""
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    ids = tuple(each for each in entry if isinstance(each, int))
    return (ids,) if ids else tuple(each for each in entry if not isinstance(each, int))


@dataclass(frozen=True)
class Recompute:
    """A share of the context, its selector, and behind what the context's KV was computed.

    share     of the context's tokens, from 0 to 1; neither with `given` nor with `stored`
    select    first: the first tokens of each row. query: those that the question leans on most,
              which has seen the system alone (FusionRAG, section 3.2). query-context: those that it
              leans on where it stands, behind the reused context. mixed: half `first`, half
              `query`. deviation: those whose keys in the second layer change most under full view
              (CacheBlend). random: a control. stored: rows as past prompts left them, and what
              leaned most on rows before it there, as much of each row as its CFO (Cache-Craft,
              section 3). given: `selected`
    selected  indices of context tokens in pre-order, ascending; with `given` and only then
    budget    global: the share is of the context, whatever row it is spent in (FusionRAG). chunk:
              it is of each row (Cache-Craft), at least one token
    focus     settle: what is selected of rows that the question does not focus on, by what it gives
              them in a pass before, is not computed again (Cache-Craft, algorithm 1)
    alpha     of `stored`: how careful it is (Cache-Craft, eq. 12), above 0 and at most 10
    seed      of `random`
    is_pinned  fuse and nothing else: the server neither answers the flat prompt where that is
              cheaper, nor leaves a row unsettled that it meets for the first time
    behind    per row what its KV was computed behind, beside the system: None for nothing, a chunk
              as token ids, or as text where the prompt is a text; or several chunks, each computed
              alone and then placed one after the other (FusionRAG, eq. 10). None: no row has any
    patches   what is computed again is kept, and an equal selection over an equal beginning of a
              prompt reads it. None: as the server is set

    Raises PromptError when these do not fit each other.
    """

    share: float = DEFAULT_SHARE
    select: Select = DEFAULT_SELECT
    selected: tuple[int, ...] | None = None
    seed: int = 0
    is_pinned: bool = False
    behind: tuple[Entry, ...] | None = None
    patches: bool | None = None
    budget: Budget = "global"
    focus: Focus | None = None
    alpha: float = 1.0

    def __post_init__(self) -> None:
        is_number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not is_number or not 0 <= self.share <= 1:
            raise PromptError(
                f"the recomputed share is {shorten(self.share)}: send a number from 0 to 1"
            )
        if self.select not in SELECTS:
            raise PromptError(
                f"{shorten(self.select)} is no selector: use one of {', '.join(SELECTS)}"
            )
        if self.budget not in BUDGETS:
            raise PromptError(
                f"{shorten(self.budget)} is no budget: use one of {', '.join(BUDGETS)}"
            )
        if self.focus is not None and self.focus not in FOCUSES:
            raise PromptError(
                f"{shorten(self.focus)} is no focus: use one of {', '.join(FOCUSES)}, or None"
            )
        if self.focus is not None and self.select == "given":
            raise PromptError(
                "depcache_focus came with the selector given, whose indices are final: leave out "
                "one of them"
            )
        if self.focus is not None and self.select == "deviation":
            raise PromptError(
                "depcache_focus came with the selector deviation, which asks no question: leave "
                "out one of them"
            )
        self._check_stored()
        if not isinstance(self.seed, int) or not 0 <= self.seed <= MAX_SEED:
            raise PromptError(
                f"the selector's seed is {shorten(self.seed)}: send an int from 0 to {MAX_SEED}"
            )
        if (self.selected is not None) != (self.select == "given"):
            what = "came without" if self.selected is None else "does not go with"
            raise PromptError(
                f"the selector {self.select} {what} depcache_selected: send the indices with the "
                "selector given, and only there"
            )
        entries = [each for each in self.behind or () if each is not None]
        if not all(entry and all(parts_of(entry)) for entry in entries):
            raise PromptError(
                "depcache_behind has an empty entry: send null where a row stands behind nothing"
            )

    def _check_stored(self) -> None:
        is_number = isinstance(self.alpha, int | float) and not isinstance(self.alpha, bool)
        if not is_number or not 0 < self.alpha <= MAX_ALPHA:
            raise PromptError(
                f"alpha is {shorten(self.alpha)}: send a number above 0, and at most {MAX_ALPHA}"
            )
        if self.select != "stored":
            if self.alpha != 1:
                raise PromptError(
                    f"alpha goes with the selector stored, and this one is {self.select}: leave it "
                    "out"
                )
            return
        others = {
            "depcache_recompute": self.share != DEFAULT_SHARE,
            "depcache_budget": self.budget != "global",
            "depcache_behind": any(self.behind or ()),
        }
        for name, is_given in others.items():
            if is_given:
                raise PromptError(
                    f"{name} came with the selector stored, which chooses how much of each row is "
                    "computed again, and behind what it stands: leave out one of them"
                )

    @property
    def needs_scores(self) -> bool:
        """Whether what is selected depends on a pass of the model over the context."""
        return self.select in BY_SCORE or self.focus is not None

    @classmethod
    def read(cls, value: float | Recompute) -> Recompute:
        """A `Recompute`, or one of this share. Raises PromptError."""
        return value if isinstance(value, Recompute) else cls(value)

    @staticmethod
    def stand(value: float | Recompute | None, behind: Sequence[Entry]) -> Recompute:
        """The same, with what its rows stand behind. Raises PromptError where it is None."""
        if value is None:
            raise PromptError(
                "behind is given, but recompute is None: send a share from 0 to 1, or leave out "
                "behind"
            )
        return replace(Recompute.read(value), behind=tuple(behind))

    @staticmethod
    def layout(layout: Layout, value: float | Recompute | None) -> Layout:
        """The layout of a request with this share: its own, or `sequential` where it is fused.

        Raises PromptError for a layout that a fused request cannot have.
        """
        if value is None:
            return layout
        if layout == "staggered":
            raise PromptError(
                "the layout is 'staggered' in a fused request, whose tokens sit at their index: "
                "leave out layout, or recompute"
            )
        return "sequential"

    def to_params(self) -> dict[str, Any]:
        """The `depcache_` keys of a request, version 2 of the wire."""
        params: dict[str, Any] = {
            "depcache_see": "fused",
            "depcache_recompute": self.share,
            "depcache_select": self.select,
        }
        if self.alpha != 1:
            params["depcache_alpha"] = self.alpha
        if self.selected is not None:
            params["depcache_selected"] = list(self.selected)
        if self.seed:
            params["depcache_seed"] = self.seed
        if self.is_pinned:
            params["depcache_pin"] = True
        if self.budget != "global":
            params["depcache_budget"] = self.budget
        if self.focus is not None:
            params["depcache_focus"] = self.focus
        if self.patches is not None:
            params["depcache_patches"] = self.patches
        if self.behind is not None and any(self.behind):
            params["depcache_behind"] = [_to_lists(entry) for entry in self.behind]
        return params


def _to_lists(value: Any) -> Any:
    return [_to_lists(each) for each in value] if isinstance(value, tuple) else value


def row_params(
    outline: Outline,
    layout: Layout,
    recompute: float | Recompute | None,
    template: str | None = None,
) -> dict[str, Any]:
    """The `custom_params` of a request whose context is an outline.

    layout     of the request; `Recompute.layout` says which one a fused request has
    recompute  a share asks for a fused request, in which every row stands whole, since a model as
               it comes cannot read merged ones. None: as the outline is
    template   name of the template that wrote the rows, if any
    """
    if recompute is None:
        return outline.to_params(layout, template)
    whole = replace(outline, merge=False, lead=0) if outline.merge else outline
    asked = Recompute.read(recompute).to_params()
    return {**whole.to_params(Recompute.layout(layout, recompute), template), **asked}

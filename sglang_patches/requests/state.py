# SPDX-License-Identifier: Apache-2.0
"""What the plugin remembers of one dependency request, from its first match to its end.

It hangs on the engine's request object itself (`Req.depcache`), never in a table by id: ids
are used again after an abort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from depcache.cache import KVTree, Node
from depcache.plan import (
    ContextInsertion,
    PatchInsertion,
    RequestPlan,
    RowKind,
    SegmentTable,
    TailInsertion,
)
from depcache.prompt.behind import check_behind
from depcache.prompt.forest import Forest
from depcache.prompt.wire import WireIds, forest_from_wire
from depcache.select import select
from flashinfer_masks.visibility import Structure
from sglang_patches.contract import Request
from sglang_patches.requests.inner import SEEING_ROWS, STORING
from sglang_patches.requests.masses import MASSES, OVERHEADS, RowMasses, take_masses
from sglang_patches.requests.roots import ROOTS
from sglang_patches.requests.scoring import CHOSEN, SCORING, Scoring, prepare_scoring, take_param
from sglang_patches.requests.tenants import Namespace

ATTRIBUTE = "depcache"

SOURCES = ("shared", "shifted", "loaded", "missed", "recomputed", "plain")
"""Counts of a report that add up to the prompt. `tail` counts those of `plain` that were cached."""

# Why a request reuses less than the tree has; `fallback_reason` in its report.
POOL_TOO_SMALL = "the pool is too small to move cached rows"
NO_FREE_SLOTS = "no slots were free for moving cached rows"


def get_state(req: Request) -> RequestState | None:
    """The state of an SGLang request, None for a plain one."""
    return getattr(req, ATTRIBUTE, None)


class FirstSlice(list[Any]):
    """A list that any slice from its beginning has all of.

    SGLang sends a request's extra information cut to the output tokens of each message; a
    report that is to go with the first message would be lost if that has no token.
    """

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [] if key.start else list(self)
        return super().__getitem__(key)


class Handle:
    """What SGLang carries as `req.last_node`: the nodes that a request keeps from eviction.

    Opaque to the scheduler, which only locks and unlocks it as a whole. Its node list grows
    while the request computes its context; whoever appends a node locks it at once.

    to_load  of a plain request: nodes in host memory that follow behind `nodes`
    """

    __slots__ = ("nodes", "to_load")

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.to_load: list[Node] = []


@dataclass(slots=True, eq=False)
class PendingCopy:
    """Shifted hits whose target slots are allocated and whose copy is not launched yet.

    sources, targets  (n,) int64 KV slots
    homes, placed     (n,) int64 positions: keys turn from `homes` to `placed`
    """

    sources: np.ndarray
    targets: np.ndarray
    homes: np.ndarray
    placed: np.ndarray


@dataclass(slots=True, eq=False)
class RequestState:
    """One dependency request. Rows and indices as in `depcache.plan.request`.

    tokens          (num_tokens,) int64 the prompt in pre-order, as the client sent it
    decode_offset   position of row r >= num_tokens is r + decode_offset
    plan            None before the first match and after a retraction
    insertion       how the context gets into the tree; None whenever `plan` is
    tail            how what follows gets there; the same
    pending         copies allocated but not launched
    num_private     slots allocated for shifted copies, freed with the request's rows
    num_loaded      context tokens brought back from host memory for this request
    num_tail_loaded  tokens of the tail brought back for it
    is_running      the request was admitted and holds its handle's locks
    plan_s          seconds spent so far on preparing, matching and planning it
    trace           what is told of it to whoever watches; None while nobody does
    scores          of the context, where it runs for a selector that goes by them
    masses          what its rows give each other, where it is a flat prompt that is to tell
    overheads       per tree the share of it that is computed again, where rows are copies that past
                    prompts left; else None
    num_seeing      rows that say what they see, see `inner.SEEING_ROWS`; None where none does
    roots           what its rows begin with, see `requests.roots.ROOTS`; None where nobody asks
    """

    tokens: np.ndarray
    layout: str
    namespace: Namespace
    table: SegmentTable
    structure: Structure
    decode_offset: int
    plan: RequestPlan | None = None
    allow_shift: bool = True
    allow_load: bool = True
    handle: Handle = field(default_factory=lambda: Handle([]))
    insertion: ContextInsertion | None = None
    tail: TailInsertion | None = None
    pending: PendingCopy | None = None
    num_private: int = 0
    num_loaded: int = 0
    num_tail_loaded: int = 0
    is_running: bool = False
    fallback_reason: str | None = None
    is_reported: bool = False
    plan_s: float = 0.0
    trace: dict[str, Any] | None = None
    scores: Scoring | None = None
    masses: RowMasses | None = None
    overheads: list[float] | None = None
    num_seeing: int | None = None
    roots: dict[str, Any] | None = None

    @classmethod
    def make(
        cls,
        tokens: np.ndarray,
        wire: WireIds,
        namespace: Namespace,
        inner: Mapping[str, Any] | None = None,
    ) -> RequestState:
        """Prepare a request. Raises PromptError when structure and tokens do not fit.

        inner  what the server says to itself, see `sglang_patches.requests.inner`
        """
        forest, table = table_of(tokens, wire)
        structure, scores = forest.structure, None
        told = inner or {}
        if told.get(STORING):
            table = SegmentTable.storing(tokens, forest)
        if (by_score := take_param(told.get(SCORING))) is not None:
            structure, table, scores = prepare_scoring(tokens, forest, table, by_score)
        return cls(
            tokens=tokens,
            layout=wire.layout,
            namespace=namespace,
            table=table,
            structure=structure,
            decode_offset=int(table.positions[-1]) + 1 - forest.num_tokens,
            scores=scores,
            overheads=told.get(OVERHEADS),
            masses=take_masses(told.get(MASSES)),
            num_seeing=told.get(SEEING_ROWS),
            roots=told.get(ROOTS),
        )

    @property
    def num_tokens(self) -> int:
        return self.table.num_tokens

    @property
    def is_exact(self) -> bool:
        """A hit equals a recompute: layout or root give a node one position and one past."""
        return self.layout == "tree" or self.table.stored is not None

    def start(self, tree: KVTree, plan: RequestPlan) -> None:
        """Take over a fresh plan; forget what an earlier one had set up."""
        self.plan = plan
        if self.table.selected is not None:
            # What a fused request computes sees everything before it, a missed token as well.
            computed = plan.order[plan.num_hits : plan.num_context]
            in_context = computed[computed >= self.structure.system_len]
            self.structure = self.structure.recompute(in_context)
        if self.scores is not None:
            self.scores = self.scores.restart()
        if self.masses is not None:
            self.masses = self.masses.restart()
        self.handle = Handle(list(plan.nodes))
        num_computed = self.num_tokens - plan.num_hits - plan.num_tail
        if self.table.patches:
            self.insertion = PatchInsertion(
                tree, self.namespace, self.table, plan, num_computed=num_computed
            )
        else:
            self.insertion = ContextInsertion(
                tree,
                self.namespace,
                self.table,
                plan,
                num_computed=num_computed,
                is_exact=self.is_exact,
            )
        self.tail = TailInsertion(
            tree, self.namespace, self.table, plan, self.insertion, num_computed=num_computed
        )
        self.num_loaded = self.num_tail_loaded = 0
        self.is_running = False

    def forget_plan(self) -> None:
        """Back to the state before the first match; the prompt itself is kept."""
        self.plan = self.insertion = self.tail = None
        self.handle = Handle([])
        self.pending = None
        self.num_private = self.num_loaded = self.num_tail_loaded = 0
        self.is_running = False

    def row_positions(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) int64 position of each of the rows [start, stop)."""
        assert self.plan is not None
        rows = np.arange(start, stop)
        positions = rows + self.decode_offset
        num_prompt = max(0, min(stop, self.num_tokens) - start)
        index = self.plan.order[start : start + num_prompt]
        positions[:num_prompt] = self.table.positions[index]
        return positions

    def node_overheads(self) -> dict[Node, float]:
        """Nodes of its rows -> the share that is computed again; of several rows the least."""
        if self.overheads is None or self.plan is None:
            return {}
        found: dict[Node, float] = {}
        has_system = int(self.structure.system_len > 0)
        trees = self.structure.trees.tolist()
        for end, tree in zip(self.plan.ends[has_system:], trees, strict=True):
            overhead = self.overheads[tree]
            node = end
            while node is not None and found.get(node, 2.0) > overhead:
                found[node] = overhead
                node = node.parent
        node = self.plan.ends[0] if has_system else None
        while node is not None:  # read as it is, whatever the rows behind it
            found[node] = 0.0
            node = node.parent
        return found

    def tell(self, req: Request) -> None:
        """Adds to the report of `req` what its context was computed for, once all of it is.

        What the scores of its context have chosen; or what its rows gave each other, once.
        """
        if req.customized_info is None or (self.scores is None and self.masses is None):
            return
        [report] = req.customized_info[ATTRIBUTE]
        if self.scores is not None:
            report[CHOSEN] = self.scores.chosen()
        if self.masses is not None:
            report[MASSES] = self.masses.told()
            self.masses = None

    def _count_tables(self) -> dict[str, int | None]:
        """Rows that say what they see, and those of them none of whose tokens is computed."""
        assert self.plan is not None
        missed = self.plan.rows.by_segment(self.table)[:, RowKind.MISSED]
        num_cached = int((missed[min(self.structure.system_len, 1) :] == 0).sum())
        return {"found": self.num_seeing, "cached": num_cached}

    def report(self) -> dict[str, Any]:
        """The reply's `metadata.depcache`: how many tokens came from where."""
        plan = self.plan
        assert plan is not None
        num_shifted, num_recomputed = self.num_private, plan.num_recomputed
        num_reused = plan.num_shared + num_shifted + self.num_loaded
        return {
            "layout": self.layout,
            "prompt_tokens": self.num_tokens,
            "context_tokens": plan.num_context,
            "shared": plan.num_shared,
            "shifted": num_shifted,
            "loaded": self.num_loaded,
            "missed": plan.num_context - num_reused - num_recomputed,
            "recomputed": num_recomputed,
            "plain": self.num_tokens - plan.num_context,
            "tail": plan.num_tail_shared + self.num_tail_loaded,
            "fallback_reason": self.fallback_reason,
            **({"patched": plan.num_patched} if self.table.patches else {}),
            **({} if self.num_seeing is None else {"tables": self._count_tables()}),
        }


def table_of(tokens: np.ndarray, wire: WireIds) -> tuple[Forest, SegmentTable]:
    """The forest and the segments of a prompt. Raises PromptError when these do not fit it.

    tokens  (num_tokens,) int64 in pre-order
    """
    forest = forest_from_wire(tokens, wire)
    recompute = wire.recompute
    if recompute is None:
        return forest, SegmentTable.make(tokens, forest, wire.layout)
    behind = None if recompute.behind is None else check_behind(recompute.behind, forest)
    selected = select(forest, recompute)
    keeps = bool(recompute.patches)
    return forest, SegmentTable.make(
        tokens, forest, wire.layout, selected, behind, keeps_patches=keeps
    )


def to_log(report: dict[str, Any]) -> str:
    """A report in one line of `name=value`."""
    return " ".join(f"{name}={value!r}" for name, value in report.items() if value is not None)

# SPDX-License-Identifier: Apache-2.0
"""Fused requests on their way in: select, choose, settle, and then fuse.

A fused request is one or two requests of the engine. The first settles what is missing: an ordinary
dependency request for these rows alone, which makes them nodes of the tree, each alone behind the
system, and brings rows back from host and disk. The second is the request itself, with the
indices of the tokens that are computed again. So an answer depends on the prompt and on what was
asked, and not on what the cache happened to hold (docs/passages.md).

    read    on arrival: the forest, and from it the selected tokens
    choose  one look into the scheduler's cache: fuse, or answer the flat prompt where that is less
    settle  rows that are missing and will be of use; for a selector that goes by scores all rows,
            scored (`sglang_patches.requests.scoring`), and the selected tokens come back
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from depcache.config import Config
from depcache.errors import PromptError
from depcache.prompt.behind import Behind, tokens_seen
from depcache.prompt.forest import Forest, IntArray
from depcache.prompt.recompute import Recompute
from depcache.prompt.wire import without_wire
from depcache.prompt.wire_forms import Wire, WireIds
from depcache.select import ByScore, select, selectable
from depcache.select.cost import choose
from sglang_patches import compat
from sglang_patches.requests.copies import Copies
from sglang_patches.requests.evidence import lacking
from sglang_patches.requests.looks import looks_of, row_keys
from sglang_patches.requests.scoring import CHOSEN
from sglang_patches.requests.settling import SETTLES, ids_params, make_settling
from sglang_patches.requests.shadow import shadow
from sglang_patches.requests.state import ATTRIBUTE
from sglang_patches.requests.tenants import sealed

logger = logging.getLogger("depcache")

FUSED = "depcache_fused"  # attribute of a request: its `Fused`

_timeout_s = 2.0
_keeps_patches = False

CHEAPER = "the flat prompt computes no more tokens than fusing"
TIMED_OUT = "the missing rows were not settled in time"
FAILED = "the missing rows could not be settled"
GUARDED = "the quality guard found that fused answers differ too much"


def set_fused(config: Config) -> None:
    """Take over the settings, for this process."""
    global _timeout_s, _keeps_patches
    _timeout_s, _keeps_patches = config.settle_timeout_s, config.patches


@dataclass(slots=True, eq=False)
class Fused:
    """How one fused request is served.

    recompute    what was asked, with a share that the quality guard may have raised
    num_selected  tokens that are computed again; 0 when it is answered as flat prompt
    is_flat      it is answered as the flat prompt, which is exact
    reason       why, where nobody asked for it
    num_settled  tokens computed to settle rows, the system and one token of the task among them,
                 and to score them: the task once more, or system and context in one layer
    behind       what its rows stand behind; None: all of them behind the system alone
    by_score     what is chosen by scores that are not there yet; None where nothing is
    is_aborted   all requests were aborted since it was read, see `note_abort_of_all`
    """

    recompute: Recompute
    tokens: IntArray = field(repr=False)
    forest: Forest = field(repr=False)
    num_selected: int = 0
    is_flat: bool = False
    reason: str | None = None
    num_settled: int = 0
    behind: Behind | None = None
    by_score: ByScore | None = field(default=None, repr=False)
    is_aborted: bool = False

    @property
    def share(self) -> float:
        """The share that is computed again."""
        if self.recompute.select != "stored":
            return self.recompute.share
        return round(self.num_selected / max(self.forest.context_len, 1), 4)

    def report(self, differs: list[str]) -> dict[str, Any]:
        """What a reply says of it, beside the counts of every report.

        differs  in what the fused prompt differs from its flat text
        """
        told: dict[str, Any] = {
            "see": "flat" if self.is_flat else "fused",
            "select": self.recompute.select,
            "recompute": self.share,
            "settled": self.num_settled,
            "differs": [each for each in differs if each == "merging" or not self.is_flat],
        }
        behind = None if self.is_flat else self.behind
        num_behind = sum(each is not None for each in behind or ())
        if self.recompute.select == "stored":
            told["variants"] = num_behind
        elif behind is not None:
            told["behind"] = num_behind
        return told if self.reason is None else {**told, "fallback_reason": self.reason}


def read_fused(
    obj: Any, wire: Wire, tokens: IntArray, forest: Forest, behind: Behind | None = None
) -> None:
    """Choose the tokens of a fused request, and write its final form into `obj`.

    obj     GenerateReqInput with the ids of `tokens`; one that is not fused stays as it is
    wire    as it came
    behind  what its rows stand behind, as ids

    Raises PromptError for indices that do not fit, for two equal rows that came as ids, and for a
    pinned request without evidence.
    """
    recompute: Recompute | None = getattr(wire, "recompute", None)
    if recompute is None or hasattr(obj, SETTLES):  # a settling one needs no settling
        return
    if recompute.patches is None:
        recompute = replace(recompute, patches=_keeps_patches)
    if isinstance(wire, WireIds):  # a text may repeat itself, and may be somebody else's
        _refuse_equal_rows(tokens, forest)
    unproven = lacking(recompute)
    allowed = None if unproven else shadow().allow(recompute)
    fused = Fused(allowed or recompute, tokens, forest, behind=behind)
    seen = None if behind is None else tokens_seen(tokens, forest, behind)
    selected = select(forest, fused.recompute, seen)  # wrong indices are refused either way
    setattr(obj, FUSED, fused)
    if allowed is None:
        serve_flat(obj, fused, unproven or GUARDED)
        return
    recompute = allowed
    # What is computed again of copies is known once they are.
    is_all = recompute.select != "stored" and np.isin(selectable(forest, seen), selected).all()
    if recompute.share == 1 or is_all:
        serve_flat(obj, fused)
        return
    fused.num_selected = len(selected)
    fused.by_score = ByScore.of(forest, recompute, seen)
    _set_selected(obj, fused, selected.tolist())


def refuse_deviation(recompute: Recompute | None, manager: Any) -> None:
    """Raise PromptError where two layers of the model cannot be run by themselves.

    manager  SGLang's TokenizerManager
    """
    if recompute is None or recompute.select != "deviation":
        return
    if manager.server_args.enable_lora:
        raise PromptError(
            "the selector is deviation, which runs two layers of the model by themselves, and this "
            "server has LoRA adapters in them: use another selector"
        )
    if (num_layers := manager.model_config.num_hidden_layers) < 2:
        raise PromptError(
            f"the selector is deviation, which compares keys of the second layer, and this model "
            f"has {num_layers}: use another selector"
        )


def _refuse_equal_rows(tokens: IntArray, forest: Forest) -> None:
    """Raise PromptError where two rows have the same tokens: a repetition says nothing new."""
    stops = [*forest.structure.tree_starts[1:], forest.task_start]
    first: dict[bytes, int] = {}
    for row, (start, stop) in enumerate(zip(forest.structure.tree_starts, stops, strict=True)):
        same = first.setdefault(tokens[start:stop].tobytes(), row)
        if same != row:
            raise PromptError(
                f"rows {same} and {row} of a fused request have the same tokens: send each row once"
            )


def serve_flat(obj: Any, fused: Fused, reason: str | None = None) -> None:
    """Make `obj` the flat prompt of its tokens: every one sees all before it, nothing is moved.

    Its context is one segment, so it reuses what plain prompts that begin alike have cached, and
    they what it caches.
    """
    fused.is_flat, fused.reason, fused.num_selected = True, reason, 0
    forest = fused.forest
    flat = Forest.make(
        forest.num_tokens,
        forest.system_len,
        *(([forest.context_len], [-1]) if forest.context_len else ([], [])),
    )
    _set_params(obj, ids_params(flat))


def judge(manager: Any, obj: Any, answer: list[int]) -> None:
    """Have the answer of a request judged, if it was fused as the server saw fit.

    answer  its token ids
    """
    fused: Fused | None = getattr(obj, FUSED, None)
    if fused is None or fused.is_flat:
        return
    if not fused.recompute.is_pinned and fused.recompute.selected is None:
        shadow().note(manager, obj, fused.tokens.tolist(), answer)


def note_abort_of_all(manager: Any) -> None:
    """All requests are being aborted: those that settle rows too, of which SGLang has none yet."""
    for state in manager.rid_to_state.values():
        fused: Fused | None = getattr(state.obj, FUSED, None)
        if fused is not None:
            fused.is_aborted = True


async def settle(manager: Any, obj: Any) -> None:
    """Choose between fusing and the flat prompt, and settle what is missing for the former.

    What goes wrong costs the reuse, and the flat prompt is answered. Raises ValueError if the
    request itself was aborted meanwhile: SGLang has no request yet that it could abort.
    """
    fused: Fused | None = getattr(obj, FUSED, None)
    if fused is None or fused.is_flat:
        # Here and not where it was read: `/depcache/explain` reads too, and changes nothing.
        if fused is not None and fused.reason == GUARDED:
            shadow().pass_over()
        return
    try:
        async with asyncio.timeout(None if fused.recompute.is_pinned else _timeout_s):
            await _settle(manager, obj, fused)
    except TimeoutError:
        serve_flat(obj, fused, TIMED_OUT)
    except asyncio.CancelledError:
        raise
    except Exception:
        if not _is_aborted(manager, obj, fused):
            logger.exception("request %s: its rows could not be settled", obj.rid)
            serve_flat(obj, fused, FAILED)
    if _is_aborted(manager, obj, fused):
        raise ValueError(f"request {obj.rid} was aborted")


def _is_aborted(manager: Any, obj: Any, fused: Fused) -> bool:
    return fused.is_aborted or compat.was_aborted(manager, obj.rid)


async def _settle(manager: Any, obj: Any, fused: Fused) -> None:
    looks = looks_of(manager)
    tenant, lora_id = sealed(obj), getattr(obj, "lora_id", None)
    keys = row_keys(fused.tokens, fused.forest, tenant, fused.behind, lora_id)

    async def look() -> dict[str, Any]:
        return await looks.look(
            {
                "input_ids": fused.tokens.tolist(),
                "extra_key": tenant,
                "lora_id": lora_id,
                "custom_params": obj.sampling_params["custom_params"],
            }
        )

    copies: Copies | None = None
    if fused.recompute.select == "stored":
        copies = Copies(looks.variants, keys, fused.forest, fused.tokens, fused.recompute.alpha)
        found = await copies.place(look, lambda chosen: _take_copies(obj, fused, chosen))
    else:
        found = await look()
    missing: list[int] = found["missing_by_tree"]
    met = looks.forecast.meet(keys, [not num for num in missing])
    forest, by_score = fused.forest, fused.by_score
    num_layers = manager.model_config.num_hidden_layers
    num_scoring = by_score.num_computed(forest, num_layers) if by_score else 0
    choice = choose(
        missing=missing,
        num_missing_system=found["missing_system"],
        met=met,
        num_selected=fused.num_selected,
        num_context=forest.task_start,
        num_prefix=found["prefix"],
        num_task=forest.task_len,
        share=fused.share,
        is_pinned=fused.recompute.is_pinned,
        num_scoring=num_scoring,
        # Until there are scores nobody knows which tokens are selected.
        num_patched=found["patched"] if fused.recompute.patches and not by_score else None,
    )
    is_all = copies is not None and copies.is_all
    if is_all or not choice.is_fused:
        serve_flat(obj, fused, None if is_all else CHEAPER)
        if copies is not None:
            copies.ask_for_masses(obj)
        return
    if copies is not None:
        copies.use(obj)
    if choice.settled or by_score is not None:
        max_tokens = manager.context_len - manager.num_reserved_tokens
        reports: list[dict[str, Any]] = []
        for requests in make_settling(
            obj, fused.tokens, forest, choice.settled, fused.behind, max_tokens, by_score
        ):
            outs = await asyncio.gather(
                *(compat.run_beside(manager, request) for request in requests)
            )
            reports = [_report_of(out) for out in outs]
            fused.num_settled += sum(each["missed"] + each["plain"] for each in reports)
        if by_score is not None:
            fused.num_settled += by_score.num_beside(forest, num_layers)  # which is in no report
            if (chosen := reports[0][CHOSEN]) is None:
                raise RuntimeError("no scores came back")
            fused.num_selected = len(chosen)
            _set_selected(obj, fused, chosen)


def _report_of(out: dict[str, Any]) -> dict[str, Any]:
    """The report of a settling request. RuntimeError if it was aborted: its rows may be missing."""
    meta = out["meta_info"]
    if meta["finish_reason"]["type"] == "abort":
        raise RuntimeError(f"{meta['id']} was aborted")
    return meta[ATTRIBUTE]


def _take_copies(obj: Any, fused: Fused, copies: Copies) -> None:
    fused.behind, fused.num_selected = copies.behind, len(copies.selected)
    has_focus = fused.recompute.focus is not None and fused.num_selected > 0
    fused.by_score = ByScore(copies.selected, (0,), has_focus=True) if has_focus else None
    _set_selected(obj, fused, copies.selected.tolist())


def _set_selected(obj: Any, fused: Fused, selected: list[int]) -> None:
    given = Recompute(
        select="given",
        selected=tuple(selected),
        behind=fused.behind,
        patches=fused.recompute.patches or None,
    )
    params = {**ids_params(fused.forest), "depcache_layout": "sequential", **given.to_params()}
    _set_params(obj, params)


def _set_params(obj: Any, params: dict[str, Any]) -> None:
    others = without_wire(obj.sampling_params["custom_params"])
    obj.sampling_params = {**obj.sampling_params, "custom_params": {**others, **params}}

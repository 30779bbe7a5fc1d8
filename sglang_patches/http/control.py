# SPDX-License-Identifier: Apache-2.0
"""Questions from the HTTP process to the cache, answered inside the scheduler.

A question is JSON in the request id of SGLang's state query; see `hooks/scheduler_state.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np

from depcache.cache import Node, Root
from depcache.errors import PromptError
from depcache.plan import SegmentTable, count_patched, look_up, match_segments
from depcache.plan.behind_key import read_behind_key
from depcache.prompt.wire import WireIds, parse_wire
from sglang_patches.contract import Scheduler
from sglang_patches.observe.stats import dump_tree, make_stats
from sglang_patches.requests.adapters import ADAPTERS
from sglang_patches.requests.state import table_of
from sglang_patches.requests.tenants import Namespace, kv_layout
from sglang_patches.tiers.names import DEVICE, DISK, HOST

logger = logging.getLogger("depcache")

QUESTION_PREFIX = "depcache:"


def make_question(question: dict[str, Any]) -> str:
    """The request id that carries `question`."""
    return QUESTION_PREFIX + json.dumps(question)


def is_question(rid: str | None) -> TypeGuard[str]:
    """Whether a state query's request id carries a question."""
    return rid is not None and rid.startswith(QUESTION_PREFIX)


def answer(scheduler: Scheduler, rid: str | None) -> dict[str, Any]:
    """The cache's state, and under `reply` the answer to the question in `rid`, if any.

    Raises nothing: what goes wrong with a question, even by a fault of ours, is the error of this
    question. The scheduler that is asked serves everybody else as well.
    """
    cache = scheduler.tree_cache
    state: dict[str, Any] = {}
    try:
        state["cache"] = cache.describe()
        if is_question(rid):
            question = json.loads(rid[len(QUESTION_PREFIX) :])
            state["reply"] = _ANSWERS[question["ask"]](cache, question)
    except PromptError as error:
        state["error"] = str(error)
    except Exception as error:
        logger.exception("a question could not be answered")
        state["fault"] = f"the question could not be answered ({type(error).__name__}: {error})"
    return state


def _explain(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """What the plan for a prompt would be now. Changes nothing.

    `on_disk` are those of the missed that a request could have brought from disk while it waits.
    `tail` is of what follows the context, which is in no other number. `selected` is told of a
    fused request: so many tokens are computed again, whatever the other numbers count of them.
    """
    table, root = _table_and_root(cache, question)
    plan = look_up(cache.tree, root, table, num_tiers=1)  # the others only while it waits
    num_hits = plan.num_cached
    num_on_disk = 0
    if cache.disk is not None and not cache.disk.is_off:
        num_on_disk = look_up(cache.tree, root, table).num_cached - num_hits
    return {
        "shared": plan.shared,
        "shifted": plan.shifted,
        "loaded": sum(plan.in_tiers),
        "missed": table.task_start - num_hits,
        "on_disk": num_on_disk,
        "tail": plan.tail,
        "sources_by_segment": [
            (*parts, stop - start - sum(parts))
            for parts, start, stop in zip(plan.by_segment, table.starts, table.stops, strict=True)
        ],
        **({} if table.selected is None else {"selected": int(table.selected.sum())}),
    }


def _missing(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """For each of the prompts, per tree the tokens that are not on the device, and the prefix.

    `prefix` is what a plain prompt of the same tokens would find of the context. Changes nothing.
    """
    return {"found": [_missing_of(cache, prompt) for prompt in question["prompts"]]}


def _missing_of(cache: Any, prompt: dict[str, Any]) -> dict[str, Any]:
    table, root = _table_and_root(cache, prompt)
    found = look_up(cache.tree, root, table, num_tiers=0)
    missing: list[int] = []
    missing_system = 0
    has_system = prompt["custom_params"]["depcache_system_len"] > 0
    for segment, (start, stop, parent) in enumerate(
        zip(table.starts, table.stops, table.parents, strict=True)
    ):
        num_missing = stop - start - found.matched[segment]
        if segment == 0 and has_system:
            missing_system = num_missing
            continue
        if parent < has_system:
            missing.append(0)
        # To settle a row is to compute what it stands behind, too.
        missing[-1] += num_missing + found.unhidden.get(segment, 0)
    tokens = np.array(prompt["input_ids"][: table.task_start], dtype=np.int64)
    plain = look_up(cache.tree, root, SegmentTable.of_plain_prompt(tokens), num_tiers=1)
    return {
        "missing_by_tree": missing,
        "missing_system": missing_system,
        "patched": count_patched(cache.tree, root.namespace, table, found.matched),
        "prefix": plain.shared + sum(plain.in_tiers),
    }


def _prefetch(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Begin to bring the prompt's context from disk to host memory; tokens by where they are."""
    table, root = _table_and_root(cache, question)
    found = look_up(cache.tree, root, table)
    num_fetched = 0
    if cache.disk is not None:
        nodes = cache.tiers.by_name(found.tier_nodes)
        num_fetched = cache.disk.fetch(nodes[DISK], nodes[HOST])
    return {
        "tokens": {
            DEVICE: found.shared + found.shifted,
            **dict.fromkeys((HOST, DISK), 0),
            **cache.tiers.by_name(found.in_tiers),
        },
        "fetched": num_fetched,
        "missing": table.task_start - found.num_cached,
    }


def _invalidate(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Give up all that begins with one of the prompt's paths, whatever its layout and position.

    Of every tenant, unless the question has an `extra_key`. What led there and nowhere else goes
    as well, but not the system. With `ends_only` segments stay that others stand behind, or see.
    """
    table, _ = _table_and_root(cache, question)
    ends_only: bool = question["ends_only"]
    inner = {*table.parents, *(table.seen if ends_only else ())}
    leaves = sorted(set(range(table.num_segments)) - inner)
    has_system = question["custom_params"]["depcache_system_len"] > 0
    tenant = question["extra_key"]
    before = _cached_tokens(cache)
    num_kept = 0
    for namespace in cache.tree.namespaces():
        if tenant is not None and namespace.tenant != tenant:
            continue
        root = cache.tree.root(namespace)
        found = match_segments(cache.tree, root, table, any_position=True)
        top = found.ends[0] if has_system else root
        for leaf in leaves:
            end, above = found.ends[leaf], table.parents[leaf]
            if end is None or end.parent is None:  # gone with a row that begins alike
                continue
            if found.matched[leaf] == table.stops[leaf] - table.starts[leaf]:
                stays = found.ends[above] if ends_only and above >= 0 else top
                num_kept += _forget(cache, end, stays)
    num_kept += _invalidate_behind(cache, [table.path(leaf) for leaf in leaves], tenant)
    after = _cached_tokens(cache)
    gone = {tier: before[tier] - after[tier] for tier in before}
    if cache.disk is not None:
        paths = [table.path(leaf) for leaf in leaves]
        gone[DISK] += cache.disk.found.forget(paths, tenant, table.behind_of(leaves))
    return {"tokens": gone, "in_use": num_kept}


def _invalidate_behind(cache: Any, paths: list[bytes], tenant: str | None) -> int:
    """Give up rows that stand behind several chunks, where a path is such a row or such a chunk.

    O(rows that are cached so).
    """
    wanted = set(paths)
    num_kept = 0
    for root in cache.tree.roots():
        known = read_behind_key(root.behind)
        if known is None or (tenant is not None and root.namespace.tenant != tenant):
            continue
        system, chunks = known
        is_behind = any(system + chunk in wanted for chunk in chunks)
        ways = [(node, system + node.key) for node in list(root.children.values())]
        while ways:
            node, way = ways.pop()
            if is_behind or way in wanted:
                num_kept += _forget(cache, node, None)
            else:
                ways += [(child, way + child.key) for child in node.children.values()]
    return num_kept


def _forget(cache: Any, node: Node, top: Node | None) -> int:
    """Give up `node`, what is below, and above it up to `top` what leads to nothing any more."""
    above = node.parent
    num_kept = cache.forget([node])[1]
    while above is not None and above is not top and above.parent is not None:
        if above.children or above.tails or above.locks:
            break
        node, above = above, above.parent
        cache.forget([node])
    return num_kept


def _cached_tokens(cache: Any) -> dict[str, int]:
    return {
        DEVICE: cache.tree.num_tokens,
        **{tier.copies.tier: tier.copies.num_tokens for tier in cache.tiers},
    }


def _persist(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Begin to write to disk whatever is not there yet; the tokens that are on their way."""
    if cache.disk is None:
        raise PromptError("this server has no disk tier: start it with disk_gb and host_gb")
    return {"tokens": cache.disk.write_all()}


def _keep_disk(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Whether the next flush leaves the values on disk."""
    cache.keeps_disk = question["keep"]
    return {}


def _watch(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Trace the requests of the next seconds; nothing of them is kept here."""
    cache.dependency.watch.keep_on(question["seconds"])
    return {"capacity_tokens": cache.token_to_kv_pool_allocator.size}


def _roots(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """All roots that are held, for a listener that has missed events."""
    if cache.root_events is None:
        raise PromptError(
            "this server publishes no root events: start it with root_events=tcp://..., an address"
        )
    return cache.root_events.snapshot()


def _table_and_root(cache: Any, question: dict[str, Any]) -> tuple[SegmentTable, Root]:
    """The segments of the question's prompt, and the root of its namespace.

    `lora_id`, where the question has one, is SGLang's id of its adapter.
    """
    wire = parse_wire(question["custom_params"])
    if not isinstance(wire, WireIds):
        raise PromptError("the question needs dependency data in ids form: send segments")
    _, table = table_of(np.array(question["input_ids"], dtype=np.int64), wire)
    lora_id = question.get("lora_id")
    adapter = None if lora_id is None else ADAPTERS.digest_of(lora_id)
    return table, cache.tree.root(Namespace(question["extra_key"], kv_layout(wire), adapter))


_ANSWERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "state": lambda cache, question: {},  # which every reply has
    "explain": _explain,
    "missing": _missing,
    "stats": lambda cache, question: make_stats(cache),
    "prefetch": _prefetch,
    "invalidate": _invalidate,
    "persist": _persist,
    "keep_disk": _keep_disk,
    "roots": _roots,
    "watch": _watch,
    "tree": lambda cache, question: dump_tree(cache, question["limit"]),
}

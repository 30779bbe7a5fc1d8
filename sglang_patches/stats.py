# SPDX-License-Identifier: Apache-2.0
"""What the cache holds, by tier, and its nodes one by one: the answers of two routes."""

from __future__ import annotations

from typing import Any

from depcache.cache import Node
from sglang_patches.tiers.host_pool import bytes_per_token


def make_stats(cache: Any) -> dict[str, Any]:
    """The body of GET /depcache/stats. Constant time: nothing is scanned.

    Tokens and nodes are those held now; hits, insertions, evictions and loads are tokens since
    the server started.
    """
    tree, host, counters = cache.tree, cache.host, cache.counters
    row_bytes = bytes_per_token(cache.token_to_kv_pool_allocator.get_kvcache())
    tiers: dict[str, Any] = {
        "device": {
            "nodes": tree.num_resident,
            "tokens": tree.num_tokens,
            "locked_tokens": tree.num_locked,
            "bytes": tree.num_tokens * row_bytes,
            "capacity_tokens": cache.token_to_kv_pool_allocator.size,
            "hits": counters["shared"] + counters["shifted"],
            "inserted": tree.counters.inserted,
            "evicted": tree.counters.evicted,
        }
    }
    if host is not None:
        tiers["host"] = {
            "nodes": host.copies.num_nodes,
            "tokens": host.copies.num_tokens,
            "bytes": host.copies.num_tokens * host.mover.bytes_per_token,
            "capacity_tokens": host.mover.num_tokens,
            "hits": counters["loaded"],
            "inserted": host.mover.counters["stored_tokens"],
            "evicted": host.copies.evicted,
            "dropped": host.dropped,
        }
    disk = cache.disk
    if disk is not None:
        tiers["disk"] = {
            "nodes": disk.copies.num_nodes,
            "tokens": disk.copies.num_tokens,
            "bytes": disk.tier.used_bytes,
            "capacity_bytes": disk.tier.capacity_bytes,
            "hits": disk.loaded,
            "inserted": disk.stored,
            "evicted": disk.copies.evicted,
            "waiting_tokens": disk.num_waiting,
            "recomputed": disk.recomputed,
            "misses": dict(disk.tier.misses),
            "dropped": dict(disk.tier.dropped),
            "is_off": disk.is_off,
        }
    return {
        "eviction_policy": tree.policy.name,
        "requests": {name: counters[name] for name in counters if name.endswith("requests")},
        "tokens": {
            name: counters[name] for name in ("shared", "shifted", "loaded", "missed", "plain")
        },
        "waiting_requests": len(cache.waiting_queue),
        "known_nodes": tree.num_nodes,
        "tiers": tiers,
    }


def dump_tree(cache: Any, limit: int) -> dict[str, Any]:
    """The body of GET /depcache/tree: at most `limit` nodes, parents before children."""
    numbers: dict[Node, int] = {}
    nodes: list[dict[str, Any]] = []
    for node in cache.tree.nodes():
        if len(nodes) == limit:
            break
        numbers[node] = len(nodes)
        tiers = [
            name
            for name, copy in (("device", node.slots), ("host", node.host), ("disk", node.disk))
            if copy is not None
        ]
        nodes.append(
            {
                "node": len(nodes),
                "parent": None if node.parent is None else numbers.get(node.parent),
                "namespace": repr(cache.tree.namespace(node)),
                "num_tokens": node.num_tokens,
                "position": node.home,
                "tiers": tiers,
                "hits": node.hits,
                "locks": node.locks,
                "waiting": len(node.waiters or ()),
            }
        )
    return {"nodes": nodes, "is_cut": len(nodes) < cache.tree.num_nodes}


def to_dot(dump: dict[str, Any]) -> str:
    """The tree of `dump_tree` for Graphviz; what is on the device is drawn in a full line."""
    lines = ["digraph depcache {", "  node [shape=box];"]
    for node in dump["nodes"]:
        label = f"{node['num_tokens']} tokens at {node['position']}\\n{node['hits']} hits"
        style = "solid" if "device" in node["tiers"] else "dashed"
        lines.append(f'  n{node["node"]} [label="{label}", style={style}];')
        if node["parent"] is not None:
            lines.append(f"  n{node['parent']} -> n{node['node']};")
    return "\n".join([*lines, "}"]) + "\n"

# SPDX-License-Identifier: Apache-2.0
"""What the cache holds, by tier, and its nodes one by one: the answers of two routes."""

from __future__ import annotations

from typing import Any

from depcache.cache import Node
from depcache.cache.radix import to_tokens
from sglang_patches.requests.state import SOURCES
from sglang_patches.tiers.host.pool import bytes_per_token
from sglang_patches.tiers.names import DEVICE, DISK, HOST


def make_stats(cache: Any) -> dict[str, Any]:
    """The body of GET /depcache/stats. Nothing is scanned but what waits to be written."""
    tree, counters = cache.tree, cache.counters
    tiers = describe_tiers(cache)
    for name, tier in tiers.items():
        tier["age"] = cache.ages.describe(name)
    if cache.disk is not None:
        tiers[DISK]["waiting_tokens"] = cache.disk.num_waiting
    return {
        "eviction_policy": tree.policy.name,
        "requests": {name: counters[name] for name in counters if name.endswith("requests")},
        "tokens": {name: counters[name] for name in (*SOURCES, "tail")},
        "measured": cache.bandwidth.describe(),
        "waiting_requests": len(cache.waiting_queue),
        "known_nodes": tree.num_nodes,
        "tiers": tiers,
    }


def describe_tiers(cache: Any) -> dict[str, dict[str, Any]]:
    """What each tier holds and did. Constant time; the metrics read it for every request.

    Tokens, nodes and bytes are those held now; hits, insertions, evictions and loads are tokens
    since the server started. `dropped_nodes`, and `failures` where a tier can fail, are counts
    by reason; reasons are words out of a fixed few. Seconds are those of `DiskWaits`.
    """
    tree, host, counters = cache.tree, cache.host, cache.counters
    allocator = cache.token_to_kv_pool_allocator
    row_bytes = bytes_per_token(allocator.get_kvcache())
    tiers: dict[str, Any] = {
        DEVICE: {
            "nodes": tree.num_resident,
            "tokens": tree.num_tokens,
            "locked_tokens": tree.num_locked,
            "bytes": tree.num_tokens * row_bytes,
            "bytes_per_token": row_bytes,
            "capacity_tokens": allocator.size,
            "capacity_bytes": allocator.size * row_bytes,
            "hits": counters["shared"] + counters["shifted"],
            "inserted": tree.counters.inserted,
            "evicted": tree.counters.evicted,
            "evicted_nodes": tree.counters.evicted_nodes,
        }
    }
    if host is not None:
        tiers[HOST] = {
            "nodes": host.copies.num_nodes,
            "tokens": host.copies.num_tokens,
            "bytes": host.copies.num_tokens * host.mover.bytes_per_token,
            "bytes_per_token": host.mover.bytes_per_token,
            "capacity_tokens": host.mover.num_tokens,
            "capacity_bytes": host.mover.num_tokens * host.mover.bytes_per_token,
            "hits": counters["loaded"],
            "inserted": host.mover.counters["stored_tokens"],
            "evicted": host.copies.evicted,
            "evicted_nodes": host.copies.evicted_nodes,
            "loaded": host.mover.counters["loaded_tokens"],
            "dropped": host.dropped,
            "dropped_nodes": dict(host.dropped_nodes),
        }
    if cache.disk is not None:
        tiers[DISK] = _describe_disk(cache.disk)
    return tiers


def _describe_disk(disk: Any) -> dict[str, Any]:
    return {
        "nodes": disk.copies.num_nodes,
        "tokens": disk.copies.num_tokens,
        "bytes": disk.tier.used_bytes,
        "capacity_bytes": disk.tier.capacity_bytes,
        "hits": disk.loaded,
        "inserted": disk.stored,
        "evicted": disk.copies.evicted,
        "evicted_nodes": disk.copies.evicted_nodes,
        "loaded": disk.loaded,
        "recomputed": disk.recomputed,
        "fetch_seconds": disk.waits.fetch_s,
        "wait_seconds": disk.waits.wait_s,
        "failures": dict(disk.tier.misses),
        "dropped_nodes": dict(disk.tier.dropped),
        "is_off": disk.is_off,
    }


MAX_SHOWN_TOKENS = 32


def dump_tree(cache: Any, limit: int) -> dict[str, Any]:
    """The body of GET /depcache/tree: at most `limit` nodes, parents before children.

    Each node has its first `MAX_SHOWN_TOKENS` token ids; `add_text` puts words in their place.
    """
    numbers: dict[Node, int] = {}
    nodes: list[dict[str, Any]] = []
    for node in cache.tree.nodes():
        if len(nodes) == limit:
            break
        numbers[node] = len(nodes)
        above = node.parent
        assert above is not None
        number = numbers.get(above)  # None below a root
        tiers = [name for name in cache.tiers.names if name in node.copies]
        if node.slots is not None:
            tiers.insert(0, DEVICE)
        nodes.append(
            {
                "node": len(nodes),
                "parent": number,
                "namespace": repr(above.root.namespace.parts)
                if number is None
                else nodes[number]["namespace"],
                # The key of a patch holds places in its row, which have no text.
                "tokens": []
                if above.root.is_patch
                else to_tokens(node.key)[:MAX_SHOWN_TOKENS].tolist(),
                "num_tokens": node.num_tokens,
                "position": node.home,
                "tiers": tiers,
                "hits": node.hits,
                "locks": node.locks,
                "waiting": len(node.waiters or ()),
            }
        )
    return {"nodes": nodes, "is_cut": len(nodes) < cache.tree.num_nodes}


def add_text(dump: dict[str, Any], tokenizer: Any) -> None:
    """Replace the `tokens` of each node by its `text`, cut with an ellipsis where it is longer.

    SGLang takes negative ids in a plain prompt; they have no text. Without a tokenizer the ids
    are the text.
    """
    nodes = dump["nodes"]
    if not nodes:
        return  # of no sequences a tokenizer makes one text
    tokens = [[token for token in node.pop("tokens") if token >= 0] for node in nodes]
    if tokenizer is None:
        texts = [" ".join(map(str, ids)) for ids in tokens]
    else:
        texts = tokenizer.batch_decode(tokens)
    for node, text in zip(nodes, texts, strict=True):
        node["text"] = text + "…" * (node["num_tokens"] > MAX_SHOWN_TOKENS)


def to_dot(dump: dict[str, Any]) -> str:
    """The tree of `dump_tree` for Graphviz; what is on the device is drawn in a full line."""
    lines = ["digraph depcache {", "  node [shape=box];"]
    for node in dump["nodes"]:
        # In a label a backslash begins an escape, and a quote ends it.
        words = " ".join(node["text"].split()).replace("\\", "\\\\").replace('"', '\\"')
        label = f"{words}\\n{node['num_tokens']} tokens at {node['position']}, {node['hits']} hits"
        style = "solid" if DEVICE in node["tiers"] else "dashed"
        lines.append(f'  n{node["node"]} [label="{label}", style={style}];')
        if node["parent"] is not None:
            lines.append(f"  n{node['parent']} -> n{node['node']};")
    return "\n".join([*lines, "}"]) + "\n"

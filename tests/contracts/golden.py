# SPDX-License-Identifier: Apache-2.0
"""What a server makes of a fixed set of requests, to be compared with what it once made of them.

The requests are bodies in version 1 of the wire, read with depcache-tiny's tokenizer. Each is
planned and cached as by a server, in one small pool with host memory below it. `golden.json` beside
this file holds what commit 95e7062 made of them, before insertion, tiers and namespaces moved.
Since then `tail` in reports and its metric came in.

`python -m tests.contracts.golden > tests/contracts/golden.json` writes it anew. Do that only for a
change that is meant, and say in its commit what changed.
"""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from depcache.cache import KVTree, make_policy
from depcache.plan import plan_request
from depcache.prompt.template import get_template
from depcache.prompt.wire import WireIds, parse_wire
from depcache.serving.tiny import TINY_NAME, resolve_model
from flashinfer_masks.dense import dense_mask
from flashinfer_masks.visibility import Step
from sglang_patches.observe.metrics import PrometheusMetrics
from sglang_patches.requests.inbound import prepare
from sglang_patches.requests.params import custom_params_of
from sglang_patches.requests.state import POOL_TOO_SMALL, RequestState
from sglang_patches.requests.tenants import Namespace
from sglang_patches.tiers.bandwidth import Bandwidth
from sglang_patches.tiers.host.residency import HostResidency
from sglang_patches.tiers.host.tier import HostTier
from tests.sglang_patches.tiers.disk.make import make_pool

POOL_TOKENS = 400
CONTEXT_LEN = 2048

ADA = ("Ada Lovelace", "born in", "London")
ENGLAND = (*ADA, "located in", "England")
THAMES = (*ADA, "on", "Thames")
ENGINE = ("Ada Lovelace", "worked on", "Analytical Engine")
BABBAGE = ("Charles Babbage", "born in", "London")
HOPPER = ("Grace Hopper", "born in", "New York City", "on", "Hudson")
SYSTEM = "Answer from these facts:"

Request = tuple[str, str, str, str, tuple[tuple[str, ...], ...], str, str | None]
"""(name, layout, template, system, paths, task, tenant)"""

REQUESTS: tuple[Request, ...] = (
    ("first", "tree", "path", SYSTEM, (ENGLAND, THAMES, ENGINE), "Where was Ada born?", None),
    ("again", "tree", "path", SYSTEM, (ENGLAND, THAMES, ENGINE), "Who was Ada?", None),
    ("other order", "tree", "path", SYSTEM, (BABBAGE, ENGINE, ADA), "Where is London?", None),
    ("triples", "tree", "triple", SYSTEM, (ENGLAND, HOPPER), "On which river?", None),
    ("no system", "tree", "path", "", (HOPPER, ("Grace Hopper",)), "Who?", None),
    ("whole and half", "tree", "path", SYSTEM, (ADA, ENGLAND, ADA), "Where?", "tenant"),
    ("staggered", "staggered", "path", SYSTEM, (ENGINE, BABBAGE, HOPPER), "Who?", None),
    ("staggered, moved", "staggered", "path", SYSTEM, (HOPPER, BABBAGE), "Who?", None),
    ("sequential", "sequential", "path", SYSTEM, (ENGLAND, THAMES, BABBAGE), "Who?", None),
    ("sequential, moved", "sequential", "path", SYSTEM, (BABBAGE, ENGLAND), "Who?", None),
    ("from host", "tree", "path", SYSTEM, (BABBAGE, ENGLAND, HOPPER), "Where?", None),
)
EVICT_BEFORE = "from host"
VERSIONS = {"version", "sglang_version"}


def body_of(request: Request) -> dict[str, Any]:
    """The body of POST /generate: version 1, text form."""
    _, layout, template, system, paths, task, _ = request
    flat = get_template(template).flatten(paths)
    params = {
        "depcache_version": 1,
        "depcache_layout": layout,
        "depcache_template": template,
        "depcache_paths": json.dumps(paths),
    }
    return {"text": f"{system}{flat}\n{task}", "sampling_params": {"custom_params": params}}


class Server:
    """As much of a server as decides what is done with the rows of a prompt."""

    def __init__(self) -> None:
        from transformers import AutoConfig, AutoTokenizer

        model = resolve_model(TINY_NAME)
        config = AutoConfig.from_pretrained(model)
        self._manager = SimpleNamespace(
            tokenizer=AutoTokenizer.from_pretrained(model),
            context_len=CONTEXT_LEN,
            num_reserved_tokens=0,
            model_config=SimpleNamespace(vocab_size=config.vocab_size, hf_text_config=config),
        )
        pool = make_pool(num_tokens=POOL_TOKENS, num_layers=1, num_heads=1, head_dim=2)
        mover = HostTier(pool, POOL_TOKENS * 16)
        self.tree = KVTree(make_policy("lru"))
        self.host = HostResidency(self.tree, mover, Bandwidth(16))
        self.tree.tiers.append(self.host)
        self._free = list(range(1, POOL_TOKENS + 1))

    def ask(self, request: Request) -> dict[str, Any]:
        """What becomes of a request: the ids form, its report, and what each row is."""
        from sglang.srt.managers.io_struct import GenerateReqInput

        obj = GenerateReqInput(**body_of(request))
        prepare(obj, self._manager)
        params = custom_params_of(obj)
        wire = parse_wire(params)
        assert isinstance(wire, WireIds)
        tokens = np.array(obj.input_ids, np.int64)
        state = RequestState.make(tokens, wire, Namespace(request[-1], wire.depcache_layout))
        plan = plan_request(self.tree, self.tree.root(state.namespace), state.table)
        state.start(self.tree, plan)
        self.tree.lock(plan.nodes)
        taken = list(plan.nodes)
        assert state.insertion is not None
        if plan.loaded:
            moved = self.host.load(plan.loaded, plan.num_shifted, self._alloc)
            assert moved is not None
            self.tree.lock(plan.loaded)
            taken += plan.loaded
            state.insertion.own_loaded()
            state.num_loaded = plan.num_loaded
        else:
            moved = self._alloc(plan.num_shifted)
        state.num_private = plan.num_shifted
        computed = self._alloc(state.num_tokens - plan.num_hits)
        row = np.concatenate((plan.shared_slots, moved, computed))
        self.tree.touch(dict.fromkeys(taken))
        offer = state.insertion.offer(plan.num_context, row)
        told = {
            "input_ids": obj.input_ids,
            "custom_params": params,
            "report": state.report(),
            "order": plan.order.tolist(),
            "kinds": plan.rows.kind.tolist(),
            "slots": row.tolist(),
            "positions": state.row_positions(0, state.num_tokens + 2).tolist(),
            "moves": [
                plan.shifted.slots.tolist(),
                plan.shifted.home.tolist(),
                plan.shifted.placed.tolist(),
            ],
            "inserted_nodes": [node.num_tokens for node in offer.taken],
            "duplicates": [duplicate.row for duplicate in offer.duplicates],
            **self._masks(state, plan),
        }
        self.tree.unlock(taken + offer.taken)
        self._free += row[~state.insertion.owned].tolist()
        for duplicate in offer.duplicates:
            self._free += duplicate.own.tolist()
        self.host.take_loads()
        return told

    def evict(self, num_tokens: int) -> list[list[int]]:
        """Make room; the slots of the victims, node by node."""
        victims = [slots.tolist() for slots in self.tree.tiers.evict(self.tree, num_tokens)]
        for slots in victims:
            self._free += slots
        return victims

    def _alloc(self, num_slots: int) -> np.ndarray:
        self._free.sort()
        slots, self._free = self._free[:num_slots], self._free[num_slots:]
        return np.array(slots, np.int64)

    @staticmethod
    def _masks(state: RequestState, plan: Any) -> dict[str, Any]:
        """Whom each computed row sees: how many rows, and a digest of which."""
        num_new = state.num_tokens - plan.num_hits
        mask = dense_mask(Step(state.structure, plan.order, plan.num_hits, num_new))
        digest = hashlib.blake2b(np.packbits(mask).tobytes(), digest_size=8).hexdigest()
        return {"sees": mask.sum(axis=1).tolist(), "mask": digest}


def record_requests() -> dict[str, Any]:
    """Every request of `REQUESTS`, one after the other, on one server."""
    server = Server()
    told: dict[str, Any] = {}
    for request in REQUESTS:
        if request[0] == EVICT_BEFORE:
            told["evicted"] = server.evict(60)
        told[request[0]] = server.ask(request)
    told["tree"] = {"nodes": server.tree.num_nodes, "tokens": server.tree.num_tokens}
    told["host"] = {"nodes": server.host.copies.num_nodes, "tokens": server.host.copies.num_tokens}
    return told


def record_metrics() -> dict[str, Any]:
    """Every metric of a server with all tiers: its kind, and the labels of its series."""
    from prometheus_client import CollectorRegistry

    tier: dict[str, Any] = dict.fromkeys(
        ("nodes", "tokens", "bytes", "capacity_bytes", "evicted", "evicted_nodes", "loaded"), 1
    )
    told = {**tier, "failures": {"timeout": 1}, "dropped_nodes": {"no_room": 1}}
    disk = {**told, "fetch_seconds": 1.0, "wait_seconds": 1.0}
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(
        {"model_name": "m", "tp_rank": "0"},
        {"model_name": "m"},
        lambda: {"device": tier, "host": told, "disk": disk},
        lambda: {"plain_requests": 1, "rejected_requests": 1},
        registry=registry,
    )
    sources = ("shared", "shifted", "loaded", "missed", "recomputed", "plain", "tail")
    tokens = dict.fromkeys(sources, 1)
    for reason in (None, POOL_TOO_SMALL, "anything else"):
        metrics.note_request({**tokens, "fallback_reason": reason}, 0.001)
    found: dict[str, Any] = {}
    for family in registry.collect():
        series = [
            [sample.name, {**sample.labels, **dict.fromkeys(VERSIONS & sample.labels.keys(), "")}]
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        found[family.name] = {
            "kind": family.type,
            "help": family.documentation,
            "series": series,
        }
    return found


def record() -> dict[str, Any]:
    """All of it, as it comes back from JSON."""
    return json.loads(json.dumps({"requests": record_requests(), "metrics": record_metrics()}))


def to_text(recorded: dict[str, Any]) -> str:
    """The same as JSON with one line a request or metric."""
    parts: list[str] = []
    for name, entries in recorded.items():
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(entries[key])}" for key in entries)
        parts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    print(to_text(record()), end="")

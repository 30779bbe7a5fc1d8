# SPDX-License-Identifier: Apache-2.0
"""Requests with a field of the wrong type: every field of our routes with every kind of wrong.

What there is to spoil comes from what is published: the JSON Schema of `custom_params`, and the
OpenAPI of the server. On SGLang's own routes only what DepCache reads is spoilt, and only beside
dependency data; what stock SGLang makes of a plain request's fields is not ours.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from typing import Any
from urllib.parse import urlencode

from depcache.prompt.recompute import BUDGETS, FOCUSES, MAX_ALPHA, MAX_SEED, SELECTS, Recompute
from depcache.prompt.render import render, render_chunks
from depcache.prompt.wire import make_schema

MISSING = object()
"""The value of a field that is left out."""

VALUES: dict[str, tuple[Any, ...]] = {
    "missing": (MISSING,),
    "null": (None,),
    "wrong scalar": (True, -1, 0, 2.5, "", "x", "1"),
    "list": (["a"], [], [[-1]], [None], [-1]),
    "object": ({"a": 1}, {}),
    "huge": (10**30, "x" * 100_000, [0] * 20_000),
    "NaN": (float("nan"), float("-inf")),
}
"""Kinds of wrong, and values of each."""

ALMOST: dict[str, tuple[Any, ...]] = {
    "depcache_version": (1, 2, 3),
    "depcache_layout": ("tree", "staggered", "sequential"),
    "depcache_see": ("ancestors", "fused"),
    "depcache_recompute": (0, 1, 0.5, 1e-300, 1 + 1e-9, -1e-9),
    "depcache_select": SELECTS,
    "depcache_selected": ([3], [4], [20], [6, 6], [9, 6], [-1, 6], [*range(4, 16)], [2**63]),
    "depcache_seed": (MAX_SEED, MAX_SEED + 1),
    "depcache_budget": BUDGETS,
    "depcache_focus": FOCUSES,
    "depcache_alpha": (MAX_ALPHA, MAX_ALPHA + 1e-9, 1e-300),
    "depcache_pin": (True, False),
    "depcache_patches": (True, False),
    "depcache_behind": (
        *([None], [None, None], [[70], [71, 72]], [[[70], [71]], None], [None, [[70], [71]]]),
        *([[], None], [[-1], None], [[70], "x"], ["x", None], ["x", "y"], [[70] * 5000, None]),
    ),
}
"""Values of the right type for keys of a fused request, some of which fit."""

PROMPT_ROUTES = ("/depcache/explain", "/depcache/prefetch", "/depcache/invalidate")
"""Ours that take the body of a chat, a completion or /generate; the others take no body."""

STOCK_ROUTES = {"/generate": "GenerateReqInput"} | {
    "/v1/completions": "CompletionRequest",
    "/v1/chat/completions": "ChatCompletionRequest",
}
"""SGLang's routes that take dependency data, and what their OpenAPI calls the body."""

_GENERATE_KEYS = ("text", "input_ids", "sampling_params", "extra_key")
# What DepCache reads of a request with dependency data besides `custom_params`.
_READ_KEYS = (
    *("text", "input_ids", "prompt", "messages"),
    *("extra_key", "cache_salt", "return_logprob", "logprob_start_len"),
    *("return_hidden_states", "return_routed_experts", "session_params", "input_embeds"),
    *("image_data", "video_data", "audio_data"),
)

_PATHS = [
    ["Ada", "knows", "Bea", "lives in", "Ulm"],
    ["Ada", "born in", "Bern"],
    ["Cid", "is", "8"],
]
_IDS = list(range(40, 70))
_IDS_FORM = {
    "depcache_version": 1,
    "depcache_layout": "tree",
    "depcache_system_len": 4,
    "depcache_segment_lens": [3, 2, 2, 5],
    "depcache_segment_parents": [-1, 0, 0, -1],
}
_FUSED_IDS = _IDS_FORM | {
    "depcache_version": 2,
    "depcache_layout": "sequential",
    "depcache_see": "fused",
    "depcache_select": "given",
    "depcache_selected": [6, 9, 12],
    "depcache_behind": [None, [70, 71]],
    "depcache_pin": True,
}

Place = tuple[str, ...]
"""The way to a field: `query` or `body`, then the keys."""


@dataclass(frozen=True)
class Case:
    """One request. `name` says what is wrong with it; `content` is JSON, or None for no body."""

    name: str
    method: str
    route: str
    content: str | None

    @property
    def is_fused(self) -> bool:
        """Whether it still asks for a fused answer."""
        return '"depcache_see": "fused"' in (self.content or "")

    def to_json(self) -> dict[str, Any]:
        """What is needed to send it again; a long body is cut here, its case is not."""
        return {"method": self.method, "route": self.route, "what": self.name} | (
            {} if self.content is None else {"body": self.content}
        )


@dataclass(frozen=True)
class Target:
    """A good request and the fields of it that may be spoilt."""

    name: str
    method: str
    route: str
    body: Mapping[str, Any] | None
    places: tuple[Place, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    is_fused: bool = False
    """It is a fused request; of those only the dependency data is spoilt."""
    alone: frozenset[Place] = frozenset()
    """Places that make a plain request of it, whose other fields are not ours to spoil."""

    def spoil(self, changes: Mapping[Place, Any]) -> Case:
        """The request with these values in these places; of two in one another the outer wins."""
        query: dict[str, Any] = dict(self.query)
        body: Any = copy.deepcopy(self.body)
        for place, value in sorted(changes.items(), reverse=True):
            inside, *keys = place
            _put(query if inside == "query" else body, keys, value)
        words = urlencode({key: _to_word(value) for key, value in query.items()})
        what = ", ".join(f"{'.'.join(p[1:])} = {_show(v)}" for p, v in sorted(changes.items()))
        return Case(
            f"{self.method} {self.name}: {what}",
            self.method,
            self.route + (f"?{words}" if words else ""),
            None if body is None else json.dumps(body),
        )


def make_targets(openapi: Mapping[str, Any]) -> list[Target]:
    """Everything that can be spoilt on a server that publishes this OpenAPI.

    Raises ValueError for a route of ours that this module does not know how to fill.
    """
    targets: list[Target] = []
    ours = {route: methods for route, methods in openapi["paths"].items() if "/depcache/" in route}
    for route, methods in ours.items():
        for method, operation in methods.items():
            names = [p["name"] for p in operation.get("parameters") or () if p["in"] == "query"]
            if names:
                places = tuple(("query", name) for name in names)
                targets.append(Target(route, method.upper(), route, None, places))
            if operation.get("requestBody"):
                raise ValueError(f"{route} publishes a body: add it to eval/soak/fuzz.py")
    for route in PROMPT_ROUTES:
        if route not in ours:
            raise ValueError(f"{route} is gone: take it out of eval/soak/fuzz.py")
        for name, body in _bodies().items():
            keys = _keys_of(openapi, _MODELS[name]) if name in _MODELS else _GENERATE_KEYS
            keys = () if name.startswith(_FUSED) else keys
            targets.append(_on_body(f"{route} ({name})", route, body, keys))
    for route, model in STOCK_ROUTES.items():
        known = _keys_of(openapi, model)
        for name, body in _bodies().items():
            if _MODELS.get(name, "GenerateReqInput") == model:
                keys = [key for key in _READ_KEYS if key in known]
                keys = [] if name.startswith(_FUSED) else keys
                targets.append(_on_body(f"{route} ({name})", route, body | _SHORT[route], keys))
    return targets


def one_by_one(targets: Iterable[Target], *, is_whole: bool = False) -> Iterator[Case]:
    """Every field of every target with every kind of wrong; of each kind one value, in turns.

    Those of a fused request with one value of the right type as well.

    is_whole  every value of every kind
    """
    turns = {kind: cycle(values) for kind, values in VALUES.items()}
    almost = {key: cycle(values) for key, values in ALMOST.items()}
    for target in targets:
        for place in target.places:
            key = place[-1]
            if target.is_fused and key in ALMOST:
                for value in ALMOST[key] if is_whole else (next(almost[key]),):
                    yield target.spoil({place: value})
            for kind, values in VALUES.items():
                if kind == "missing" and not _has(target, place):
                    continue
                for value in values if is_whole else (next(turns[kind]),):
                    yield target.spoil({place: value})


def draw(rng: random.Random, targets: list[Target], max_fields: int = 3) -> Case:
    """A target with one to `max_fields` of its fields spoilt."""
    target = rng.choice(targets)
    count = min(rng.randint(1, max_fields), len(target.places))
    places = rng.sample(target.places, count)
    places = [place for place in places if place in target.alone][:1] or places
    return target.spoil({place: _draw_value(rng, target, place[-1]) for place in places})


def _draw_value(rng: random.Random, target: Target, key: str) -> Any:
    if target.is_fused and key in ALMOST and rng.random() < _ALMOST_SHARE:
        return rng.choice(ALMOST[key])
    return rng.choice(VALUES[rng.choice(list(VALUES))])


def what_is_wrong(status: int, text: str) -> str | None:
    """What an answer to a spoilt request must not be; None if it is as it should be.

    It may be 200, or a 4xx that says in JSON what is wrong. A stream that began with 200 may
    say it as well.
    """
    if status == 200:
        return None
    if not 400 <= status < 500:
        return f"HTTP {status}: {text[:300]}"
    try:
        body = json.loads(text)
    except ValueError:
        return f"HTTP {status} without JSON: {text[:300]}"
    said = body.get("error", body) if isinstance(body, dict) else None
    # SGLang 0.5.23 has the reason itself there, where the types of a body are wrong.
    message = said.get("message") if isinstance(said, dict) else said
    if not isinstance(message, str) or not message.strip():
        return f"HTTP {status} without a message: {text[:300]}"
    return f"a traceback in the message: {message[:300]}" if "Traceback" in message else None


@cache
def _bodies() -> dict[str, dict[str, Any]]:
    """Good bodies by name, each with dependency data."""
    prompt = render(_PATHS, "Who is it?", system="Facts.")
    params: dict[str, Any] = prompt.extra_body["custom_params"]
    text = f"Facts:{prompt.flat_text}\nWho?"
    in_text = prompt.params_in(text)
    return {
        "ids": {"input_ids": _IDS, "sampling_params": {"custom_params": _IDS_FORM}},
        "text": {"text": text, "sampling_params": {"custom_params": in_text}},
        "completion": {"model": "m", "prompt": text, "custom_params": in_text},
        "completion, ids": {"model": "m", "prompt": _IDS, "custom_params": _IDS_FORM},
        "chat": {"model": "m", "messages": prompt.messages, "custom_params": params},
        **_fused_bodies(),
    }


def _fused_bodies() -> dict[str, dict[str, Any]]:
    rows = render(_PATHS, "Who is it?", system="Facts.", recompute=Recompute(0.3, "query"))
    text = f"Facts:{rows.flat_text}\nWho?"
    random_tokens = Recompute(0.3, "random", seed=3, is_pinned=True, patches=True, budget="chunk")
    chunks = render_chunks(
        ["Ada was born in Bern.", "She met Bea."],
        "Whom?",
        behind=[None, "Ada lived in Ulm."],
        recompute=random_tokens,
    )
    params: dict[str, Any] = chunks.extra_body["custom_params"]
    return {
        f"{_FUSED}ids": {"input_ids": _IDS, "sampling_params": {"custom_params": _FUSED_IDS}},
        f"{_FUSED}completion": {
            "model": "m",
            "prompt": text,
            "custom_params": rows.params_in(text),
        },
        f"{_FUSED}chat": {"model": "m", "messages": chunks.messages, "custom_params": params},
    }


_FUSED = "fused, "  # what the names of fused bodies begin with
_ALMOST_SHARE = 0.5

_MODELS = {
    f"{_FUSED}completion": "CompletionRequest",
    f"{_FUSED}chat": "ChatCompletionRequest",
    "completion": "CompletionRequest",
    "completion, ids": "CompletionRequest",
    "chat": "ChatCompletionRequest",
}
_SHORT: dict[str, dict[str, Any]] = {
    "/generate": {},
    "/v1/completions": {"max_tokens": 1},
    "/v1/chat/completions": {"max_tokens": 1},
}


def _on_body(name: str, route: str, body: dict[str, Any], keys: Iterable[str]) -> Target:
    params: Place = ("body", "custom_params")
    if "sampling_params" in body:
        params = ("body", "sampling_params", "custom_params")
        if route in STOCK_ROUTES:
            body = body | {"sampling_params": body["sampling_params"] | {"max_new_tokens": 1}}
    places = [("body", key) for key in keys if key != "custom_params"]
    places += [params, *((*params, key) for key in wire_fields()), (*params, "depcache_colour")]
    places += [(*params, "depcache_outline", key) for key in _outline_fields(body, params)]
    alone = frozenset([params]) if route in STOCK_ROUTES else frozenset[Place]()
    is_fused = f"({_FUSED}" in name
    return Target(name, "POST", route, body, tuple(places), is_fused=is_fused, alone=alone)


def _outline_fields(body: Any, params: Place) -> list[str]:
    """Every key of an outline, as the JSON Schema has them; none where `body` has no outline."""
    for key in params[1:]:
        body = body[key]
    if "depcache_outline" not in body:
        return []
    form = make_schema()["$defs"]["WireOutline"]["properties"]["depcache_outline"]
    return [*form["properties"], "colour"]


@cache
def wire_fields() -> tuple[str, ...]:
    """Every key of the dependency data, of both forms, as the JSON Schema has them."""
    forms = [form for form in make_schema()["$defs"].values() if "properties" in form]
    return tuple(dict.fromkeys(key for form in forms for key in form["properties"]))


def _keys_of(openapi: Mapping[str, Any], model: str) -> tuple[str, ...]:
    return tuple(openapi["components"]["schemas"][model]["properties"])


def _has(target: Target, place: Place) -> bool:
    inside, *keys = place
    value: Any = target.query if inside == "query" else target.body
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True


def _put(inside: Any, keys: list[str], value: Any) -> None:
    """Set it where the way to it still exists."""
    *above, last = keys
    for key in above:
        if not isinstance(inside, dict) or key not in inside:
            return
        inside = inside[key]
    if isinstance(inside, dict):
        if value is MISSING:
            inside.pop(last, None)
        else:
            inside[last] = copy.deepcopy(value)


def _to_word(value: Any) -> str:
    """A value as it stands in a URL, which may not be long."""
    return (value if isinstance(value, str) else json.dumps(value))[:4000]


def _show(value: Any) -> str:
    if value is MISSING:
        return "(missing)"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text):,} characters)"

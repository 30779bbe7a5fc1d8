# SPDX-License-Identifier: Apache-2.0
"""The same facts in several forms, asked for in turns when all of them are cached.

    depcache      paths in the text form, as a client of DepCache sends them
    depcache_ids  the same prompt as token ids with its segments: what the text form costs less
    sglang        the text of all paths, to stock SGLang

A round asks for every prompt in one form after another and in the next round the other way about,
so that what else the machine does falls on all of them. One request at a time, one token of an
answer: nothing but the prompt is paid for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.host.ask import Answer, Asker, Body, ask_all
from eval.host.servers import HostServer
from eval.host.stages import sample
from eval.serve.systems import MODEL_NAME, Writer, get_system
from eval.serve.workloads import Request

TEXT, IDS, STOCK = "depcache", "depcache_ids", "sglang"
SERVER_OF = {TEXT: "depcache", IDS: "depcache", STOCK: "sglang"}
"""Form to the system that is asked in it."""

NUM_WARM_UPS = 3
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(slots=True)
class Measured:
    """One form.

    body_bytes  of each prompt's body
    answers     of each request
    cpu_ms      of each request: process to milliseconds
    samples     by process and stage, of requests beyond those of the rounds; may be empty
    """

    body_bytes: list[int]
    answers: list[Answer] = field(default_factory=list)
    cpu_ms: list[dict[str, float]] = field(default_factory=list)
    samples: Mapping[tuple[str, str], int] = field(default_factory=dict)


def write_bodies(writer: Writer, requests: Sequence[Request]) -> dict[str, list[Body]]:
    """The body of every request in every form, one token to be answered."""
    bodies: dict[str, list[Body]] = {form: [] for form in SERVER_OF}
    for request in requests:
        for form in (TEXT, STOCK):
            fields = dict(writer.write(get_system(SERVER_OF[form]), request).fields)
            fields |= fields.pop("extra_body", {})
            bodies[form].append(Body.make(_CHAT, fields, max_tokens=1))
        ids, params = writer.merge(request).to_wire()
        given: dict[str, Any] = {"model": MODEL_NAME, "prompt": ids, "custom_params": params}
        bodies[IDS].append(Body.make(_COMPLETIONS, given, max_tokens=1))
    return bodies


def measure(
    servers: Mapping[str, HostServer],
    bodies: Mapping[str, Sequence[Body]],
    *,
    rounds: int,
    repeats: int,
    sampled: int = 0,
    on_step: Callable[[str], None] = lambda text: None,
) -> dict[str, Measured]:
    """Ask in turns; what every form took.

    repeats  requests for each prompt in a round
    sampled  for each prompt behind the rounds, with the profiler; 0 leaves it out
    """
    found = {form: Measured([len(b.data) for b in given]) for form, given in bodies.items()}
    for form, given in bodies.items():
        on_step(f"{form}: filling the cache")
        ask_all(servers[SERVER_OF[form]].url, [*given] * NUM_WARM_UPS)
    for number in range(rounds):
        order = list(bodies)[:: 1 if number % 2 == 0 else -1]
        for form in order:
            on_step(f"round {number + 1}: {form}")
            _ask_round(servers[SERVER_OF[form]], [*bodies[form]] * repeats, found[form])
    for form in bodies if sampled else ():
        on_step(f"{form}: stages")
        server = servers[SERVER_OF[form]]
        calls = [*bodies[form]] * sampled
        found[form].samples = sample(server, lambda s=server, c=calls: ask_all(s.url, c))
    return found


def _ask_round(server: HostServer, calls: Sequence[Body], found: Measured) -> None:
    """One after the other; a request's processor time is all from the one before to its end."""
    with Asker(server.url) as asker:
        asker.ask(calls[-1])  # it opens the connection
        before = server.cpu_ms()
        for call in calls:
            found.answers.append(asker.ask(call))
            after = server.cpu_ms()
            found.cpu_ms.append({name: after[name] - before[name] for name in after})
            before = after

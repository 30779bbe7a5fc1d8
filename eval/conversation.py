# SPDX-License-Identifier: Apache-2.0
"""A conversation over the same facts, turn by turn: `python -m eval conversation --json OUT`.

Asks the demo's questions one after the other in one chat, whose first message has all the facts
that retrieval finds for them. Each turn sends the whole chat so far, as chat clients do. The
servers run one after the other; each begins every round with an empty cache:

    depcache            what follows the facts is cached behind them
    depcache-no-tails   the same without that, as DepCache was before (`cache_tails: false`)
    sglang              stock SGLang with its prefix cache; the facts are plain text

For every turn: tokens of the prompt and those that were computed (the same in all rounds, or the
report says so), and milliseconds to the first token, the median of the rounds. Computed tokens do
not depend on what else the machine does; times do, see `load_average`.

Needs the extra `server`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import depcache
from depcache.client.reply import Reply
from depcache.errors import ConfigError, ServerError
from depcache.prompt.render import RenderedPrompt, render
from depcache.serving.launch import require_sglang
from depcache.serving.process import ServerProcess, find_free_port
from depcache.serving.random_model import find_model, is_trained
from depcache.serving.tiny import TINY_NAME
from eval.output import about, add_output, write_report
from eval.serve import workloads
from eval.serve.systems import MODEL_NAME, get_system, make_server
from eval.serve.workloads import ServeSpec, Workload
from eval.servers import flush
from eval.workloads.graphs import Graphs

SYSTEMS = ("depcache-no-tails", "depcache", "sglang")
TURNS, ROUNDS, ROUNDS_QUICK = 8, 5, 1
ANSWER_TOKENS = 24
READY_S = 1800.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn took. Tokens as `usage` counts them; milliseconds to the first token."""

    prompt_tokens: int
    computed_tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class Chat:
    """What the user says: the first message with the facts, and the questions after it."""

    first: RenderedPrompt
    later: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick="one round")
    add = parser.add_argument
    add("--model", default=TINY_NAME, help="a folder, depcache-tiny, or random weights: 30m, 125m")
    add("--turns", type=int, default=TURNS, help=f"of the conversation (default {TURNS})")
    add("--rounds", type=int, help=f"(default {ROUNDS}; quick {ROUNDS_QUICK})")
    add("--answer-tokens", type=int, default=ANSWER_TOKENS, help="tokens of each answer")
    add("--pool-tokens", type=int, default=100_000, help="for KV of each server")
    add("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; the exit code."""
    require_sglang()
    if args.turns < 2:
        raise ConfigError(f"--turns is {args.turns}: a conversation has at least 2")
    err = Console(stderr=True, highlight=False)
    model = find_model(args.model)
    workload = workloads.make(ServeSpec("questions:demo", args.turns, seed=args.seed), Graphs(None))
    chat = make_chat(workload)
    rounds = args.rounds or (ROUNDS_QUICK if args.quick else ROUNDS)
    loads = [os.getloadavg()[0]]
    started = time.perf_counter()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="depcache-eval-") as folder:
        for name in SYSTEMS:
            with err.status(f"{name}: {rounds} rounds"):
                found = _measure(name, model, Path(folder) / f"{name}.log", chat, rounds, args)
            figures[name] = make_figures(found)
            loads.append(os.getloadavg()[0])
    err.print(to_table(figures))
    said = about(args, time.perf_counter() - started)
    said["machine"] |= {"load_average": [round(load, 2) for load in loads]}
    report = {
        "systems": figures,
        "rounds": rounds,
        "answer_tokens": args.answer_tokens,
        "model": {"name": args.model, "trained": is_trained(model)},
        "workload": {"name": workload.spec.name, "digest": workload.digest()},
    }
    write_report(report | said, args.json)
    return 0


def _measure(
    name: str, model: str, log: Path, chat: Chat, rounds: int, args: argparse.Namespace
) -> list[list[Turn]]:
    """The turns of each round on a server of this system."""
    system, port = get_system(name), find_free_port()
    launch = make_server(system, model, port, pool_tokens=args.pool_tokens, vllm_python=None)
    url = f"http://127.0.0.1:{port}"
    with ServerProcess(launch, url, log) as server:
        server.wait_until_ready(READY_S)
        found: list[list[Turn]] = []
        # The first round is not counted: the first requests of a process are slower.
        for _ in range(rounds + 1):
            flush(url)
            with depcache.Client(url, model=MODEL_NAME, warn_unread=False) as client:
                outline = chat.first.extra_body if system.prompt == "dependency" else {}
                found.append(talk(client, chat, outline, args.answer_tokens))
    return found[1:]


def talk(
    client: depcache.Client, chat: Chat, outline: Mapping[str, Any], answer_tokens: int
) -> list[Turn]:
    """One conversation: each turn sends what was said so far, answers as they came.

    outline  the fields that say where the facts are; none for a server that reads plain text
    """
    messages: list[dict[str, str]] = list(chat.first.messages)
    turns: list[Turn] = []
    for question in (None, *chat.later):
        if question is not None:
            messages.append({"role": "user", "content": f"Question: {question}"})
        stream = client.chat(
            messages, stream=True, max_tokens=answer_tokens, ignore_eos=True, **outline
        )
        reply: Reply = stream.finish()
        if reply.ttft_s is None:
            raise ServerError("an answer came without a token: choose more --answer-tokens")
        prompt, cached = reply.usage.prompt_tokens, reply.usage.cached_tokens
        turns.append(Turn(prompt, prompt - cached, 1e3 * reply.ttft_s))
        messages.append({"role": "assistant", "content": reply.text})
    return turns


def make_chat(workload: Workload) -> Chat:
    """The facts of all requests with the first question, then the other questions."""
    paths = dict.fromkeys(path for request in workload.requests for path in request.paths)
    first, *later = (request.question for request in workload.requests)
    return Chat(render(list(paths), first), tuple(later))


def make_figures(rounds: Sequence[Sequence[Turn]]) -> dict[str, Any]:
    """Lists with one entry a turn, and their sums.

    `is_stable` says whether every round computed the same tokens; those of the first are told.
    """
    first = rounds[0]
    tokens = [[(turn.prompt_tokens, turn.computed_tokens) for turn in each] for each in rounds]
    return {
        "prompt_tokens": [turn.prompt_tokens for turn in first],
        "computed_tokens": [turn.computed_tokens for turn in first],
        "ttft_ms": [
            round(statistics.median(turn.ttft_ms for turn in turns), 2)
            for turns in zip(*rounds, strict=True)
        ],
        "computed_in_all": sum(turn.computed_tokens for turn in first),
        "is_stable": all(each == tokens[0] for each in tokens),
    }


def to_table(figures: dict[str, dict[str, Any]]) -> Table:
    """Turn by turn: computed of prompt tokens, and milliseconds to the first token."""
    table = Table("turn", *figures, box=None)
    for number in range(len(next(iter(figures.values()))["ttft_ms"])):
        cells = [
            f"{told['computed_tokens'][number]:,} of {told['prompt_tokens'][number]:,}, "
            f"{told['ttft_ms'][number]:.0f} ms"
            for told in figures.values()
        ]
        table.add_row(str(number + 1), *cells)
    return table

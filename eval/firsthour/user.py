# SPDX-License-Identifier: Apache-2.0
"""What a new user does, by the command line alone: load, ask, precompute, change, ask again."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depcache.errors import ServerError
from depcache.graph.naming import fold
from eval.firsthour.measures import Set
from eval.servers import serve
from eval.sets import Question

MODEL = "depcache-tiny"
POOL_TOKENS = 60_000
NEW_ENTITY = "Quentin Overmarsh"
"""The subject of the fact that is added to the graph; no set has it."""


class User:
    """Runs `depcache`, as one would in a folder of his own.

    Raises ServerError, with what the command printed, when one fails.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._env = {**os.environ, "DEPCACHE_GRAPH": str(folder / "graph.db")}

    def call(self, *words: str) -> tuple[dict[str, Any], float]:
        """What `depcache` printed as JSON, and the seconds it took from start to end."""
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "depcache.cli.main", *words],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - started
        if done.returncode:
            raise ServerError(f"`depcache {words[0]}` failed: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout), seconds


def live(data: Set, questions: Sequence[Question], folder: Path) -> dict[str, Any]:
    """The whole way with a real server; ServerError, with the end of its log, when one step fails.

    load_s          from the file to the graph on the disk, with starting Python
    server_s        until the server answers
    ask_ms_own      median of what `ask` takes beside waiting for the server
    right           share of the questions whose answer holds a right one
    first_answer_s  from the start of `graph load` to the end of the first right answer, with the
                    start of the server; None where no answer was right
    precompute_s    trees of the entities of the questions
    reused          share of the tokens of a prompt's system and facts that were reused after it
    change          what a new edge did: whether the next `ask` saw it, and trees given up
    """
    try:
        return _live(data, questions, folder)
    except ServerError as error:
        log = folder / "server.log"
        lines = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        raise ServerError("\n".join([str(error), *lines])) from error


def _live(data: Set, questions: Sequence[Question], folder: Path) -> dict[str, Any]:
    user = User(folder)
    started = time.perf_counter()
    loaded, load_s = user.call("graph", "load", str(data.graph.resolve()), "--json", "-")
    options = ["--hops", str(data.num_hops), "--pruner", "words", "--json"]
    if data.allow_repeats:
        options.append("--allow-repeats")
    first_s: float | None = None
    own_ms: list[float] = []
    right = 0
    before_server = time.perf_counter()
    with serve(MODEL, folder / "server.log", pool_tokens=POOL_TOKENS, settings={}) as url:
        server_s = time.perf_counter() - before_server
        asked = ["--server", url]
        for question in questions:
            reply, seconds = user.call("ask", question.text, *options, *asked)
            own_ms.append((seconds - reply["total_s"]) * 1000)
            if is_right(reply["answer"], question.answers):
                right += 1
                first_s = first_s or time.perf_counter() - started
        entities = sorted({entity for question in questions[:5] for entity in question.entities})
        names = [word for entity in entities for word in ("--entity", entity)]
        hops = ["--hops", str(data.num_hops)]
        warm = [*hops, *asked, "--json", "--state", "state.jsonl"]
        names = names or ["--entities", "top:5"]
        _, precompute_s = user.call("precompute", *names, "--pruner", "words", *warm)
        reply, _ = user.call("ask", questions[0].text, *options, *asked)
        report = reply["depcache"] or {}
        named = next((question for question in questions if question.entities), None)
        change = None if named is None else _change(user, named, options, asked, warm)
    reused = sum(report.get(name, 0) for name in ("shared", "shifted", "loaded"))
    facts = reused + report.get("missed", 0)
    return {
        "load_s": round(load_s, 2),
        "triples": loaded["triples"],
        "server_s": round(server_s, 1),
        "asked": len(questions),
        "ask_ms_own": round(statistics.median(own_ms), 1),
        "right": round(right / len(questions), 4),
        "first_answer_s": None if first_s is None else round(first_s, 1),
        "precompute_s": round(precompute_s, 2),
        "reused": round(reused / facts, 4) if facts else None,
        "change": change,
    }


def _change(
    user: User, question: Question, options: list[str], asked: list[str], warm: list[str]
) -> dict[str, Any]:
    """Add an edge to the question's entity, invalidate, ask about it; take it out again."""
    entity, relation = question.entities[0], "was last visited by"
    edge = [entity, relation, NEW_ENTITY]
    (user.folder / "new.jsonl").write_text(json.dumps(edge) + "\n", encoding="utf-8")
    user.call("graph", "load", "new.jsonl", "--changed", "changed.txt", "--json", "-")
    given_up, _ = user.call("invalidate", "--file", "changed.txt", *warm)
    text = f"Who was {entity} last visited by?"
    seen, _ = user.call("ask", text, *options, *asked)
    user.call("graph", "remove", "new.jsonl", "--json")
    gone, _ = user.call("ask", text, *options, *asked)
    return {
        "seen": edge in [path[:3] for path in seen["paths"]],
        "gone": edge not in [path[:3] for path in gone["paths"]],
        "given_up": len(given_up["entities"]),
    }


def is_right(answer: str, answers: Sequence[str]) -> bool:
    """Whether an answer holds one of the right ones as whole words."""
    said = f" {fold(answer)} "
    return any(f" {fold(right)} " in said.replace(".", " ").replace(",", " ") for right in answers)

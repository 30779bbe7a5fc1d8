# SPDX-License-Identifier: Apache-2.0
"""Where facts stand in a prompt, and how they are spelled: what is found, and what is answered.

depcache-tiny's server is asked the demo's questions through `depcache.httpx_client`, as an
OpenAI-SDK user would, with the same facts in other places and spellings: `recognised` is the share
of prompts that went out as dependency prompts, `right` of exact answers (%).

    --quick   10 questions
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

import depcache
from depcache.prompt.paths import Path as FactPath
from depcache.prompt.render import DEFAULT_SYSTEM
from depcache.serving.launch import require_sglang
from depcache.serving.tiny import TINY_NAME, resolve_model
from eval.output import about, add_output, require, write_report
from eval.serve.workloads import Request, ServeSpec, make
from eval.servers import serve
from eval.workloads.graphs import Graphs

Messages = list[dict[str, str]]

NUM_QUESTIONS, NUM_QUESTIONS_QUICK = 40, 10
MAX_TOKENS = 96
POOL_TOKENS = 65536
OTHER_SYSTEM = "You are a helpful assistant. Use the knowledge below to answer the question."


def _lines(paths: Sequence[FactPath], write: Callable[[FactPath], str]) -> str:
    return "\n".join(map(write, paths))


def _arrows(paths: Sequence[FactPath]) -> str:
    return _lines(paths, " -> ".join)


def _triples(paths: Sequence[FactPath]) -> list[FactPath]:
    found = [path[i : i + 3] for path in paths for i in range(0, len(path) - 2, 2)]
    return list(dict.fromkeys(found))


def _ask(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _in_user(facts: str, request: Request) -> Messages:
    return _ask(DEFAULT_SYSTEM, f"Facts:\n{facts}\n\nQuestion: {request.question}")


SPELLINGS: dict[str, Callable[[Request], Messages]] = {
    "user message, as `render` writes it": lambda r: _in_user(_arrows(r.paths), r),
    "user message, no system message": lambda r: _in_user(_arrows(r.paths), r)[1:],
    "user message, other words around": lambda r: _ask(
        OTHER_SYSTEM, f"Here are some facts:\n{_arrows(r.paths)}\n\n{r.question}"
    ),
    "system message, `render`'s words before": lambda r: _ask(
        f"{DEFAULT_SYSTEM}\n\nFacts:\n{_arrows(r.paths)}", f"Question: {r.question}"
    ),
    "system message, other words before": lambda r: _ask(
        f"{OTHER_SYSTEM}\n\nFacts:\n{_arrows(r.paths)}", r.question
    ),
    "user message, `A -> r -> B` triples": lambda r: _in_user(_arrows(_triples(r.paths)), r),
    "user message, `A r B` sentences": lambda r: _in_user(_lines(_triples(r.paths), " ".join), r),
    "user message, `['A', 'r', 'B']`": lambda r: _in_user(
        _lines(_triples(r.paths), lambda path: str(list(path))), r
    ),
    "user message, `A -[r]-> B`": lambda r: _in_user(
        _lines(_triples(r.paths), lambda path: f"{path[0]} -[{path[1]}]-> {path[2]}"), r
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick=f"{NUM_QUESTIONS_QUICK} questions")


def run(args: argparse.Namespace) -> int:
    """Ask, print and write; the exit code."""
    require_sglang()
    require("rouge_score")
    started = time.perf_counter()
    logging.getLogger("depcache.client").setLevel(logging.ERROR)  # what is not found is counted
    number = NUM_QUESTIONS_QUICK if args.quick else NUM_QUESTIONS
    requests = make(
        ServeSpec("questions:demo", number, num_paths=20, num_hops=3), Graphs(None)
    ).requests
    with tempfile.TemporaryDirectory(prefix="depcache-eval-") as folder:
        log = Path(folder) / "log"
        model = resolve_model(TINY_NAME)
        with (
            serve(model, log, pool_tokens=POOL_TOKENS, settings={}) as url,
            depcache.httpx_client(base_url=url) as client,
        ):
            rows = [_measure(name, client, requests) for name in SPELLINGS]
    for row in rows:
        print(f"{row['spelling']:<42} {row['recognised']:6.1f} {row['right']:6.1f}")
    manifest = about(args, time.perf_counter() - started)
    write_report({"questions": number, "rows": rows, "manifest": manifest}, args.json)
    return 0


def _measure(name: str, client: httpx.Client, requests: Sequence[Request]) -> dict[str, Any]:
    from eval.quality.scores import score

    num_recognised, num_right = 0, 0.0
    for request in requests:
        body = {"model": "default", "messages": SPELLINGS[name](request), "temperature": 0.0}
        response = client.post("/v1/chat/completions", json={**body, "max_tokens": MAX_TOKENS})
        answer = response.raise_for_status().json()
        num_recognised += "depcache" in (answer.get("metadata") or {})
        text = answer["choices"][0]["message"]["content"]
        num_right += score(text.rpartition("Answer:")[2].strip(), request.answers).em
    share = 100 / len(requests)
    return {
        "spelling": name,
        "recognised": round(num_recognised * share, 1),
        "right": round(num_right * share, 1),
    }

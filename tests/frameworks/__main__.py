# SPDX-License-Identifier: Apache-2.0
"""The real frameworks against a real server: `make test-frameworks`.

Makes an environment for each framework (kept in --folder), starts `depcache serve depcache-tiny`
and then stock SGLang with the same model, and runs `programs/` against both. Each program asks two
questions over facts of our own; its user code differs from an ordinary program by one line.

For the second question it counts the share of the prompt's tokens that a server had not to compute:
SGLang's prefix cache by the usage of the reply, DepCache by its report. The exit code is 1 when a
call fails, rows of facts are not read, or DepCache reuses less than the prefix cache does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import depcache
from depcache.serving.tiny import TINY_NAME
from eval.output import about, write_report
from eval.servers import serve

PROGRAMS = Path(__file__).with_name("programs")
ROOT = Path(__file__).parents[2]
POOL_TOKENS = 32_768
PROGRAM_S = 600
LEAST_ROWS = 0.95


@dataclass(frozen=True)
class Framework:
    """A program, and what its environment holds.

    hook       how DepCache comes in, for the table
    user_lines lines that a user adds
    rows       rows of facts, or tables, that each prompt has at least, by the name the program
               tells
    extra      of DepCache, in the environment
    """

    program: str
    packages: tuple[str, ...]
    shown: tuple[str, ...]
    hook: str
    rows: dict[str, int]
    user_lines: int = 1
    extra: str = ""


FRAMEWORKS = {
    "llamaindex": Framework(
        "llamaindex_program.py",
        ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
        ("llama-index-core",),
        'OpenAILike(..., **depcache.clients("llamaindex"))',
        {"LlamaIndex, paths": 5, "LlamaIndex, paths between passages": 5},
    ),
    "langchain": Framework(
        "langchain_program.py",
        ("langchain-openai==1.7.4", "langchain-neo4j==0.11.0"),
        ("langchain-openai", "langchain-neo4j"),
        'ChatOpenAI(..., **depcache.clients("langchain"))',
        {"LangChain, Cypher chain": 7, "LangChain, own prompt": 7},
    ),
    "lightrag": Framework(
        "lightrag_program.py",
        ("lightrag-hku==1.5.7", "openai"),
        ("lightrag-hku",),
        'openai_complete_if_cache(..., **depcache.clients("lightrag"))',
        {"LightRAG, mix": 10, "LightRAG, hybrid": 10},
    ),
    "neo4j-graphrag": Framework(
        "neo4j_program.py",
        ("neo4j-graphrag[openai]==1.22.0",),
        ("neo4j-graphrag",),
        'OpenAILLM(..., **depcache.clients("neo4j-graphrag"))',
        {"neo4j-graphrag, records": 7, "neo4j-graphrag, neo4j_rows": 7},
    ),
    "graphrag-sdk": Framework(
        "graphrag_sdk_program.py",
        ("graphrag-sdk==1.4.0", "litellm"),
        ("graphrag-sdk", "litellm"),
        'depcache.install("litellm")',
        {"GraphRAG-SDK": 7},
    ),
    "cognee": Framework(
        "cognee_program.py",
        ("cognee==1.6.5", "litellm"),
        ("cognee", "litellm"),
        'depcache.install("cognee")',
        {"cognee": 7},
    ),
    "langchain-tables": Framework(
        "langchain_tables_program.py",
        ("langchain-openai==1.7.4", "langchain-community==0.4.2"),
        ("langchain-openai", "langchain-community"),
        'ChatOpenAI(..., **depcache.clients("langchain", tables="ddl"))',
        {"LangChain, SQLDatabase": 4},
        extra="tables",
    ),
    "llamaindex-tables": Framework(
        "llamaindex_tables_program.py",
        ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
        ("llama-index-core",),
        'OpenAILike(..., **depcache.clients("llamaindex", tables=catalog))',
        {"LlamaIndex, SQLDatabase": 4},
        user_lines=2,
        extra="tables",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, print the table and write it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    add("--folder", type=Path, default=ROOT / ".frameworks", help="where environments are kept")
    add("--json", type=Path, help="file for the table")
    add("--record", type=Path, help="file for the prompts about tables, as they were written")
    args = parser.parse_args(argv)
    args.command = "make test-frameworks"
    started = time.monotonic()
    pythons = {name: make_environment(args.folder / name, FRAMEWORKS[name]) for name in args.only}
    versions = {name: _versions(pythons[name], FRAMEWORKS[name]) for name in args.only}
    ours, stock = {}, {}
    with tempfile.TemporaryDirectory(prefix="depcache-frameworks-") as folder:
        log = Path(folder) / "log"
        with serve(TINY_NAME, log, pool_tokens=POOL_TOKENS, settings={}) as url:
            for name in args.only:
                _say(f"{name}: DepCache")
                ours |= run_program(pythons[name], FRAMEWORKS[name], url, reads_facts=True)
        with serve(TINY_NAME, log, pool_tokens=POOL_TOKENS, settings={}, stock=True) as url:
            for name in args.only:
                _say(f"{name}: SGLang")
                stock |= run_program(pythons[name], FRAMEWORKS[name], url, reads_facts=False)
    rows, faults = [], []
    for name in args.only:
        for told in FRAMEWORKS[name].rows:
            for calls in ("sync", "async"):
                if (told, calls) in ours:
                    row, wrong = compare(told, calls, FRAMEWORKS[name], ours, stock)
                    rows.append({**row, "versions": versions[name]})
                    faults += wrong
    _show(rows)
    if args.record is not None:
        record(ours, versions, args.record)
    for fault in faults:
        _say(f"FAULT {fault}")
    write_report({"rows": rows, "manifest": about(args, time.monotonic() - started)}, args.json)
    return 1 if faults else 0


def make_environment(folder: Path, framework: Framework) -> Path:
    """The Python of an environment with the framework and this checkout; made where it lacks."""
    python = folder / "bin" / "python"
    wanted = "\n".join(framework.packages)
    done = folder / "done"
    if not done.exists() or done.read_text() != wanted:
        _say(f"installing {', '.join(framework.packages)}")
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([*pip, *framework.packages], check=True, env=alone)
        ours = f"{ROOT}[{framework.extra}]" if framework.extra else str(ROOT)
        subprocess.run([*pip, ours], check=True, env=alone)
        done.write_text(wanted)
    return python


def run_program(
    python: Path, framework: Framework, url: str, *, reads_facts: bool
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What was said in each part of a program, by its name and the kind of its calls."""
    environment = {
        **os.environ,
        "SERVER_URL": url,
        "READS_FACTS": "1" if reads_facts else "0",
        "PYTHONPATH": f"{PROGRAMS}{os.pathsep}{ROOT}",  # this checkout, as it is now
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DO_NOT_TRACK": "1",
    }
    done = subprocess.run(
        [str(python), str(PROGRAMS / framework.program)],
        env=environment, capture_output=True, text=True, timeout=PROGRAM_S, check=False,
    )  # fmt: skip
    if done.returncode or "Traceback" in done.stderr:
        _say(f"{framework.program} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    told = [json.loads(line.removeprefix("SAID ")) for line in lines]
    return {(each["name"], each["calls"]): each["said"] for each in told}


Said = dict[tuple[str, str], list[dict[str, Any]]]


def compare(
    name: str, calls: str, framework: Framework, ours: Said, stock: Said
) -> tuple[dict[str, Any], list[str]]:
    """A row of the table, and what is wrong in it."""
    said, plain = ours[name, calls], stock.get((name, calls), [])
    found = [_num_rows(each) for each in said]
    row: dict[str, Any] = {
        "name": name,
        "calls": calls,
        "hook": framework.hook,
        "user_lines": framework.user_lines,
        "rows_recognised": found,
        "prompt_tokens": [each["prompt_tokens"] for each in said],
        "reused_of_question_2": {
            "sglang": _share(plain[-1]["cached_tokens"], plain[-1]) if plain else None,
            "depcache": _reused(said[-1]) if said else None,
        },
    }
    faults = [each["error"] for each in (*said, *plain) if each["status"] != 200]
    if len(said) != 2 or len(plain) != 2:
        return row, [*faults, f"{name} ({calls}): {len(said)} and {len(plain)} calls, not 2 and 2"]
    if faults:
        return row, faults
    if min(found) < LEAST_ROWS * framework.rows[name]:
        faults.append(f"{name}: {min(found)} rows of {framework.rows[name]} were read")
    if any(each["report"] is None for each in said):
        faults.append(f"{name} ({calls}): a prompt went out plain")
    shares = row["reused_of_question_2"]
    if not faults and shares["depcache"] < shares["sglang"]:
        faults.append(f"{name} ({calls}): reuse is {shares}")
    return row, faults


def _num_rows(said: dict[str, Any]) -> int:
    """Tables that the server was told of, or rows of facts where there are none."""
    tables = (said["report"] or {}).get("tables")
    return tables["found"] if tables else len(depcache.recognise(said["messages"]).rows)


def record(ours: Said, versions: dict[str, dict[str, str]], file: Path) -> None:
    """Write what the frameworks wrote about tables: the prompts of each, by what it is called."""
    told = {
        row: {"versions": versions[name], "prompts": [_text_of(each) for each in ours[row, "sync"]]}
        for name, framework in FRAMEWORKS.items()
        if framework.extra == "tables" and name in versions
        for row in framework.rows
        if (row, "sync") in ours
    }
    file.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _text_of(said: dict[str, Any]) -> str:
    """All messages of a chat; those of the frameworks that write SQL are one."""
    return "\n".join(str(each["content"]) for each in said["messages"])


def _reused(said: dict[str, Any]) -> float | None:
    report = said["report"]
    if report is None:
        return None
    return _share(sum(report[kind] for kind in ("shared", "shifted", "loaded", "tail")), said)


def _share(tokens: int, said: dict[str, Any]) -> float:
    return round(100 * tokens / said["prompt_tokens"], 1)


def _versions(python: Path, framework: Framework) -> dict[str, str]:
    code = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"
    command = [str(python), "-c", code, *framework.shown]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(zip(framework.shown, done.stdout.split(), strict=True))


def _show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        shares = row["reused_of_question_2"]
        _say(
            f"{row['name']:<36} {row['calls']:<6} rows {row['rows_recognised']} "
            f"reuse {shares['sglang']} -> {shares['depcache']} %"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Facts in prompts: what is recognised in recorded ones of frameworks, and in ordinary ones.

`--prompts DIR` holds recorded prompts, see `eval/recognise/frameworks.py`; without it only the
ordinary prompts are read, 500 that hold no facts: code, poems, logs, mails, tables.

    --quick   50 ordinary prompts
"""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from depcache.errors import ConfigError
from depcache.serving.random_model import find_model
from eval.output import about, add_output, write_report
from eval.recognise.frameworks import measure_folder
from eval.recognise.ordinary import NUM_PROMPTS, measure_ordinary
from eval.recognise.served import measure_served

NUM_QUICK = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand."""
    add_output(parser, quick=f"{NUM_QUICK} ordinary prompts")
    parser.add_argument("--prompts", type=Path, metavar="DIR", help="recorded prompts")
    parser.add_argument(
        "--serve", metavar="MODEL", help="ask the recorded prompts of real servers too"
    )


def run(args: argparse.Namespace) -> int:
    """Read, print and write; the exit code."""
    started = time.perf_counter()
    if args.serve and not args.prompts:
        raise ConfigError("--serve asks recorded prompts: name their folder with --prompts")
    rows = measure_folder(args.prompts) if args.prompts else []
    for row in rows:
        print(
            f"{row['prompts']:<30} {row['recognised']:>3}/{row['rows']:<3} "
            f"{row['prefix_percent']:5.1f} -> {row['rows_percent']:5.1f} % {row['ms']:6.2f} ms "
            f"{'' if row['same_text_before'] in (True, None) else 'other text before'}"
        )
    served = measure_served(args.prompts, find_model(args.serve)) if args.serve else []
    for row in served:
        print(
            f"{row['prompts']:<30} {row['tokens']:>6} tokens, reused "
            f"{row['sglang_percent']:5.1f} -> {row['depcache_percent']:5.1f} % "
            f"{'' if row['is_read'] else 'plain'}"
        )
    ordinary = measure_ordinary(NUM_QUICK if args.quick else NUM_PROMPTS)
    for kind, counts in ordinary["kinds"].items():
        print(f"{kind:<30} {counts['outlines']:>3}/{counts['prompts']:<3} {counts['wrong']} wrong")
    manifest = about(args, time.perf_counter() - started)
    # Where the prompts lie is nobody's business, and they are not ours to publish.
    words = ["--prompts", "DIR"] if args.prompts else []
    words += ["--serve", args.serve] if args.serve else []
    quick = ["--quick"] if args.quick else []
    manifest["command"] = shlex.join(
        ["python", "-m", "eval", "recognise", *quick, *words, "--json", "PATH"]
    )
    report = {"rows": rows, "served": served, "ordinary": ordinary, "manifest": manifest}
    write_report(report, args.json)
    return 0

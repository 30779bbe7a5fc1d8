# SPDX-License-Identifier: Apache-2.0
"""Where the time of a warm request goes: `python -m eval serve --profile depcache`.

py-spy looks, from outside, at what every Python thread of the server is doing, 100 times a
second, while warm requests are asked one at a time, each for one token. Threads that wait are
left out, and a scheduler that looks for requests has a row of its own, since it does so without
pause. What is left of the time to first token is the way between processes and back to the
client, and the client itself.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import depcache
from depcache.errors import ConfigError, ServerError
from depcache.install_hints import install_command
from eval.serve.drive import Call, drive
from eval.serve.measure import LOAD, STREAM, WARM, Options, open_system, split
from eval.serve.records import Record
from eval.serve.systems import System, Writer
from eval.serve.workloads import Workload

SAMPLES_A_SECOND = 100
ATTEMPTS = 3
SCHEDULER, DETOKENIZER, FRONT = "scheduler", "detokenizer", "front"
OTHER = "other"
INNERMOST = "<end>"
POLLING = "waiting for requests"

_POLLS = ("on_idle", "recv_requests", "publish_load_snapshot")
Areas = dict[str, tuple[tuple[str, tuple[str, ...]], ...]]
"""Areas of each process with words, in an order: see `AREAS`."""

AREAS: Areas = {
    FRONT: (
        ("tokens of the text", ("tokenizers/", "transformers/", "depcache/prompt/tokenization")),
        ("trees of the prompt", ("depcache/", "sglang_patches/")),
        ("checks of the request", ("pydantic/", "sglang/srt/entrypoints/openai/")),
        ("HTTP", ("uvicorn/", "fastapi/", "starlette/", "h11/", "httptools", "sse_")),
        ("requests of SGLang", ("sglang/",)),
    ),
    SCHEDULER: (
        (POLLING, _POLLS),
        ("plans of the attention", ("flashinfer_masks/", "init_forward_metadata")),
        ("attention", ("sglang_patches/attention/", "torch_native_backend")),
        ("KV written", ("set_kv_buffer",)),
        ("layers of the model", ("sglang/srt/models/", "sglang/srt/layers/")),
        ("model runner", ("sglang/srt/model_executor/", "sglang/srt/managers/tp_worker")),
        ("matching and cache", ("depcache/", "sglang_patches/")),
        ("scheduling of SGLang", ("sglang/",)),
    ),
    DETOKENIZER: (("text of the tokens", ("detokenizer", "transformers/", "tokenizers/")),),
}
"""A stack belongs to the first area of its process that has a word in any of its frames."""

_WAITING = ("Condition.wait ", "WatchdogRaw.", "_worker (concurrent/futures/thread.py)")
_INSTALLED = re.compile(r"\((?:[^()]*/)?site-packages/")
_OWN = str(Path(depcache.__file__).parents[1])


def profile(
    system: System,
    workload: Workload,
    writer: Writer,
    options: Options,
) -> dict[str, Any]:
    """Milliseconds of a warm request by process and area, and its time to first token.

    The requests of `stream` and `load` fill the cache, those of `warm` are measured.

    Raises ConfigError without py-spy or with fewer than two warm requests, and ServerError when a
    request fails.
    """
    tool = find_tool()
    if options.counts[WARM] < 2:
        raise ConfigError(
            f"--warm is {options.counts[WARM]}: a profile takes two requests or more, half of "
            "them without the profiler"
        )
    options = replace(options, max_tokens=1)
    requests = split(workload.requests, options.counts)
    calls = {name: [writer.write(system, each) for each in requests[name]] for name in requests}

    def ask(url: str, calls: Sequence[Call]) -> list[Record]:
        def note(i: int) -> Record:
            return Record(str(i), system.name, workload.spec.name, WARM, 0, i)

        records, _ = drive(url, calls, note, max_tokens=options.max_tokens)
        # One token may be a piece of a character, without text: answered, but nobody saw when.
        broken = [each.error for each in records if each.error and not each.prompt_tokens]
        if broken:
            raise ServerError(f"a request to {url} failed: {broken[0]}")
        return records

    with (
        open_system(system, writer, options) as (process, _),
        tempfile.TemporaryDirectory(prefix="depcache-profile-") as folder,
    ):
        url = process.url
        ask(url, [*calls[STREAM], *calls[LOAD]])
        # Half of them without the profiler: what it costs is part of the report.
        half = len(calls[WARM]) // 2
        alone = ask(url, calls[WARM][:half])
        stacks = Path(folder) / "stacks"
        # On a machine with much else to do py-spy gives up on a process that it cannot read at
        # once, and does not come back to it. Without the scheduler a profile says nothing.
        for _ in range(ATTEMPTS):
            with sampling(tool, process.pid, stacks):
                sampled = ask(url, calls[WARM][half:])
            counts = count(stacks.read_text(encoding="utf-8").splitlines())
            if any(name == SCHEDULER for name, _ in counts):
                break
        else:
            raise ServerError(
                f"py-spy did not see the scheduler in {ATTEMPTS} attempts: try again while the "
                "machine has less to do"
            )
    number = len(sampled)
    rows = [
        {
            "process": name,
            "area": area,
            "ms": round(1e3 * samples / SAMPLES_A_SECOND / number, 3),
        }
        for (name, area), samples in counts.most_common()
    ]
    return {
        "system": system.name,
        "workload": workload.spec.name,
        "requests": number,
        "rows": rows,
        "busy_ms": round(sum(row["ms"] for row in rows if row["area"] != POLLING), 3),
        "ttft_ms_mean": _ms(mean, sampled),
        "ttft_ms_p50": _ms(median, sampled),
        "ttft_ms_p50_without_profiler": _ms(median, alone),
        "computed_tokens": round(mean(record.computed_tokens for record in sampled), 1),
        "prompt_tokens": round(mean(record.prompt_tokens for record in sampled), 1),
    }


def count(lines: Iterable[str], areas: Areas = AREAS) -> Counter[tuple[str, str]]:
    """Samples by process and area, of lines of py-spy's format `raw`: frames, outermost first.

    `process 6:"python ...";process 7:"sglang::scheduler";run (a.py);f (b.py) 12`; a process that
    another started stands behind it. Threads that wait are left out.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        if not (samples.isdecimal() and samples.isascii()):
            continue  # read while it changed: a frame's name was anything, ends of lines too
        # From the packages on: the folder that they lie in may be called like one of them.
        frames = _INSTALLED.sub("(", stack).replace(f"({_OWN}/", "(").split(";")
        if any(word in frames[-1] for word in _WAITING):
            continue
        last = max((i for i, frame in enumerate(frames) if frame.startswith("process ")), default=0)
        # Behind the last frame stands a mark, for words that mean the innermost one.
        title, found = frames[last], " ".join([*frames[last + 1 :], INNERMOST])
        process = next((name for name in (SCHEDULER, DETOKENIZER) if f"::{name}" in title), FRONT)
        names = (name for name, words in areas[process] if any(word in found for word in words))
        area = POLLING if "event_loop" in frames[-1] else next(names, OTHER)
        counts[process, area] += int(samples)
    return counts


def to_text(found: dict[str, Any]) -> str:
    """A table of it."""
    from tabulate import tabulate

    rows: Sequence[Sequence[Any]] = [
        (row["process"], row["area"], f"{row['ms']:.2f}") for row in found["rows"]
    ]
    table = tabulate(rows, ["process", "area", "ms"], tablefmt="github", disable_numparse=True)
    return (
        f"{table}\n\nOne warm request of {found['system']}: {found['ttft_ms_p50']:.1f} ms to the "
        f"first token ({found['ttft_ms_p50_without_profiler']:.1f} without the profiler; medians "
        f"of {found['requests']}), mean {found['ttft_ms_mean']:.1f}, of which the server computed "
        f"for {found['busy_ms']:.1f}; {found['computed_tokens']:,.0f} of "
        f"{found['prompt_tokens']:,.0f} tokens were computed."
    )


@contextmanager
def sampling(tool: str, pid: int, out: Path) -> Iterator[None]:
    """py-spy on a process and its children, for as long as the block."""
    flags = ["--subprocesses", "--nonblocking", "--nolineno", "--full-filenames", "--format", "raw"]
    command = [tool, "record", *flags, "--rate", str(SAMPLES_A_SECOND), "--output", str(out)]
    command += ["--pid", str(pid)]
    sampler = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(3.0)  # it reads the symbols of every process first
    if sampler.poll() is not None:
        said = sampler.communicate()[0].strip().splitlines()
        raise ConfigError(f"py-spy cannot look at the server: {said[-1] if said else 'no reason'}")
    try:
        yield
    finally:
        sampler.send_signal(signal.SIGINT)
        sampler.communicate(timeout=600.0)


def find_tool() -> str:
    """Where py-spy is; ConfigError where it is not."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise ConfigError(f"py-spy is not installed: {install_command('bench')}")
    return found


def _ms(measure: Any, records: Sequence[Record]) -> float:
    """Returns `measure` of the times to first token, ms; ServerError when no answer had text."""
    times = [record.ttft_s for record in records if record.ttft_s is not None]
    if not times:
        raise ServerError(f"none of {len(records)} answers had any text: use another model")
    return round(1e3 * measure(times), 2)

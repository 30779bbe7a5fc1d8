# SPDX-License-Identifier: Apache-2.0
"""Which stage of a request a sample belongs to, finer than in `eval.serve.profile`.

Each process has a list of stages with words; a sample counts for the first stage of which a word
is in its stack. So what is inside comes before what is around it. Shares of samples are told in
milliseconds of the processor time of their process, which the system has counted.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from depcache.errors import ServerError
from eval.host.servers import DETOKENIZER, FRONT, SCHEDULER, HostServer
from eval.serve.profile import (
    ATTEMPTS,
    INNERMOST,
    OTHER,
    POLLING,
    Areas,
    count,
    find_tool,
    sampling,
)

SLEEPING = "sleeping"
ENOUGH = 30
"""Samples of the scheduler from which its shares mean something; fewer are added to."""
STAGES: Areas = {
    FRONT: (
        # What the loop itself computes, and what it waits for the interpreter.
        ("event loop", (f"asyncio/runners.py) {INNERMOST}",)),
        ("template", ("depcache/prompt/template",)),
        (
            "tokenize",
            ("depcache/prompt/tokenization", "Base.encode ", "Base.__call__ ", "_encode_plus"),
        ),
        ("chat template", ("_apply_jinja_template", "jinja2/")),
        ("wire parse", ("depcache/prompt/wire", "depcache/prompt/paths")),
        ("forest", ("depcache/", "flashinfer_masks/")),
        ("hooks", ("sglang_patches/requests/", "sglang_patches/http/")),
        ("pickling/zmq", ("sock_send", "sock_recv", "zmq/", "pickle")),
        ("generate", ("sglang/srt/managers/",)),
        ("http/json", ("uvicorn/", "fastapi/", "starlette/", "h11/", "anyio/", "pydantic/")),
    ),
    SCHEDULER: (
        (SLEEPING, ("maybe_sleep",)),
        ("pickling/zmq", ("recv_requests", "sock_recv", "sock_send", "pickle")),
        ("wire parse", ("parse_wire", "read_input_ids")),
        ("forest", ("make_state",)),
        ("permute", ("_permute",)),
        ("match", ("match_segments", "depcache/plan/match")),
        ("plan", ("plan_request", "DependencyRequests.match", "RequestState.start")),
        ("lock", ("KVTree.lock", "KVTree.unlock", "inc_lock_ref", "dec_lock_ref")),
        ("cache", ("cache_finished", "cache_unfinished", "depcache/cache/", "match_prefix")),
        ("look-ahead", ("calc_priority", "waiting_queue")),
        ("attention plan", ("init_forward_metadata", "prepare_forward", "set_positions")),
        ("attention", ("sglang_patches/attention/", "torch_native_backend")),
        ("sampling", ("/sampler.py", "ModelRunner.sample", "sglang/srt/sampling/")),
        ("model forward", ("sglang/srt/models/", "sglang/srt/layers/", "model_executor/")),
        ("scheduling", ("sglang/",)),
    ),
    DETOKENIZER: (("detokenize", ("detokenizer", "transformers/", "tokenizers/")),),
}


def sample(server: HostServer, ask: Callable[[], object]) -> dict[tuple[str, str], int]:
    """Samples by process and stage while `ask` runs; those of sleep are left out.

    `ask` runs again, at most `ATTEMPTS` times in all, as long as the scheduler was seen less than
    `ENOUGH` times: a busy machine lets py-spy run seldom. Raises ConfigError without py-spy,
    ServerError when it did not see the scheduler.
    """
    tool = find_tool()
    with tempfile.TemporaryDirectory(prefix="depcache-stacks-") as folder:
        stacks = Path(folder) / "stacks"
        found: Counter[tuple[str, str]] = Counter()
        for _ in range(ATTEMPTS):
            with sampling(tool, server.pid, stacks):
                ask()
            counts = count(stacks.read_text(encoding="utf-8").splitlines(), STAGES)
            found.update({k: n for k, n in counts.items() if k[1] not in (SLEEPING, POLLING)})
            seen = sum(num for (process, _), num in found.items() if process == SCHEDULER)
            if seen >= ENOUGH:
                break
        if seen:
            return dict(found)
    raise ServerError(
        f"py-spy did not see the scheduler in {ATTEMPTS} attempts: try again while the machine has "
        "less to do"
    )


def share_out(
    samples: Mapping[tuple[str, str], int], process_ms: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Milliseconds by process and stage, the largest first; they add up to `process_ms`."""
    shared: dict[str, dict[str, float]] = {}
    for process, spent in process_ms.items():
        found = {stage: num for (name, stage), num in samples.items() if name == process}
        total = sum(found.values()) or 1
        order = sorted(found, key=lambda stage: (stage == OTHER, -found[stage]))
        shared[process] = {stage: round(spent * found[stage] / total, 2) for stage in order}
    return shared

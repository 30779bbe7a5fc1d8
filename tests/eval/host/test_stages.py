# SPDX-License-Identifier: Apache-2.0
"""A sample counts for the innermost stage that has a name, and shares add up."""

from __future__ import annotations

import pytest

from eval.host.servers import DETOKENIZER, FRONT, SCHEDULER
from eval.host.stages import SLEEPING, STAGES, share_out
from eval.serve.profile import OTHER, count

FIRST = 'process 7:"python -m sglang.launch_server"'
LOOP = f'{FIRST};process 9:"sglang::scheduler";event_loop_normal (sglang/srt/managers/scheduler.py)'
HTTP = f"{FIRST};run (uvicorn/server.py);app (fastapi/routing.py)"
MATCH = f"{LOOP};DepCacheTree.match_prefix (sglang_patches/tree_cache.py)"
RUN = f"{LOOP};ModelRunner.forward (sglang/srt/model_executor/model_runner.py)"
THREAD = f"{FIRST};prepare (sglang_patches/requests/inbound.py)"


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (f"{HTTP};f (h11/_connection.py)", "http/json"),
        (f"{HTTP};Runner.run (/a/lib/asyncio/runners.py)", "event loop"),
        (f"{HTTP};Runner.run (/a/lib/asyncio/runners.py);f (h11/_connection.py)", "http/json"),
        (f"{HTTP};x (sglang/srt/managers/io_struct.py);send (zmq/sugar/socket.py)", "pickling/zmq"),
        (
            f"{HTTP};OpenAIServingChat._apply_jinja_template (a.py);"
            "PreTrainedTokenizerBase.encode (transformers/tokenization_utils_base.py)",
            "tokenize",
        ),
        (
            f"{HTTP};OpenAIServingChat._apply_jinja_template (a.py);"
            "PreTrainedTokenizerBase.apply_chat_template (transformers/tokenization_utils_base.py)",
            "chat template",
        ),
        (f"{THREAD};parse_wire (depcache/prompt/wire.py)", "wire parse"),
        (f"{THREAD};f (depcache/prompt/wire.py);g (depcache/prompt/template.py)", "template"),
        (f"{THREAD};merge_sequences (depcache/prompt/prefix_tree.py)", "forest"),
        (THREAD, "hooks"),
        (FIRST + ";f (a.py)", OTHER),
    ],
)
def test_stages_of_the_front(stack: str, stage: str) -> None:
    assert count([f"{stack} 3"], STAGES) == {(FRONT, stage): 3}


@pytest.mark.parametrize(
    ("stack", "stage"),
    [
        (f"{LOOP};maybe_sleep (idle.py);poll (zmq/sugar/poll.py)", SLEEPING),
        (f"{LOOP};recv_requests (a.py);sock_recv (b.py)", "pickling/zmq"),
        (f"{MATCH};make_state (a.py);parse_wire (depcache/prompt/wire.py)", "wire parse"),
        (f"{MATCH};make_state (a.py);make (flashinfer_masks/visibility.py)", "forest"),
        (f"{MATCH};plan_request (a.py);match_segments (depcache/plan/match.py)", "match"),
        (f"{MATCH};plan_request (depcache/plan/request.py)", "plan"),
        (f"{MATCH};DependencyRequests.match (a.py);_permute (a.py)", "permute"),
        (f"{LOOP};cache_finished_req (a.py);KVTree.unlock (depcache/cache/tree.py)", "lock"),
        (f"{LOOP};cache_finished_req (sglang_patches/tree_cache.py)", "cache"),
        (f"{RUN};init_forward_metadata (sglang_patches/attention/a.py)", "attention plan"),
        (f"{RUN};f (sglang/srt/models/llama.py);g (sglang_patches/attention/a.py)", "attention"),
        (f"{RUN};f (sglang/srt/models/llama.py)", "model forward"),
        (f"{RUN};Sampler.forward (sglang/srt/layers/sampler.py)", "sampling"),
        (f"{LOOP};run_batch (sglang/srt/managers/scheduler.py)", "scheduling"),
    ],
)
def test_stages_of_the_scheduler(stack: str, stage: str) -> None:
    assert count([f"{stack} 3"], STAGES) == {(SCHEDULER, stage): 3}


def test_shares_add_up_to_the_time_of_their_process() -> None:
    samples = {
        (FRONT, OTHER): 70,
        (FRONT, "http/json"): 20,
        (FRONT, "forest"): 10,
        (SCHEDULER, "match"): 5,
    }
    shared = share_out(samples, {FRONT: 8.0, SCHEDULER: 20.0, DETOKENIZER: 0.5})
    assert shared == {
        FRONT: {"http/json": 1.6, "forest": 0.8, OTHER: 5.6},
        SCHEDULER: {"match": 20.0},
        DETOKENIZER: {},
    }
    assert list(shared[FRONT]) == ["http/json", "forest", OTHER]

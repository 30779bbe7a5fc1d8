# SPDX-License-Identifier: Apache-2.0
"""A real `sglang.Engine` on the CPU for tests, strict about its memory, one alive at a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from depcache.serving.process import find_free_port
from tests.helpers.ends import SLOWEST_S
from tests.helpers.forked import end_processes, forked_processes
from tests.helpers.prompts import TreePrompt

TOP_LOGPROBS = 5

_ARGUMENTS: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "dtype": "float32",
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.9,
    "max_total_tokens": 8192,
    "max_running_requests": 16,
    "page_size": 1,
    "log_level": "warning",
    "watchdog_timeout": SLOWEST_S,
}

# Every step checks that free + cached + in flight is all of the pool, and a leak ends the
# scheduler: an engine that still answers has lost no slot.
_ENVIRONMENT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    # Tiny matrices: threads that wait for each other cost more than they bring.
    "DEPCACHE_CPU_THREADS": "1",
}


@contextmanager
def start_engine(
    model: Path, *, environment: dict[str, str] | None = None, **arguments: Any
) -> Iterator[RunningEngine]:
    """Run an engine with the DepCache plugin until the block ends.

    environment  variables for this engine on top of the strict checks
    arguments    SGLang server arguments; `radix_cache_backend=None` is the stock cache
    """
    import sglang

    arguments = {
        "radix_cache_backend": "depcache",
        "custom_sigquit_handler": _fail_to_start,
        "nccl_port": find_free_port(),  # SGLang's own may be taken until it listens there
        **_ARGUMENTS,
        **arguments,
    }
    # CUDA cannot be used in a process that was forked after it began.
    forked = forked_processes() if arguments["device"] == "cpu" else nullcontext()
    with _variables({**_ENVIRONMENT, **(environment or {})}), forked:
        try:
            engine = sglang.Engine(model_path=str(model), **arguments)
        except EngineDiedError:
            end_processes()
            raise
        try:
            yield RunningEngine(engine)
        finally:
            engine.shutdown()


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class EngineDiedError(AssertionError):
    """A process of the engine ended; its log says why ("Scheduler hit an exception")."""


def _fail_to_start(signum: int, frame: Any) -> None:
    raise EngineDiedError("the engine ended while it started")


class RunningEngine:
    """What tests ask of an engine.

    A child that fails sends SIGQUIT, on which SGLang kills the whole process, pytest with all
    its results. Here it is an error of the test that was waiting, and of those after it.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._died = asyncio.Event()
        manager = engine.tokenizer_manager
        assert manager.event_loop is None, "its signal handlers are not set yet"
        manager.signal_handler_class = lambda _: SimpleNamespace(
            sigterm_handler=_exit, running_phase_sigquit_handler=self._died.set
        )

    def generate(
        self,
        prompts: Sequence[TreePrompt],
        num_new: int = 6,
        *,
        extra_keys: Sequence[str | None] | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Greedy answers to prompts that arrive in one message, with log-probabilities.

        num_new  tokens of each answer; the end-of-text token does not end it
        """
        manager = self.engine.tokenizer_manager
        request = _make_request(prompts, num_new, extra_key=extra_keys, **options)
        return self.run(anext(manager.generate_request(request, None)))

    def ask(self, prompt: TreePrompt, num_new: int = 6, **options: Any) -> dict[str, Any]:
        """The answer to one prompt."""
        return self.run(self.answer(prompt, num_new, **options))

    def run(self, work: Awaitable[Any]) -> Any:
        """The result of an awaitable. EngineDiedError; TimeoutError if none comes."""
        return self.engine.loop.run_until_complete(self._guard(work))

    async def _guard(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        died = asyncio.ensure_future(self._died.wait())
        await asyncio.wait({task, died}, timeout=SLOWEST_S, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if task.done():
            return task.result()
        task.cancel()
        if self._died.is_set():
            raise EngineDiedError("the engine ended")
        raise TimeoutError(f"no answer within {SLOWEST_S} s")

    def ask_raw(self, tokens: list[int], sampling_params: dict[str, Any]) -> Any:
        """What the engine says to these sampling parameters, greedy unless they say otherwise."""
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = GenerateReqInput(
            input_ids=list(tokens),
            sampling_params={"temperature": 0, "ignore_eos": True, **sampling_params},
            return_logprob=True,
            top_logprobs_num=TOP_LOGPROBS,
        )
        return self.run(anext(self.engine.tokenizer_manager.generate_request(request, None)))

    async def answer(
        self,
        prompt: TreePrompt,
        num_new: int,
        *,
        on_output: Callable[[dict[str, Any]], None] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """One answer; `on_output` sees every step of it."""
        request = _make_request(prompt, num_new, stream=on_output is not None, **options)
        last: dict[str, Any] = {}
        async for last in self.engine.tokenizer_manager.generate_request(request, None):
            if on_output is not None:
                on_output(last)
        return last

    def abort(self, rid: str) -> None:
        self.engine.tokenizer_manager.abort_request(rid=rid)

    def abort_all(self) -> None:
        self.engine.tokenizer_manager.abort_request(abort_all=True)

    def flush(self) -> None:
        """Empty the cache, as soon as the engine has nothing left to do."""
        manager = self.engine.tokenizer_manager
        result = self.run(manager.flush_cache(timeout_s=SLOWEST_S))
        assert result.success, f"the engine did not come to rest: {result.message}"

    def load_weights(self, folder: Path) -> None:
        """Replace the model's weights by those in `folder`, while the engine runs."""
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        request = UpdateWeightFromDiskReqInput(model_path=str(folder))
        manager = self.engine.tokenizer_manager
        success, message, *_ = self.run(manager.update_weights_from_disk(request, None))
        assert success, message

    def cache_state(self) -> dict[str, Any]:
        """Sizes and counters of the cache, as the status route shows them."""
        states = self.run(self.engine.tokenizer_manager.get_internal_state())
        return states[0]["depcache"]["cache"]

    def wait_until_stored(self) -> dict[str, Any]:
        """Nothing waits to be written to disk. Returns the state of the disk tier."""
        deadline = time.monotonic() + SLOWEST_S
        while (disk := self.cache_state()["disk"])["waiting_tokens"]:
            assert time.monotonic() < deadline, disk
            time.sleep(0.05)
        return disk

    def check_conservation(self) -> dict[str, Any]:
        """Nothing runs, so every slot is free or cached, and nothing is held. Returns the state."""
        deadline = time.monotonic() + SLOWEST_S
        while (state := self.cache_state())["locked_tokens"] or state["private_tokens"]:
            assert time.monotonic() < deadline, f"slots are held though nothing runs: {state}"
            time.sleep(0.05)
        assert state["free_tokens"] + state["cached_tokens"] == state["capacity_tokens"], state
        return state


def _make_request(
    prompts: TreePrompt | Sequence[TreePrompt],
    num_new: int,
    *,
    may_stop: bool = False,
    **options: Any,
) -> Any:
    """SGLang's GenerateReqInput for one prompt or several.

    may_stop  answers may be shorter; SGLang admits more of those at once, and retracts some
    """
    from sglang.srt.managers.io_struct import GenerateReqInput

    if isinstance(prompts, TreePrompt):
        input_ids, sampling_params = _input_of(prompts, num_new, may_stop)
    else:
        pairs = [_input_of(prompt, num_new, may_stop) for prompt in prompts]
        input_ids, sampling_params = [ids for ids, _ in pairs], [params for _, params in pairs]
    return GenerateReqInput(
        input_ids=input_ids,
        sampling_params=sampling_params,
        **{"return_logprob": True, "top_logprobs_num": TOP_LOGPROBS, **options},
    )


def _input_of(prompt: TreePrompt, num_new: int, may_stop: bool) -> tuple[Any, Any]:
    params: dict[str, Any] = {"max_new_tokens": num_new, "temperature": 0}
    params["ignore_eos"] = not may_stop
    custom_params = prompt.params()
    if custom_params is not None:
        params["custom_params"] = custom_params
    return list(prompt.tokens), params


def _exit() -> None:
    raise SystemExit("SIGTERM")


def reuse_of(result: dict[str, Any]) -> tuple[int, int, int]:
    """(shared, shifted, missed) context tokens that an answer reports."""
    report = result["meta_info"]["depcache"]
    return report["shared"], report["shifted"], report["missed"]

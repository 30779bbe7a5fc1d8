# SPDX-License-Identifier: Apache-2.0
"""Fused answers judged by the flat prompt, a small share of them, when the server has time.

The answer's tokens go behind the flat prompt as one plain request that generates nothing, and
SGLang says for each whether it would have been the first choice there. Only greedy answers can be
judged so. What comes of it is the step of the guard (`depcache.select.guard`).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

from depcache.config import Config
from depcache.prompt.recompute import MAX_ALPHA, Recompute
from depcache.select.guard import QualityGuard
from sglang_patches.requests.beside import make_beside
from sglang_patches.requests.tenants import TenantKey

logger = logging.getLogger("depcache")

MAX_WAITING = 4
"""Answers that wait to be judged; further ones are let go."""

WAIT_S, LOOK_S = 10.0, 0.05
"""How long to wait for a moment without requests, and how often to look for one."""


class Shadow:
    """Judges one of every so many fused answers of a server, and keeps its guard.

    share  of the greedy fused answers that are judged, 0 to 1
    least  agreement below which more is recomputed; see `QualityGuard`
    tasks  answers that are being judged, or wait for it
    """

    def __init__(self, share: float, least: float) -> None:
        self.guard = QualityGuard(least)
        self._share = share
        self._due = 0.0
        self.tasks: set[asyncio.Task[None]] = set()

    def allow(self, recompute: Recompute) -> Recompute | None:
        """What a request may recompute; None: it is answered as the flat prompt.

        A pinned request, one that gives its indices and one that is flat anyhow get what they ask.
        """
        if recompute.is_pinned or recompute.selected is not None or recompute.share == 1:
            return recompute
        share = self.guard.share(recompute.share)
        if share is None:
            return None
        if recompute.select == "stored":  # its budget is no share
            alpha = min(MAX_ALPHA, recompute.alpha * share / recompute.share)
            return replace(recompute, alpha=alpha)
        return recompute if share == recompute.share else replace(recompute, share=share)

    def pass_over(self) -> None:
        """Note a request that is answered as the flat prompt because of `allow`."""
        if self.guard.pass_over():
            self._say()

    def note(self, manager: Any, obj: Any, prompt: list[int], answer: list[int]) -> None:
        """Judge this answer later, if it is its turn.

        obj     its GenerateReqInput, with the extra key that went to the scheduler
        prompt  tokens of the flat prompt
        """
        is_greedy = obj.sampling_params.get("temperature", 1.0) == 0
        if not is_greedy or not answer or obj.sampling_params.get("n", 1) != 1:
            return
        self._due += self._share
        if self._due < 1:
            return
        self._due -= 1
        if len(self.tasks) >= MAX_WAITING:
            return
        task = asyncio.create_task(self._judge(manager, _make_request(obj, prompt, answer)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _judge(self, manager: Any, request: Any) -> None:
        try:
            await _wait_for_rest(manager)
            out: dict[str, Any] = {}
            async for each in manager.generate_request(request, None):
                out = each
            agreement = read_agreement(out["meta_info"])
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.warning("%s: a fused answer could not be judged", request.rid, exc_info=True)
            return
        if self.guard.note(agreement):
            self._say()

    def _say(self) -> None:
        logger.warning(
            "fused answers: the guard is at step %d; a share of 0.15 becomes %s",
            self.guard.step,
            self.guard.share(0.15) or "the flat prompt",
        )


def read_agreement(meta_info: dict[str, Any]) -> float:
    """The share of the judged tokens that were the first choice, 0 to 1.

    meta_info  of a reply with `input_token_logprobs` and one `input_top_logprobs` each; the first
               of them is of the prompt's last token
    """
    tokens = [token for _, token, _ in meta_info["input_token_logprobs"]][1:]
    firsts = [tops[0][1] if tops else None for tops in meta_info["input_top_logprobs"]][1:]
    return sum(a == b for a, b in zip(tokens, firsts, strict=True)) / len(tokens)


def _make_request(obj: Any, prompt: list[int], answer: list[int]) -> Any:
    request = make_beside(
        obj,
        "shadow",
        [*prompt, *answer],
        {"max_new_tokens": 0, "temperature": 0},
        return_logprob=True,
        logprob_start_len=len(prompt) - 1,
        top_logprobs_num=1,
    )
    # Sealed on its way to the scheduler, and not to be sealed again.
    request.extra_key = None if obj.extra_key is None else TenantKey(obj.extra_key)
    return request


async def _wait_for_rest(manager: Any) -> None:
    """Return when no request is on its way, or after WAIT_S on a server that never rests."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while manager.rid_to_state and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(LOOK_S)


_shadow = Shadow(0.0, 0.0)


def set_shadow(config: Config) -> None:
    """Take over the settings, for this process."""
    global _shadow
    _shadow = Shadow(config.fused_shadow_share, config.fused_min_agreement)


def shadow() -> Shadow:
    """The one of this process."""
    return _shadow

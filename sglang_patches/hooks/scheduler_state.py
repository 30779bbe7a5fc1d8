# SPDX-License-Identifier: Apache-2.0
"""Hook on the scheduler's state query: the way from the HTTP process to the cache and back.

Why: the routes of DepCache live in the HTTP process and the cache in the scheduler's, and
SGLang has no message for plugins. The state query's reply is an open dictionary, and its
request id, which nobody uses, carries our question as JSON.
Unnecessary when SGLang offers plugins a request of their own.
"""

from __future__ import annotations

from typing import Any

from sglang_patches.contract import Scheduler


def add_depcache_state(result: Any, scheduler: Scheduler, recv_req: Any) -> None:
    """Put our cache's state, and the answer to a question, into the reply.

    With `private_counts` only for who asks a question, as our routes do: SGLang tells the reply on
    `/server_info` to every client.
    """
    cache = scheduler.tree_cache
    if getattr(cache, "is_depcache", False):
        from sglang_patches.http.control import answer, is_question

        if is_question(recv_req.rid) or not cache.hides_counts:
            result.internal_state["depcache"] = answer(scheduler, recv_req.rid)


HOOKS = {
    "sglang.srt.managers.scheduler.Scheduler.get_internal_state": ("AFTER", add_depcache_state)
}

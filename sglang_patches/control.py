# SPDX-License-Identifier: Apache-2.0
"""Questions from the HTTP process to the cache, answered inside the scheduler.

A question is JSON in the request id of SGLang's state query; see `hooks/scheduler_state.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from depcache.errors import PromptError
from depcache.plan import plan_request
from depcache.prompt.wire import WireIds, parse_wire
from sglang_patches.request_state import RequestState
from sglang_patches.stats import dump_tree, make_stats

QUESTION_PREFIX = "depcache:"


def make_question(question: dict[str, Any]) -> str:
    """The request id that carries `question`."""
    return QUESTION_PREFIX + json.dumps(question)


def answer(scheduler: Any, rid: str | None) -> dict[str, Any]:
    """The cache's state, and under `reply` the answer to the question in `rid`, if any."""
    cache = scheduler.tree_cache
    state: dict[str, Any] = {"cache": cache.describe()}
    if rid and rid.startswith(QUESTION_PREFIX):
        question = json.loads(rid[len(QUESTION_PREFIX) :])
        try:
            state["reply"] = _ANSWERS[question["ask"]](cache, question)
        except PromptError as error:
            state["error"] = str(error)
    return state


def _explain(cache: Any, question: dict[str, Any]) -> dict[str, Any]:
    """What the plan for a prompt would be now. Counts no hit and locks nothing."""
    wire = parse_wire(question["custom_params"])
    if not isinstance(wire, WireIds):
        raise PromptError("explain needs dependency data in ids form: send segments")
    tokens = np.array(question["input_ids"], dtype=np.int64)
    state = RequestState.make(tokens, wire, question["extra_key"])
    root = cache.tree.root(state.namespace)
    plan = plan_request(cache.tree, root, state.table)
    return {
        "shared": plan.num_shared,
        "shifted": plan.num_shifted,
        "loaded": plan.num_loaded,
        "missed": plan.num_missed,
        "matched_by_segment": plan.matched,
    }


_ANSWERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "explain": _explain,
    "stats": lambda cache, question: make_stats(cache),
    "tree": lambda cache, question: dump_tree(cache, question["limit"]),
}

# SPDX-License-Identifier: Apache-2.0
"""Requests refused in the tokenizer's process, counted where the client's error is made.

Nearly all refusals happen here; the scheduler counts the few that reach it, in the same metric.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from depcache.errors import PromptError
from sglang_patches.observe.metrics import REJECTED, common_labels

_server_args: Any = None
_series: Any = None
_num_rejected = 0
_is_trial: ContextVar[bool] = ContextVar("depcache_is_trial", default=False)


def export_rejections(server_args: Any) -> None:
    """Let the refusals of this process go to /metrics, if this server has one."""
    global _server_args
    _server_args = server_args if server_args.enable_metrics else None


def num_rejected() -> int:
    """Refusals in this process so far."""
    return _num_rejected


@contextmanager
def counting_rejections() -> Iterator[None]:
    """Count a PromptError on its way out."""
    try:
        yield
    except PromptError:
        if not _is_trial.get():
            _count()
        raise


@contextmanager
def trial() -> Iterator[None]:
    """What is refused in this block was a question, not a request."""
    token = _is_trial.set(True)
    try:
        yield
    finally:
        _is_trial.reset(token)


def _count() -> None:
    global _num_rejected, _series
    _num_rejected += 1
    if _server_args is None:
        return
    if _series is None:
        # Not before the first refusal: SGLang has prepared the client's folder by then.
        from prometheus_client import Counter

        labels = common_labels(_server_args)
        _series = Counter(*REJECTED, list(labels)).labels(**labels)
    _series.inc()

# SPDX-License-Identifier: Apache-2.0
"""The metrics `depcache:*` on SGLang's /metrics, written by the scheduler process.

`prometheus_client` is imported when the cache is built, never with this module: the plugin is
loaded before SGLang sets PROMETHEUS_MULTIPROC_DIR, and the client looks at it only once.

Of several tensor-parallel ranks, which all see the same requests, only the first one writes,
unless the server has --enable-metrics-for-all-schedulers: SGLang's own rule and label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import depcache
from sglang_patches.compat import dp_rank
from sglang_patches.observe.stats import describe_tiers
from sglang_patches.requests.state import NO_FREE_SLOTS, POOL_TOO_SMALL, SOURCES
from sglang_patches.version import installed_version

# Words for labels; a sentence that is not here counts as "other".
_REASONS = {None: "", POOL_TOO_SMALL: "pool_too_small", NO_FREE_SLOTS: "no_free_slots"}

# Matching takes microseconds where a radix tree is small and milliseconds where it is large.
PLAN_BUCKETS_S = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005),
    *(0.01, 0.02, 0.05, 0.1, 0.5),
)

# (name, key in a tier's description, what it is)
_TIER_GAUGES = (
    ("resident_nodes", "nodes", "Nodes whose KV the tier holds."),
    ("resident_tokens", "tokens", "Tokens whose KV the tier holds."),
    ("resident_bytes", "bytes", "Bytes of KV that the tier holds."),
    ("capacity_bytes", "capacity_bytes", "Bytes of KV that the tier can hold."),
)
_TIER_COUNTERS = (
    ("evicted_tokens", "evicted", "Tokens evicted from the tier."),
    ("evicted_nodes", "evicted_nodes", "Nodes evicted from the tier."),
    ("loaded_tokens", "loaded", "Tokens brought back to the device from the tier."),
    ("fetch_seconds", "fetch_seconds", "Time that KV was on its way for requests."),
    ("wait_seconds", "wait_seconds", "Time that requests waited for KV while nothing else ran."),
)
# These have a count per reason.
_TIER_REASONS = (
    ("tier_failures", "failures", "Reads from the tier that failed, by reason."),
    ("tier_dropped", "dropped_nodes", "Nodes that the tier did not take, by reason."),
)
REJECTED = ("depcache:rejected_requests", "Requests refused for what they say of dependencies.")


def common_labels(server_args: Any) -> dict[str, str]:
    """The labels of every metric: the model's name, and what --extra-metric-labels gives."""
    return {
        "model_name": str(server_args.served_model_name),
        **(server_args.extra_metric_labels or {}),
    }


class NullMetrics:
    """No metrics: of a server without --enable-metrics."""

    def note_request(self, report: Mapping[str, Any], plan_s: float) -> None:
        """A dependency request was admitted.

        report  its `RequestState.report`
        plan_s  seconds that were spent on preparing, matching and planning it
        """

    def publish(self) -> None:
        """Write what has changed in the tiers and the counters. Constant time."""


class PrometheusMetrics(NullMetrics):
    """The metrics of one scheduler process.

    labels         of every metric but `rejected_requests`, which has `common` only: the process
                   that serves HTTP counts there too
    read_tiers     gives one description per tier, as `stats.describe_tiers`; a tier leaves out
                   what it does not have
    read_counters  gives `DepCacheTree.counters`
    registry       only for tests; None is the client's own
    """

    def __init__(
        self,
        labels: Mapping[str, str],
        common: Mapping[str, str],
        read_tiers: Callable[[], dict[str, dict[str, Any]]],
        read_counters: Callable[[], Mapping[str, int]],
        *,
        counts_rejections: bool = True,
        registry: Any = None,
    ) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        registry = registry or REGISTRY
        self._labels = dict(labels)
        self._read_tiers = read_tiers
        self._read_counters = read_counters
        # (what, tier, reason) -> [value as last written, the series it is written to]
        self._written: dict[tuple[str, ...], list[Any]] = {}

        def counter(name: str, help_text: str, *more: str) -> Any:
            names = [*self._labels, *more]
            return Counter(f"depcache:{name}", help_text, names, registry=registry)

        def gauge(name: str, help_text: str, *more: str) -> Any:
            return Gauge(
                f"depcache:{name}",
                help_text,
                [*self._labels, *more],
                registry=registry,
                multiprocess_mode="mostrecent",
            )

        tokens = counter("prompt_tokens", "Tokens of dependency prompts by source.", "source")
        self._tokens = {name: tokens.labels(**labels, source=name) for name in SOURCES}
        self._tail_tokens = counter(
            "tail_tokens", "Tokens behind the context, counted as plain, that were cached."
        ).labels(**labels)
        requests = counter("requests", "Requests admitted.", "mode", "reason")
        self._requests = {
            reason: requests.labels(**labels, mode="dependency", reason=reason)
            for reason in (*_REASONS.values(), "other")
        }
        self._plain_requests = requests.labels(**labels, mode="plain", reason="")
        self._plan_seconds = Histogram(
            "depcache:plan_seconds",
            "Time to prepare, match and plan one dependency request, in seconds.",
            list(self._labels),
            buckets=PLAN_BUCKETS_S,
            registry=registry,
        ).labels(**labels)
        gauge("build_info", "Always 1; the versions.", "version", "sglang_version").labels(
            **labels,
            version=depcache.__version__,
            sglang_version=installed_version() or "",
        ).set(1)
        self._rejected = None
        if counts_rejections:
            name, text = REJECTED
            self._rejected = Counter(name, text, list(common), registry=registry).labels(**common)
        self._gauges = {key: gauge(name, text, "tier") for name, key, text in _TIER_GAUGES}
        self._totals = {key: counter(name, text, "tier") for name, key, text in _TIER_COUNTERS}
        self._by_reason = {
            key: counter(name, text, "tier", "reason") for name, key, text in _TIER_REASONS
        }
        self.publish()

    def note_request(self, report: Mapping[str, Any], plan_s: float) -> None:
        for name, series in self._tokens.items():
            if report[name]:
                series.inc(report[name])
        if report["tail"]:
            self._tail_tokens.inc(report["tail"])
        self._requests[_REASONS.get(report["fallback_reason"], "other")].inc()
        self._plan_seconds.observe(plan_s)

    def publish(self) -> None:
        counters = self._read_counters()
        self._raise_to(self._plain_requests, counters["plain_requests"], "plain")
        if self._rejected is not None:
            self._raise_to(self._rejected, counters["rejected_requests"], "rejected")
        for tier, told in self._read_tiers().items():
            for key, metric in self._gauges.items():
                if key in told:
                    self._set(metric, told[key], key, tier)
            for key, metric in self._totals.items():
                if key in told:
                    self._raise_to(metric, told[key], key, tier)
            for key, metric in self._by_reason.items():
                for reason, value in told.get(key, {}).items():
                    self._raise_to(metric, value, key, tier, reason)

    def _set(self, metric: Any, value: float, *name: str) -> None:
        written = self._written.get(name)
        if written is None:
            written = self._written[name] = [None, self._series(metric, name)]
        if value != written[0]:
            written[0] = value
            written[1].set(value)

    def _raise_to(self, metric: Any, value: float, *name: str) -> None:
        written = self._written.get(name)
        if written is None:
            written = self._written[name] = [0, self._series(metric, name)]
        if value != written[0]:
            # Less than before means that the source began anew; a counter never goes back.
            written[1].inc(max(value - written[0], 0))
            written[0] = value

    def _series(self, metric: Any, name: tuple[str, ...]) -> Any:
        labels = dict(zip(("tier", "reason"), name[1:], strict=False))
        return metric.labels(**self._labels, **labels) if labels else metric


def make_metrics(context: Any, cache: Any) -> NullMetrics:
    """The metrics of a cache, to be put into `cache.metrics`.

    context  SGLang's TreeCacheBuildContext
    cache    its DepCacheTree
    """
    server_args = context.server_args
    is_first = context.tp_rank == 0
    if not context.params.enable_metrics or not (
        is_first or server_args.enable_metrics_for_all_schedulers
    ):
        return NullMetrics()
    common = common_labels(server_args)
    labels = {"model_name": common["model_name"], "tp_rank": str(context.tp_rank)}
    # Several engines behind one /metrics; None where there is one.
    number = dp_rank(context.tp_worker)
    if number is not None:
        labels["dp_rank"] = str(number)
    return PrometheusMetrics(
        {**labels, **common},
        common,
        lambda: describe_tiers(cache),
        lambda: cache.counters,
        counts_rejections=is_first,
    )

# SPDX-License-Identifier: Apache-2.0
"""Server flags that do not go together with dependency prompts: refused at start, with the reason.

Nothing unsupported may run silently. Checked when the server reads its arguments and once
more when the cache is built.
"""

from __future__ import annotations

import os
from typing import Any

from depcache.cache import EVICTION_POLICIES
from depcache.config import Config
from depcache.errors import ConfigError
from sglang_patches.attention import SUPPORTED_BACKENDS
from sglang_patches.tiers.disk.storage import UNTRIED_BACKENDS
from sglang_patches.version import BACKEND_NAME

# (argument, value that is fine, flag, why not)
_MUST_BE: tuple[tuple[str, tuple[Any, ...], str, str], ...] = (
    ("page_size", (None, 1), "--page-size", "hits are scattered single slots, so pages hold one"),
    ("disable_radix_cache", (False,), "--disable-radix-cache", "there would be no cache at all"),
    (
        "speculative_algorithm",
        (None,),
        "--speculative-algorithm",
        "draft positions and masks would contradict the prompt's",
    ),
    (
        "disaggregation_mode",
        ("null",),
        "--disaggregation-mode",
        "the decode side rebuilds rows in linear order",
    ),
    ("enable_lmcache", (False,), "--enable-lmcache", "it is another cache in the same place"),
    ("enable_flexkv", (False,), "--enable-flexkv", "it is another cache in the same place"),
    ("enable_hisparse", (False,), "--enable-hisparse", "it keeps rows in an order of its own"),
    (
        "enable_unified_memory",
        (False,),
        "--enable-unified-memory",
        "it is for hybrid models, which are not supported",
    ),
    ("pp_size", (1,), "--pp-size", "pipeline stages match prompts separately"),
    ("dcp_size", (1,), "--dcp-size", "rows would be spread over ranks in linear order"),
    ("attn_cp_size", (1,), "--attn-cp-size", "rows would be spread over ranks in linear order"),
    ("enable_dp_attention", (False,), "--enable-dp-attention", "it was never tried"),
    ("enable_two_batch_overlap", (False,), "--enable-two-batch-overlap", "it splits a batch"),
    ("enable_single_batch_overlap", (False,), "--enable-single-batch-overlap", "never tried"),
    ("enable_pdmux", (False,), "--enable-pdmux", "it was never tried"),
    (
        "dllm_algorithm",
        (None,),
        "--dllm-algorithm",
        "diffusion models see tokens in both directions",
    ),
    (
        "enable_streaming_session",
        (False,),
        "--enable-streaming-session",
        "a session's next turn would be built from permuted rows",
    ),
    (
        "enable_session_radix_cache",
        (False,),
        "--enable-session-radix-cache",
        "a session's next turn would be built from permuted rows",
    ),
    ("enable_mis", (False,), "--enable-mis", "it masks the prompt in another way"),
    ("kv_events_config", (None, ""), "--kv-events-config", "events describe linear prefixes"),
    ("is_embedding", (False,), "--is-embedding", "embedding models do not keep KV"),
    (
        "tokenizer_worker_num",
        (1,),
        "--tokenizer-worker-num",
        "the extra HTTP workers never load plugins",
    ),
    (
        "skip_tokenizer_init",
        (False,),
        "--skip-tokenizer-init",
        "prompts with a text need the server's tokenizer",
    ),
)

_FORBIDDEN_POLICIES = {
    "dfs-weight": "it walks one tree from one root and would lose requests of other salts"
}

_FORBIDDEN_VARIABLES = {
    "SGLANG_RADIX_FORCE_MISS": "it drops hits after the prompt was permuted for them",
    "SGLANG_RUST_SERVER": "the Rust front end does not load Python plugins",
    "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE": "it is another cache in the same place",
}


def find_refusals(server_args: Any, config: Config) -> list[str]:
    """Returns why this server cannot run with dependency prompts: sentences, none if it can.

    server_args  SGLang's ServerArgs after it resolved its defaults
    config       our settings, HiCache's flags among them
    """
    reasons = [
        f"{flag} {getattr(server_args, name)!r} is not supported, because {why}: leave it out"
        for name, fine, flag, why in _MUST_BE
        if getattr(server_args, name, fine[0]) not in fine
    ]
    backends = {
        getattr(server_args, name, None)
        for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    }
    for backend in sorted(str(b) for b in backends - {None, *SUPPORTED_BACKENDS}):
        reasons.append(
            f"attention backend {backend!r} cannot run dependency prompts yet: use "
            f"--attention-backend {' or '.join(SUPPORTED_BACKENDS)}"
        )
    graphs = getattr(server_args, "cuda_graph_config", None)
    if "flashinfer" in backends and graphs is not None and graphs.prefill.backend != "disabled":
        reasons.append(
            f"prefills in CUDA graphs ({graphs.prefill.backend}) are not supported, because a "
            "graph is captured without trees: give --disable-prefill-cuda-graph"
        )
    why = _FORBIDDEN_POLICIES.get(server_args.schedule_policy)
    if why:
        reasons.append(
            f"--schedule-policy {server_args.schedule_policy!r} is not supported, because {why}: "
            "use fcfs or lpm"
        )
    if server_args.radix_eviction_policy not in EVICTION_POLICIES:
        reasons.append(
            f"--radix-eviction-policy {server_args.radix_eviction_policy!r} is not one of "
            f"{', '.join(EVICTION_POLICIES)}: choose one of these"
        )
    if config.disk_gb and not (config.host_gb or config.host_ratio):
        reasons.append(
            f"disk_gb {config.disk_gb:g} needs a host tier, through which the disk is read and "
            "written: set host_gb as well"
        )
    reasons += _find_untried(server_args, config)
    order = config.queue_order
    if order != "sglang":
        rivals = {
            f"--schedule-policy {server_args.schedule_policy}": server_args.schedule_policy
            not in (None, "fcfs"),
            "--enable-priority-scheduling": getattr(
                server_args, "enable_priority_scheduling", False
            ),
        }
        reasons += [
            f"queue_order {order!r} would undo {flag}: leave one of them out"
            for flag, is_given in rivals.items()
            if is_given
        ]
    for name, why in _FORBIDDEN_VARIABLES.items():
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            reasons.append(f"{name} is set, but {why}: unset it")
    return reasons


def _find_untried(server_args: Any, config: Config) -> list[str]:
    """What nobody has run, unless the user wants to try."""
    untried: list[str] = []
    tp_size = getattr(server_args, "tp_size", 1)
    enable_lora = getattr(server_args, "enable_lora", None)
    device = getattr(server_args, "device", None)
    if device != "cpu":
        where = f"on {device or 'an accelerator'}"
        if tp_size > 1:
            untried.append(f"--tp-size {tp_size} {where}")
        if enable_lora or (enable_lora is None and getattr(server_args, "lora_paths", None)):
            untried.append(f"LoRA (--enable-lora, --lora-paths) {where}")
    if config.disk_gb and config.disk_backend in UNTRIED_BACKENDS:
        untried.append(f"disk_backend {config.disk_backend!r}")
    return [] if config.experimental else [_never_run(what) for what in untried]


def _never_run(what: str) -> str:
    return f"{what} has never been run with DepCache: set experimental to try it, or leave it out"


def refuse_unsupported(server_args: Any, config: Config) -> None:
    """Raise ConfigError with every reason why this server cannot run with DepCache."""
    reasons = find_refusals(server_args, config)
    if reasons:
        raise ConfigError(
            f"--radix-cache-backend {BACKEND_NAME} cannot start: " + "; ".join(reasons)
        )


def refuse_model(context: Any) -> None:
    """Raise ConfigError for a model whose KV is not one row per token.

    context  SGLang's TreeCacheBuildContext
    """
    kinds = {
        "sliding-window attention": context.is_hybrid_swa,
        "state-space layers": context.is_hybrid_ssm,
        "sparse attention of its own": context.is_dsa,
        "latent attention (MLA)": _is_mla(context.model_config),
        "an encoder": getattr(context.model_config, "is_encoder_decoder", False),
        "image or audio input": getattr(context.model_config, "is_multimodal", False),
    }
    found = [kind for kind, present in kinds.items() if present]
    if found:
        raise ConfigError(
            f"--radix-cache-backend {BACKEND_NAME} cannot serve this model: it has "
            f"{' and '.join(found)}; use a model with ordinary rotary attention "
            "(Llama, Qwen2, Mistral and the like)"
        )


def _is_mla(model_config: Any) -> bool:
    return str(getattr(model_config, "attention_arch", "")).endswith("MLA")

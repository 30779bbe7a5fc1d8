# SPDX-License-Identifier: Apache-2.0
"""The gate of fused requests: what was measured with this server's weights, and what that allows.

`depcache.select.evidence` says what a report must hold. Without the setting `fused_evidence` there
is no gate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depcache.config import Config
from depcache.errors import ConfigError, PromptError
from depcache.prompt.recompute import Recompute
from depcache.select.evidence import DEFAULT_RECOVERY, Evidence, read_evidence
from sglang_patches.tiers.disk.fingerprint import weights_digest
from sglang_patches.tiers.disk.model_files import find_model, load_format_of, weight_files

_evidence: Evidence | None = None


def set_evidence(server_args: Any, config: Config) -> None:
    """Read the report that the settings name, for this process.

    Raises ConfigError when it says nothing of this server's weights.
    """
    global _evidence
    _evidence = None
    if config.fused_evidence is None:
        if config.fused_min_recovery is not None:
            raise ConfigError(
                "fused_min_recovery needs fused_evidence: name the report of "
                "python -m eval chunks --methods --json FILE"
            )
        return
    model = str(server_args.model_path)
    place = find_model(model, server_args.revision, server_args.download_dir)
    if place is None or load_format_of(server_args) == "dummy" or not weight_files(place):
        raise ConfigError(
            f"fused_evidence needs weights in files that can be read here, and {model!r} has none: "
            "give a local folder, or leave fused_evidence out"
        )
    least = config.fused_min_recovery
    least = DEFAULT_RECOVERY if least is None else least
    _evidence = read_evidence(Path(config.fused_evidence), weights_digest(place), least)


def lacking(recompute: Recompute) -> str | None:
    """Why a request is answered as the flat prompt; None where the evidence allows it, or is not
    asked for.

    Raises PromptError where the request is pinned, so that it cannot be answered flat.
    """
    if _evidence is None or recompute.share == 1:
        return None
    reason = _evidence.lacks(recompute)
    if reason is not None and recompute.is_pinned:
        raise PromptError(
            f"this server fuses only what was measured, and {reason}: leave out depcache_pin for "
            "the flat prompt, or send another share"
        )
    return reason

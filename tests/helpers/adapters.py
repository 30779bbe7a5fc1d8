# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters for the tiny models, made by peft, and the models that they amount to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_RANK = 8
_STD = 0.12
"""Spread of both factors: an adapter then changes answers as much as another model would."""


def make_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Write an adapter of the model with random weights into `folder`; returns `folder`."""
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=_RANK, lora_alpha=_RANK, target_modules=TARGETS, task_type="CAUSAL_LM")
    adapted: Any = get_peft_model(_load(model), config)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, _STD)
    adapted.save_pretrained(folder)
    return folder


def merge_adapter(model: Path, adapter: Path, folder: Path) -> Path:
    """Write the model that `adapter` makes of `model` into `folder`; returns `folder`."""
    from peft import PeftModel

    merged: Any = PeftModel.from_pretrained(_load(model), str(adapter))
    merged.merge_and_unload().save_pretrained(folder)
    return folder


def replace_adapter(old: Path, new: Path) -> None:
    """Give the adapter at `old` the files of `new`: other weights at the same path."""
    shutil.rmtree(old)
    shutil.copytree(new, old)


def scale_adapter(adapter: Path, factor: int) -> None:
    """Multiply what the adapter adds, in its settings alone: its weights stay as they are."""
    file = adapter / "adapter_config.json"
    config = json.loads(file.read_text())
    config["lora_alpha"] *= factor
    file.write_text(json.dumps(config))


def _load(model: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

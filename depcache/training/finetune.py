# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a model on dependency prompts (DepCache paper, sections 3.3 and 6.5).

HuggingFace's Trainer does the work, on one device or, under `accelerate launch` or `torchrun`,
on several. What is ours: samples that are the server's prompts, rows packed with them, and
their mask. Needs the extra `finetune`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depcache import __version__
from depcache.errors import ConfigError
from depcache.install_hints import install_command
from depcache.prompt.layout import Layout
from depcache.prompt.render import DEFAULT_SYSTEM, DEFAULT_TABLE_SYSTEM
from depcache.tables.seen import DEFAULT_SEES
from depcache.training.examples import read_examples
from depcache.training.loss import causal_loss, right_tokens
from depcache.training.packing import Row, make_row, pack, pad
from depcache.training.samples import Attention, Encoder, Sample

RECORD_FILE = "depcache_finetune.json"
"""The file beside the weights says what they were trained on, and how it went."""


@dataclass(frozen=True, slots=True)
class FinetuneSettings:
    """The paper's defaults: learning rate 2e-5, 64 examples a step, one epoch.

    system             of examples with paths, and where it is not the default, of those with tables
    sees               what a table sees, see `depcache.tables.seen.Sees`
    lora               rank of the adapters; 0 trains all weights
    batch              examples a step, over all devices; with packing about as many
    max_tokens         of a sample, and of a packed row
    max_steps          ends earlier; 0: after the epochs
    save_steps         between two checkpoints; 0: none but the last
    deepspeed          a DeepSpeed configuration for several GPUs
    """

    layouts: tuple[Layout, ...] = ("tree",)
    attention: Attention = "dependency"
    system: str | None = DEFAULT_SYSTEM
    template: str = "path"
    sees: str = DEFAULT_SEES
    lora: int = 0
    learning_rate: float = 2e-5
    batch: int = 64
    epochs: float = 1.0
    max_steps: int = 0
    max_tokens: int = 4096
    is_packed: bool = True
    warmup: float = 0.03
    save_steps: int = 100
    checkpoint_gradients: bool = False
    deepspeed: str | None = None
    seed: int = 0


OnStep = Callable[[int, int, float], None]
"""Is called after each step with its number, the number of all steps, and its loss."""


def finetune(
    model: str,
    data: Path,
    out: Path,
    settings: FinetuneSettings,
    *,
    resume: bool = False,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Train on the examples in `data` and leave a model in `out` that can be served.

    resume  go on from the newest checkpoint in `out`, if there is one

    Returns what is written to `RECORD_FILE`. Raises ConfigError for settings, examples or a
    model that cannot be used.
    """
    _require()
    if settings.lora and settings.deepspeed:
        raise ConfigError(
            "adapters cannot be merged into weights that DeepSpeed has spread over processes: "
            "leave out lora or deepspeed"
        )
    import torch
    from transformers import AutoTokenizer, TrainingArguments, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    set_seed(settings.seed)
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model!r} has no tokenizer that can be loaded: {error}") from error
    encoder = Encoder(
        tokenizer,
        settings.attention,
        settings.layouts,
        settings.system,
        settings.template,
        settings.max_tokens,
        settings.seed,
        settings.sees,
        DEFAULT_TABLE_SYSTEM if settings.system == DEFAULT_SYSTEM else settings.system,
    )
    samples = encoder.encode_all(read_examples(data))
    if not samples:
        raise ConfigError(
            f"{str(data)!r} holds no example of at most {settings.max_tokens} tokens: "
            "add examples, or allow more"
        )
    rows = make_rows(samples, settings)
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rows_per_step = max(1, round(settings.batch * len(rows) / encoder.num_encoded / num_ranks))
    is_gpu = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints"),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=rows_per_step,
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        warmup_steps=settings.warmup,
        lr_scheduler_type="cosine",
        bf16=is_gpu,
        use_cpu=not is_gpu,
        gradient_checkpointing=settings.checkpoint_gradients,
        deepspeed=settings.deepspeed,
        logging_steps=1,
        save_strategy="steps" if settings.save_steps else "no",
        save_steps=settings.save_steps or 500,
        save_total_limit=2,
        remove_unused_columns=False,
        dataloader_pin_memory=is_gpu,
        ddp_find_unused_parameters=False,
        report_to="none",
        seed=settings.seed,
    )
    trainer = make_trainer(load_model(model, settings), rows, arguments, on_step)
    checkpoint = get_last_checkpoint(arguments.output_dir) if resume and out.exists() else None
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=checkpoint)
    seconds = time.perf_counter() - started
    record = {
        "depcache": __version__,
        "base": Path(model).name,
        "settings": asdict(settings),
        "examples": encoder.num_encoded,
        "too_long": encoder.num_too_long,
        "rows": len(rows),
        "rows_per_step": rows_per_step * num_ranks,
        "steps": trainer.state.global_step,
        "seconds": round(seconds, 1),
        "tokens_per_s": round(trainer.num_tokens * num_ranks / seconds),
        "loss": [
            [entry["step"], round(entry["loss"], 4)]
            for entry in trainer.state.log_history
            if "loss" in entry
        ],
    }
    _save(trainer, tokenizer, out, settings)
    if trainer.is_world_process_zero():
        (out / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def make_rows(samples: Sequence[Sample], settings: FinetuneSettings) -> list[Row]:
    """The rows of one epoch, in random order."""
    if settings.is_packed:
        rows = pack(samples, settings.max_tokens)
    else:
        rows = [make_row([sample]) for sample in samples]
    order = np.random.default_rng(settings.seed).permutation(len(rows))
    return [rows[i] for i in order]


def load_model(model: str, settings: FinetuneSettings) -> Any:
    """The model, ready to be trained; with adapters if they are asked for."""
    import torch
    from transformers import AutoModelForCausalLM

    is_gpu = torch.cuda.is_available()
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            model,
            dtype=torch.bfloat16 if is_gpu and settings.lora else torch.float32,
            attn_implementation="flex_attention" if is_gpu else "sdpa",
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model!r} cannot be loaded as a language model: {error}") from error
    loaded.config.use_cache = False
    if not settings.lora:
        return loaded
    from peft import LoraConfig, get_peft_model

    if settings.checkpoint_gradients:
        loaded.enable_input_require_grads()
    return get_peft_model(
        loaded,
        LoraConfig(
            r=settings.lora,
            lora_alpha=2 * settings.lora,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        ),
    )


def make_trainer(
    model: Any, rows: Sequence[Row], arguments: Any, on_step: OnStep | None = None
) -> Any:
    """A Trainer over packed rows; the mask is made on the device, from three integers a token.

    It prints nothing; `on_step` may.
    """
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            loss = (kwargs.get("logs") or {}).get("loss")
            if on_step is not None and loss is not None and state.is_world_process_zero:
                on_step(state.global_step, state.max_steps, float(loss))

    class DepTrainer(Trainer):
        num_tokens = 0  # of this process

        def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
            self.num_tokens += inputs["tokens"].numel()
            batch = super()._prepare_inputs(inputs)
            return {**to_inputs(batch, model), "labels": right_tokens(batch)}

    dataset: Any = list(rows)
    trainer = DepTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        data_collator=to_tensors,
        compute_loss_func=causal_loss,
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(Reporter())
    return trainer


def to_inputs(batch: dict[str, Any], model: Any) -> dict[str, Any]:
    """What a HuggingFace model takes, from a padded batch of tensors. Without labels."""
    from depcache.training.masks import block_mask, dense_mask

    is_flex = model.config._attn_implementation == "flex_attention"
    make_mask = block_mask if is_flex else dense_mask
    return {
        "input_ids": batch["tokens"],
        "position_ids": batch["positions"],
        "attention_mask": make_mask(batch),
    }


def to_tensors(rows: Sequence[Row]) -> dict[str, Any]:
    """A padded batch of rows, for `to_inputs`."""
    import torch

    return {name: torch.from_numpy(array) for name, array in pad(rows).items()}


def _save(trainer: Any, tokenizer: Any, out: Path, settings: FinetuneSettings) -> None:
    """Called by every process: weights that ZeRO has spread over them are collected."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.config.use_cache = True
    if not settings.lora:
        trainer.save_model(str(out))
    elif trainer.is_world_process_zero():
        model.merge_and_unload().save_pretrained(out)
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(out)


def _require() -> None:
    missing = []
    for name in ("torch", "transformers", "accelerate", "peft"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise ConfigError(f"{', '.join(missing)} is missing: {install_command('finetune')}")

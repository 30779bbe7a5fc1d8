# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning for real, on a small model: it learns, goes on where it stopped, and is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from depcache.errors import ConfigError
from depcache.tables.table import Table
from depcache.training.examples import Example, read_examples, write_examples
from depcache.training.finetune import (
    RECORD_FILE,
    FinetuneSettings,
    finetune,
    load_model,
    to_inputs,
)
from depcache.training.packing import make_row, pad
from depcache.training.samples import Encoder
from tests.helpers.engine import start_engine
from tests.helpers.models import make_model

pytestmark = pytest.mark.sglang

pytest.importorskip("accelerate")
pytest.importorskip("peft")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("llama_mild", tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [f"Town {i}" for i in range(8)]
    examples = [
        Example(
            f"What is north of {name}?",
            ((name, "north of", other), (name, "south of", names[i - 2]), (other, "is", "a town")),
            other,
        )
        for i, name in enumerate(names)
        for other in names[:i]
    ]
    file = tmp_path_factory.mktemp("data") / "data.jsonl"
    write_examples(examples, file)
    return file


def first_tensors(folder: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_twenty_steps_lower_the_loss_on_a_fixed_batch(
    model: Path, data: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    settings = FinetuneSettings(
        layouts=("tree", "staggered", "sequential"),
        learning_rate=2e-3,
        batch=1000,
        epochs=20,
        max_tokens=512,
        save_steps=0,
    )
    record = finetune(str(model), data, tmp_path / "out", settings)
    losses = [loss for _, loss in record["loss"]]
    assert record["steps"] == len(losses) == 20
    assert record["examples"] == 28 > record["rows"]  # packed
    assert losses[-1] < 0.6 * losses[0]
    samples = Encoder(AutoTokenizer.from_pretrained(model)).encode_all(read_examples(data))
    trained = record["tokens_per_s"] * record["seconds"]
    assert trained == pytest.approx(20 * sum(map(len, samples)), rel=0.05)
    assert json.loads((tmp_path / "out" / RECORD_FILE).read_text()) == json.loads(
        json.dumps(record)
    )


def test_a_packed_batch_computes_what_single_examples_compute(model: Path, data: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    samples = Encoder(AutoTokenizer.from_pretrained(model)).encode_all(read_examples(data))[:6]
    network = load_model(str(model), FinetuneSettings()).eval()

    def logits(rows: list[Any]) -> Any:
        batch = {name: torch.from_numpy(array) for name, array in pad(rows).items()}
        with torch.no_grad():
            return network(**to_inputs(batch, network)).logits

    packed = logits([make_row(samples)])[0]
    padded = logits([make_row([sample]) for sample in samples])
    at = 0
    for sample, alone in zip(samples, padded, strict=True):
        torch.testing.assert_close(
            packed[at : at + len(sample)], alone[: len(sample)], atol=1e-4, rtol=1e-4
        )
        at += len(sample)


def test_another_right_answer_is_not_held_against_the_model(model: Path, tmp_path: Path) -> None:
    paths = (("Ann", "has met", "Bob"), ("Ann", "has met", "Zoe"))
    settings = FinetuneSettings(max_steps=1, max_tokens=512, save_steps=0)

    def first_loss(name: str, *alternatives: str) -> float:
        example = Example("Who has Ann met?", paths, "Bob", alternatives)
        write_examples([example], tmp_path / f"{name}.jsonl")
        record = finetune(str(model), tmp_path / f"{name}.jsonl", tmp_path / name, settings)
        [(_, loss)] = record["loss"]
        return loss

    assert first_loss("either", "Zoe") < first_loss("same", "Bob") == first_loss("one")


def test_tables_are_learned_from_as_they_are_served(model: Path, tmp_path: Path) -> None:
    tables = (
        Table("rivers", "CREATE TABLE rivers (river_id, length)"),
        Table("towns", "CREATE TABLE towns (town_id, name)"),
        Table("ports", "CREATE TABLE ports (river_id, town_id)", ("rivers", "towns")),
    )
    file = tmp_path / "data.jsonl"
    write_examples(
        [Example("How many?", (), "SELECT count(*) FROM ports", (), tables) for _ in range(4)], file
    )
    losses = {}
    for sees in ("nothing", "references"):
        settings = FinetuneSettings(
            sees=sees, learning_rate=2e-3, max_tokens=512, max_steps=8, save_steps=0
        )
        losses[sees] = [
            loss for _, loss in finetune(str(model), file, tmp_path / sees, settings)["loss"]
        ]
        assert losses[sees][-1] < 0.8 * losses[sees][0]
    assert losses["nothing"][0] != losses["references"][0]  # another mask


def test_what_stopped_goes_on_from_its_checkpoint(model: Path, data: Path, tmp_path: Path) -> None:
    settings = {"learning_rate": 1e-3, "batch": 10, "max_tokens": 512, "save_steps": 2}
    whole = finetune(
        str(model), data, tmp_path / "whole", FinetuneSettings(**settings, max_steps=6)
    )
    # The schedule must be that of six steps, so the stop is by hand: what comes later is removed.
    out = tmp_path / "parts"
    finetune(str(model), data, out, FinetuneSettings(**settings, max_steps=6))
    for late in (out / "checkpoints").glob("checkpoint-6"):
        for file in sorted(late.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        late.rmdir()
    record = finetune(str(model), data, out, FinetuneSettings(**settings, max_steps=6), resume=True)
    assert record["loss"][-1] == whole["loss"][-1]
    assert record["steps"] == 6
    left, right = first_tensors(tmp_path / "whole"), first_tensors(out)
    assert all(left[name].equal(right[name]) for name in left)


def test_adapters_are_merged_and_the_model_is_served(
    model: Path, data: Path, tmp_path: Path
) -> None:
    from tests.helpers.prompts import plain

    out = tmp_path / "out"
    settings = FinetuneSettings(lora=4, learning_rate=1e-2, batch=10, max_steps=3, save_steps=0)
    finetune(str(model), data, out, settings)
    before, after = first_tensors(model), first_tensors(out)
    assert before.keys() == after.keys()
    changed = [name for name in before if not before[name].equal(after[name])]
    assert changed and all("proj" in name for name in changed)
    with start_engine(out) as engine:
        assert engine.ask(plain([3, 4, 5, 6]))["meta_info"]["completion_tokens"] > 0


def test_what_cannot_be_used_is_one_sentence(model: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no example of at most 10 tokens"):
        finetune(str(model), data, tmp_path / "out", FinetuneSettings(max_tokens=10))
    settings = FinetuneSettings(lora=4, deepspeed="zero3.json")
    with pytest.raises(ConfigError, match="lora or deepspeed"):
        finetune(str(model), data, tmp_path / "out", settings)
    with pytest.raises(ConfigError, match="tokenizer"):
        finetune(str(tmp_path / "nothing"), data, tmp_path / "out", FinetuneSettings())
    with pytest.raises(ConfigError, match="cannot read"):
        finetune(str(model), tmp_path / "nothing.jsonl", tmp_path / "out", FinetuneSettings())


def test_examples_are_counted_one_by_one_when_they_share_their_paths(
    model: Path, tmp_path: Path
) -> None:
    paths = (("A", "is", "B"), ("A", "has", "C"))
    examples = [Example(f"What is it, {i}?", paths, "B") for i in range(12)]
    write_examples(examples, tmp_path / "data.jsonl")
    settings = FinetuneSettings(batch=6, max_tokens=256, max_steps=1, save_steps=0)
    record = finetune(str(model), tmp_path / "data.jsonl", tmp_path / "out", settings)
    assert record["examples"] == 12
    assert record["rows_per_step"] == round(record["rows"] / 2)

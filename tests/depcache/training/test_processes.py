# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning by several processes under torchrun: the steps of one, and said once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from depcache.training.examples import Example, write_examples
from depcache.training.finetune import RECORD_FILE
from tests.helpers.models import make_model

pytestmark = pytest.mark.sglang

pytest.importorskip("accelerate")
pytest.importorskip("peft")


def write_data(file: Path) -> Path:
    """Answers of one to three names, so that processes have unlike numbers of learned tokens."""
    towns = [f"Town {i}" for i in range(8)]
    names = [f"{town}{' upon the River' * (i % 3)}" for i, town in enumerate(towns)]
    write_examples(
        (
            Example(
                f"What is north of {name}?",
                ((name, "north of", other), (name, "north of", names[i - 2]), (other, "is", "old")),
                other,
                (names[i - 2],),
            )
            for i, name in enumerate(names)
            for other in names[: min(i, 3)]
        ),
        file,
    )
    return file


def run(launcher: list[str], model: Path, data: Path, out: Path) -> str:
    """What was printed."""
    depcache = Path(sys.executable).parent / "depcache"
    files = ["finetune", "run", model, "--data", data, "--out", out, "--save-steps", "0"]
    options = ["--max-steps", "3", "--no-packing", "--batch", "18", "--learning-rate", "0.001"]
    options += ["--layout", "tree", "--layout", "staggered"]
    done = subprocess.run(
        [*launcher, depcache, *files, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = make_model("llama_mild", tmp_path / "model")
    data = write_data(tmp_path / "data.jsonl")
    alone, together = tmp_path / "alone", tmp_path / "together"
    run([], model, data, alone)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    printed = run([*launcher, "--no-python"], model, data, together)
    assert printed.count("depcache serve") == 1

    one, two = (json.loads((out / RECORD_FILE).read_text()) for out in (alone, together))
    assert one["rows_per_step"] == two["rows_per_step"] == 18
    for (_, loss), (_, same) in zip(one["loss"], two["loss"], strict=True):
        assert same == pytest.approx(loss, abs=1e-3)
    assert one["loss"][2][1] < one["loss"][0][1] - 0.01
    before, after, other = (load_file(f / "model.safetensors") for f in (model, alone, together))
    for name, weight in after.items():
        moved = (weight.float() - before[name].float()).norm()
        assert (other[name].float() - weight.float()).norm() < 0.02 * moved, name

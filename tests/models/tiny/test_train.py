# SPDX-License-Identifier: Apache-2.0
"""The training script on a very small network: it learns, and leaves models that can be loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from depcache.demo.sample import load_entities
from depcache.errors import ConfigError
from depcache.prompt.layout import LAYOUTS
from depcache.prompt.tokenization import PromptTokenizer
from depcache.training.examples import Example
from depcache.training.samples import IGNORED
from models.tiny.rows import COPY_LEN, copy_rows, question_rows
from models.tiny.ship import ship
from models.tiny.stages import cycles_of
from models.tiny.train import CYCLE_PEAK, _stage_rows, main, make_vocabulary, train
from models.tiny.trainer import Shape, Trainer, make_network
from models.tiny.worlds import make_examples

pytestmark = pytest.mark.sglang  # torch and transformers come with the server

SMALL = Shape(vocab_size=512, width=32, layers=2, heads=2, step_tokens=512)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_vocabulary(SMALL.vocab_size)


def make_small(learning_rate: float = SMALL.learning_rate) -> Any:
    return make_network(replace(SMALL, learning_rate=learning_rate), 4096, 1)


@pytest.mark.parametrize("has_muon", [True, False])
def test_twenty_steps_lower_the_loss_on_a_fixed_batch(
    tokenizer: Any, tmp_path: Path, has_muon: bool
) -> None:
    row = next(question_rows(tokenizer, "dependency", 1, row_tokens=1024))
    trainer = Trainer(make_small(), SMALL, tmp_path / "log.jsonl")
    before = trainer.loss([row]).item()
    phases = [(1.0, 1, repeat(row))]
    trainer.run("dependency", phases, 0.0, [row], max_steps=20, has_muon=has_muon)
    assert trainer.loss([row]).item() < 0.9 * before
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    end = json.loads(lines[-1])
    assert end["steps"] == 20
    assert 0 <= end["whole"] <= end["token_accuracy"] <= 1


def test_a_name_has_the_same_tokens_wherever_it_stands(tokenizer: Any) -> None:
    pieces = PromptTokenizer(tokenizer)
    name = pieces.encode_text(" Orla Thorn")
    [at_start] = pieces.encode_elements(["\nOrla Thorn"])
    assert list(at_start) == [*pieces.encode_lead("\n"), *name]
    text = "Who is Orla Thorn?\nOrla Thorn -> is -> Orla Thorn\n\nAnswer: Orla Thorn"
    ids = pieces.encode_text(text, first=True)
    assert tokenizer.decode(ids) == text
    found = sum(ids[i : i + len(name)] == name for i in range(len(ids)))
    assert found == 4
    assert tokenizer.decode(tokenizer.encode("<|assistant|>\n") + name).endswith("\nOrla Thorn")


def test_phases_follow_each_other(tokenizer: Any, tmp_path: Path) -> None:
    taken: list[str] = []

    def rows(name: str) -> Iterator[Any]:
        while True:
            taken.append(name)
            yield row

    row = next(copy_rows(SMALL.vocab_size, np.random.default_rng(0)))
    trainer = Trainer(make_small(), SMALL, tmp_path / "log.jsonl")
    phases = [(0.5, 2, rows("first")), (1.0, 1, rows("second"))]
    trainer.run("copy", phases, 0.0, max_steps=8)
    assert taken == ["first"] * 8 + ["second"] * 4


def test_rows_are_full_and_of_new_worlds(tokenizer: Any) -> None:
    rows = list(islice(question_rows(tokenizer, "dependency", 1, row_tokens=2048), 12))
    assert all(len(row) <= 2048 for row in rows)
    assert sum(map(len, rows)) > 0.7 * 12 * 2048
    texts = {tokenizer.decode(row.tokens) for row in rows}
    assert len(texts) == 12
    flat = next(question_rows(tokenizer, "flat", 1, row_tokens=2048))
    answers = [t for t in flat.labels.tolist() if t != IGNORED]
    assert "Answer: " in tokenizer.decode(answers)
    assert set(LAYOUTS) == {"tree", "staggered", "sequential"}
    copied = next(copy_rows(SMALL.vocab_size, np.random.default_rng(0)))
    learned = copied.labels != IGNORED
    half = len(copied) // 2
    assert learned[half:].all() and not learned[:half].any()
    assert copied.tokens[half:].tolist() == copied.tokens[:half].tolist()


def test_given_examples_are_mixed_in_and_rows_come_again(tokenizer: Any) -> None:
    mine = Example("Who is it?", (("Zorro", "is", "Diego"),), "Zorro -> is -> Diego")
    rows = question_rows(tokenizer, "dependency", 1, row_tokens=1024, examples=[mine], reuse=3)
    texts = [tokenizer.decode(row.tokens) for row in islice(rows, 120)]
    assert any("Zorro" in text for text in texts)
    assert not all("Zorro" in text for text in texts)
    assert len(texts) / 4 < len(set(texts)) < len(texts) / 1.5


def test_accuracy_counts_answers_that_are_right_to_the_last_token(
    tokenizer: Any, tmp_path: Path
) -> None:
    row = next(question_rows(tokenizer, "dependency", 2, row_tokens=1024))

    import torch

    class Body(torch.nn.Module):
        """Knows the next token, but for the first one of an answer."""

        def __init__(self) -> None:
            super().__init__()
            self.some = torch.nn.Parameter(torch.zeros(1))  # says which device it is on

        def forward(self, input_ids: Any, **_: Any) -> Any:
            right = torch.nn.functional.one_hot(input_ids.roll(-1, 1), SMALL.vocab_size)
            first = int(np.flatnonzero(row.labels != IGNORED)[0])
            right[0, first - 1] = 0
            right[0, first - 1, 1] = 1
            return SimpleNamespace(last_hidden_state=right.float())

    network = make_small()
    trainer = Trainer(network, SMALL, tmp_path / "log.jsonl")
    network.model, network.lm_head = Body(), torch.nn.Identity()
    accuracy, whole = trainer.accuracy([row])
    num_answers = int((row.labels == tokenizer.eos_token_id).sum())
    num_tokens = int((row.labels != IGNORED).sum())
    assert accuracy == pytest.approx(1 - 1 / num_tokens, abs=1e-3)
    assert whole == pytest.approx(1 - 1 / num_answers, abs=1e-3)


def test_all_stages_leave_models_that_can_be_loaded(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    examples = list(islice(make_examples(1), 12))
    train(tmp_path, 0.03, SMALL, examples, has_control=True)
    for folder in ("base", "dependency", "control"):
        network = AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        assert network.config.hidden_size == 32
        assert AutoTokenizer.from_pretrained(tmp_path / folder).chat_template
    ends = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    stages = [e["stage"] for e in ends if "whole" in e]
    assert stages == ["copy", "base", "dependency", "control"]
    before = (tmp_path / "base" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "dependency")
    train(tmp_path, 0.03, SMALL, examples, has_control=True)
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == before
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert last["stage"] == "dependency"
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == len(ends) + 1

    shutil.rmtree(tmp_path / "control")
    train(tmp_path, 0.03, SMALL, examples, has_control=True, num_cycles=4)
    ends = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [e["stage"] for e in ends if "whole" in e][-2:] == ["dependency-4", "control"]

    weights = tmp_path / "weights"
    ship(tmp_path, weights)
    assert (weights / "log.jsonl").read_text() == (tmp_path / "log.jsonl").read_text()
    assert {file.name for file in weights.iterdir()} == {"depcache_tiny", "control", "log.jsonl"}
    for folder, *trained in (
        ("depcache_tiny/model", "dependency-2", "dependency-3", "dependency-4"),
        ("control", "dependency-2", "dependency-3", "control"),
    ):
        shipped = AutoModelForCausalLM.from_pretrained(weights / folder)
        assert shipped.dtype == torch.bfloat16
        cycles = (
            AutoModelForCausalLM.from_pretrained(tmp_path / each, dtype=torch.float32).parameters()
            for each in trained
        )
        for mine, *all_three in zip(shipped.parameters(), *cycles, strict=True):
            assert torch.equal(mine, torch.stack(all_three).mean(0).to(torch.bfloat16))
        assert AutoTokenizer.from_pretrained(weights / folder).chat_template
    ship(tmp_path, tmp_path / "weighed", [0.3, 0.9])
    shipped = AutoModelForCausalLM.from_pretrained(tmp_path / "weighed" / "depcache_tiny/model")
    cycles = (
        AutoModelForCausalLM.from_pretrained(tmp_path / each, dtype=torch.float32).parameters()
        for each in ("dependency-3", "dependency-4")
    )
    for mine, first, second in zip(shipped.parameters(), *cycles, strict=True):
        assert torch.allclose(mine.float(), 0.25 * first + 0.75 * second, rtol=2**-7, atol=1e-6)
    for shares in ([1.0] * 5, [0.5, 0.0], [-1.0], [float("inf")], [float("nan")]):
        with pytest.raises(ConfigError, match="give numbers above 0"):
            ship(tmp_path, tmp_path / "none", shares)
    # A run that went on from a trained model has no base, and its log goes behind the older one.
    shutil.rmtree(tmp_path / "base")
    (weights / "log.jsonl").write_text(older := '{"stage": "dependency"}\n')
    for _ in range(2):
        ship(tmp_path, weights)
        assert (weights / "log.jsonl").read_text() == older + (tmp_path / "log.jsonl").read_text()


def nodes_of(examples: Iterable[Example]) -> set[str]:
    return {node for example in examples for path in example.paths for node in path[::2]}


def test_the_control_begins_where_the_last_cycle_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    begun: dict[str, torch.Tensor] = {}
    run = Trainer.run

    def watch(self: Trainer, stage: str, *args: Any, **keywords: Any) -> None:
        begun[stage] = self.network.model.embed_tokens.weight.detach().clone()
        run(self, stage, *args, **keywords)

    monkeypatch.setattr(Trainer, "run", watch)
    train(tmp_path, 0.02, SMALL, has_control=True, num_cycles=2)
    assert list(begun) == ["copy", "base", "dependency", "dependency-2", "control"]
    assert torch.equal(begun["control"], begun["dependency-2"])


def test_a_base_is_trained_in_cycles_on_flat_text_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def watch(tokenizer: Any, attention: str, *args: Any, **keywords: Any) -> Iterator[Any]:
        rows = question_rows(tokenizer, attention, *args, **keywords)  # type: ignore[arg-type]
        for row in rows:
            seen.append(attention)
            yield row

    monkeypatch.setattr("models.tiny.train.question_rows", watch)
    train(tmp_path, 0.03, SMALL, num_cycles=0, num_base_cycles=3)
    folders = cycles_of(tmp_path, "base")
    assert [folder.name for folder in folders] == ["base", "base-2", "base-3"]
    assert len({(each / "model.safetensors").read_bytes() for each in folders}) == 3
    assert set(seen) == {"flat"}
    with pytest.raises(ValueError, match="train at least one"):
        train(tmp_path, 0.03, SMALL, has_control=True, num_cycles=0)


def test_cycles_go_on_from_a_trained_model_with_made_up_relations(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoTokenizer

    given = make_small()
    given.save_pretrained(tmp_path / "given")
    tokenizer.save_pretrained(tmp_path / "given")
    begun: dict[str, tuple[float, torch.Tensor]] = {}
    shares: list[float] = []
    run = Trainer.run

    def watch(self: Trainer, stage: str, *args: Any, **keywords: Any) -> None:
        weights = self.network.model.embed_tokens.weight.detach().clone()
        begun[stage] = keywords["peak"], weights
        run(self, stage, *args, **keywords)

    def watch_worlds(*args: Any, **keywords: Any) -> Any:
        shares.append(keywords["made_up_relations"])
        return make_examples(*args, **keywords)

    monkeypatch.setattr(Trainer, "run", watch)
    monkeypatch.setattr("models.tiny.rows.make_examples", watch_worlds)
    settings: dict[str, Any] = {"source": tmp_path / "given", "made_up_relations": 0.5}
    settings["other_styles"] = 0.3
    # The shape is that of the model, not the one that is asked for.
    train(tmp_path / "run", 0.02, Shape(), has_control=True, num_cycles=2, **settings)
    assert list(begun) == ["dependency", "dependency-2", "control"]
    assert {peak for peak, _ in begun.values()} == {CYCLE_PEAK}
    assert torch.equal(begun["dependency"][1], given.model.embed_tokens.weight)
    assert torch.equal(begun["control"][1], begun["dependency-2"][1])
    assert set(shares) == {0.5}
    kept = AutoTokenizer.from_pretrained(tmp_path / "run" / "control")
    assert kept.get_vocab() == tokenizer.get_vocab()

    train(tmp_path / "short", 0.02, Shape(), has_control=True, num_cycles=1, **settings)
    assert torch.equal(begun["control"][1], given.model.embed_tokens.weight)


def test_what_cannot_be_gone_on_from_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["--from", str(tmp_path)], "holds no model: name a folder"),
        (["--made-up-relations", "5"], "--made-up-relations is 5.0: use a share from 0 to 1"),
        (["--other-styles", "-1"], "--other-styles is -1.0: use a share from 0 to 1"),
    ):
        monkeypatch.setattr("sys.argv", ["train", str(tmp_path / "run"), *arguments])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert message in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


def test_a_run_without_its_models_is_not_shipped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no model 'dependency'"):
        ship(tmp_path, tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


def test_no_made_up_world_has_a_name_of_an_evaluation() -> None:
    single = {name for name in nodes_of(islice(make_examples(5), 200)) if " " not in name}
    assert len(single) > 100
    again = islice(make_examples(5, forbidden=frozenset(single)), 200)
    assert single.isdisjoint(nodes_of(again))

    demo = sorted(load_entities())
    natural = islice(make_examples(5, forbidden=load_entities(), natural=[*demo[:9], "Zorro"]), 200)
    seen = nodes_of(natural)
    # Nine of ten given names are forbidden; what is left of them is this one.
    assert "Zorro" in seen and seen.isdisjoint(demo)


def test_what_is_forbidden_is_never_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[frozenset[str]] = []

    def watch(*args: Any, forbidden: frozenset[str], **keywords: Any) -> Any:
        asked.append(forbidden)
        return make_examples(*args, forbidden=forbidden, **keywords)

    for module in ("train", "rows"):
        monkeypatch.setattr(f"models.tiny.{module}.make_examples", watch)
    train(tmp_path, 0.01, SMALL, forbidden=["Zorro"], has_control=True)
    assert len(asked) > 3
    assert set(asked) == {load_entities() | {"Zorro"}}


def test_the_last_stage_reads_flat_text_too(tokenizer: Any) -> None:
    rows = list(islice(_stage_rows("dependency", tokenizer, 1, row_tokens=1024), 120))
    flat = sum(bool((row.task_starts == row.starts).all()) for row in rows)  # no trees
    assert 0.1 < flat / len(rows) < 0.5
    copies = [row for row in rows if row.num_samples == 1024 // (2 * COPY_LEN)]
    halves = [row.tokens.reshape(-1, 2, COPY_LEN) for row in copies if len(row) == 1024]
    assert any((half[:, 0] == half[:, 1]).all() for half in halves)


def test_cycles_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    assert cycles_of(tmp_path, "dependency") == []
    for cycle in ("", *(f"-{number}" for number in range(2, 12)), "-old"):
        folder = tmp_path / f"dependency{cycle}"
        folder.mkdir()
        (folder / "config.json").touch()
    (tmp_path / "dependency-12").mkdir()  # broken off before it was saved
    names = [folder.name for folder in cycles_of(tmp_path, "dependency")]
    assert names == ["dependency", *(f"dependency-{number}" for number in range(2, 12))]

# SPDX-License-Identifier: Apache-2.0
"""What is trained on is what the server computes: tokens, positions, mask, to the bit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from depcache.demo.sample import load_questions, load_triples
from depcache.errors import ConfigError
from depcache.graph.retrieval import Retriever
from depcache.prompt.layout import LAYOUTS
from depcache.prompt.render import render
from depcache.prompt.wire import parse_wire
from depcache.training.examples import Example, read_examples, write_examples
from depcache.training.packing import make_row, pack, pad
from depcache.training.samples import (
    ATTENTIONS,
    IGNORED,
    Encoder,
    Sample,
)
from flashinfer_masks.dense import dense_mask as oracle_mask
from flashinfer_masks.visibility import Step
from tests.helpers.models import make_tokenizer
from tests.helpers.tables import about_tables

pytestmark = pytest.mark.sglang  # torch and transformers come with the server


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    import networkx as nx

    graph = nx.MultiDiGraph()
    for subject, relation, obj in load_triples():
        graph.add_edge(subject, obj, relation=relation)
    retriever = Retriever(graph, pruner="none", max_paths=12)
    return [
        Example(q.text, tuple(retriever.retrieve(q.text).paths), q.answers[0])
        for q in load_questions()[:12]
    ]


def mask_of(samples: list[Sample], num_tokens: int | None = None) -> np.ndarray:
    """bool (n, n) of one packed row."""
    import torch

    from depcache.training.masks import dense_mask

    batch = {name: torch.from_numpy(a) for name, a in pad([make_row(samples)]).items()}
    mask = dense_mask(batch)
    assert mask.shape[:2] == (1, 1)
    return mask[0, 0].numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_is_the_servers_prompt_and_its_answer(
    tokenizer: Any, examples: list[Example], layout: Any
) -> None:
    from sglang_patches.requests.inbound import read_text
    from sglang_patches.requests.state import RequestState

    encoder = Encoder(tokenizer, layouts=[layout])
    for example in examples:
        rendered = render(example.paths, example.question, layout=layout)
        text = tokenizer.apply_chat_template(
            rendered.messages, tokenize=False, add_generation_prompt=True
        )
        wire = parse_wire(rendered.params_in(text))
        ids, params = read_text(text, wire, tokenizer, add_special_tokens=False).to_wire()
        sample = encoder.encode(example)
        answer = tokenizer.encode(example.answer, add_special_tokens=False)
        assert sample.tokens.tolist() == [*ids, *answer, tokenizer.eos_token_id]
        assert sample.labels[len(ids) :].tolist() == sample.tokens[len(ids) :].tolist()
        assert set(sample.labels[: len(ids)].tolist()) == {IGNORED}

        wire = parse_wire(params)
        state = RequestState.make(np.array(ids), wire, None)
        assert sample.positions[: len(ids)].tolist() == state.table.positions.tolist()
        generated = np.arange(len(ids), len(sample)) + state.decode_offset
        assert sample.positions[len(ids) :].tolist() == generated.tolist()
        # All rows of the server's pass, prompt and generated tokens, in pre-order.
        step = Step(state.structure, np.arange(len(ids)), 0, len(sample))
        assert np.array_equal(mask_of([sample]), oracle_mask(step))


def test_each_attention_sees_what_its_name_says(tokenizer: Any, examples: list[Example]) -> None:
    sizes = {}
    for attention in ATTENTIONS:
        samples = [Encoder(tokenizer, attention).encode(example) for example in examples]
        sizes[attention] = sum(map(len, samples))
        for sample in samples:
            mask = mask_of([sample])
            causal = np.tril(np.ones_like(mask))
            if attention == "dependency":
                assert mask.sum() < causal.sum()
                assert not (mask & ~causal).any()
            else:
                assert np.array_equal(mask, causal)
                assert sample.positions.tolist() == list(range(len(sample)))
    assert sizes["flat"] > sizes["deduplicated"] == sizes["dependency"]
    flat = Encoder(tokenizer, "flat").encode(examples[0])
    text = tokenizer.decode(flat.tokens)
    assert render(examples[0].paths, examples[0].question).flat_text in text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_paths_all_of_a_prompt_is_the_task(tokenizer: Any, layout: Any) -> None:
    example = Example("Where was Marie Curie born?", (), "Warsaw")
    text = tokenizer.apply_chat_template(
        render((), example.question).messages, tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    prompt = Encoder(tokenizer).prompt(example, layout)
    assert prompt.tokens.tolist() == ids
    assert prompt.forest.task_start == 0 and prompt.num_flat_tokens == len(ids)
    for attention in ATTENTIONS:
        sample = Encoder(tokenizer, attention, [layout]).encode(example)
        assert sample.tokens.tolist() == [
            *ids,
            *tokenizer.encode(example.answer, add_special_tokens=False),
            tokenizer.eos_token_id,
        ]
        assert np.array_equal(mask_of([sample]), np.tri(len(sample), dtype=bool))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_another_right_answer_is_right_where_it_first_differs(
    tokenizer: Any, examples: list[Example], attention: Any
) -> None:
    answers = [" in Paris in", " in Paris with", " in Warsaw", " in Paris", " in Warsaw in"]
    tokens = [
        [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        for text in answers
    ]
    expected: dict[int, set[int]] = {}
    for other in tokens[1:]:
        at = next(i for i, (a, b) in enumerate(zip(tokens[0], other, strict=False)) if a != b)
        expected.setdefault(at, set()).add(other[at])
    assert len(expected) > 1  # " with" and the end behind " Paris", "War..." before it
    asked = [
        Example(e.question, examples[0].paths, answers[0], tuple(answers[1:])) for e in examples[:2]
    ]
    encoder = Encoder(tokenizer, attention)
    [shared] = encoder.encode_all(asked)
    row = make_row([encoder.encode(asked[0]), shared])
    ends = np.flatnonzero(row.labels == tokenizer.eos_token_id)
    assert len(ends) == 3
    padded = pad([row], len(row) + 3)["alternatives"][0]
    assert padded.shape == (len(row) + 3, max(map(len, expected.values())))
    found = {
        int(i): {t for t in padded[i].tolist() if t != IGNORED}
        for i in np.flatnonzero((padded != IGNORED).any(1))
    }
    assert found == {
        end - len(tokens[0]) + 1 + at: right for end in ends for at, right in expected.items()
    }


def test_alternatives_are_counted_once_and_left_out_where_there_are_none(
    tokenizer: Any, examples: list[Example]
) -> None:
    others = list("bcdefghijkl")
    first = {tokenizer.encode(c, add_special_tokens=False)[0] for c in others}
    assert len(first) == len(others)
    encoder = Encoder(tokenizer)
    many = encoder.encode(Example("Who?", examples[0].paths, "a", (*others, *others)))
    assert {*many.alternatives[:, 0].tolist()} == {len(many) - 2}
    assert sorted(many.alternatives[:, 1].tolist()) == sorted(first)
    same = encoder.encode(Example("Who?", examples[0].paths, "a", ("a",)))
    assert same.alternatives.shape == (0, 2)
    assert pad([make_row([same])])["alternatives"].shape == (1, len(same), 0)


def test_layouts_are_drawn_for_each_example(tokenizer: Any, examples: list[Example]) -> None:
    def positions(layouts: Any, seed: int = 0) -> list[list[int]]:
        encoder = Encoder(tokenizer, layouts=layouts, seed=seed)
        return [encoder.encode(example).positions.tolist() for example in examples]

    mixed = positions(LAYOUTS)
    assert mixed == positions(LAYOUTS) != positions(LAYOUTS, seed=1)
    pure = [positions([layout]) for layout in LAYOUTS]
    for i, found in enumerate(mixed):
        assert found in [each[i] for each in pure]
    assert all(any(mixed[i] == each[i] for i in range(len(mixed))) for each in pure)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_questions_about_the_same_paths_share_their_context(
    tokenizer: Any, examples: list[Example], attention: Any
) -> None:
    paths = examples[0].paths
    asked = [Example(e.question, paths, e.answer) for e in examples[:4]]
    encoder = Encoder(tokenizer, attention)
    alone = [encoder.encode(example) for example in asked]
    [shared] = encoder.encode_all(asked)
    num = shared.task_start
    assert len(shared) == num + sum(len(sample) - num for sample in alone)
    assert num > 0.8 * len(alone[0])
    mask = mask_of([shared])
    at = num
    for sample in alone:
        tail = slice(at, at + len(sample) - num)
        at = tail.stop
        rows = np.r_[0:num, tail]
        assert shared.tokens[rows].tolist() == sample.tokens.tolist()
        assert shared.positions[rows].tolist() == sample.positions.tolist()
        assert shared.labels[tail].tolist() == sample.labels[num:].tolist()
        assert np.array_equal(mask[np.ix_(rows, rows)], mask_of([sample]))
        others = np.setdiff1d(np.arange(num, len(shared)), rows)
        assert not mask[np.ix_(np.r_[tail], others)].any()

    short = Encoder(tokenizer, attention, max_tokens=max(map(len, alone)) + 5)
    assert len(short.encode_all(asked)) > 1
    assert [len(s) for s in encoder.encode_all([asked[0], examples[1]])] == [
        len(alone[0]),
        len(encoder.encode(examples[1])),
    ]


def random_sample(rng: random.Random) -> Sample:
    num = rng.randint(1, 30)
    task_start = rng.randint(0, num - 1)
    ends = np.array([rng.randint(i + 1, num) if i < task_start else num for i in range(num)])
    tokens = np.array([rng.randint(0, 99) for _ in range(num)])
    return Sample(tokens, np.arange(num), ends, task_start, tokens.copy())


@pytest.mark.parametrize("seed", range(5))
def test_packed_samples_do_not_see_each_other(seed: int) -> None:
    rng = random.Random(seed)
    samples = [random_sample(rng) for _ in range(40)]
    rows = pack(samples, 64)
    assert all(len(row) <= 64 for row in rows)
    assert sum(row.num_samples for row in rows) == 40
    assert sorted(t for row in rows for t in row.tokens.tolist()) == sorted(
        t for sample in samples for t in sample.tokens.tolist()
    )
    assert len(rows) < 1.3 * sum(map(len, samples)) / 64 + 1  # little is left empty
    together = mask_of(samples[:5])
    at = 0
    for sample in samples[:5]:
        span = slice(at, at + len(sample))
        assert np.array_equal(together[span, span], mask_of([sample]))
        together[span, span] = False
        at += len(sample)
    assert not together.any()


def test_padding_is_not_learned_and_sees_only_itself() -> None:
    import torch

    from depcache.training.masks import dense_mask

    rng = random.Random(0)
    rows = [make_row([random_sample(rng)]) for _ in range(6)]
    batch = pad(rows)
    num = max(map(len, rows))
    masks = dense_mask({name: torch.from_numpy(array) for name, array in batch.items()})
    for row, mask, labels in zip(rows, masks[:, 0].numpy(), batch["labels"], strict=True):
        assert np.array_equal(mask[len(row) :], np.eye(num, dtype=bool)[len(row) :])
        assert not mask[: len(row), len(row) :].any()
        assert (labels[len(row) :] == IGNORED).all()


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_flex_attention_mask_says_the_same(tokenizer: Any, has_tables: bool) -> None:
    import torch

    from depcache.training.masks import block_mask, dense_mask

    rng = random.Random(1)
    encoder = Encoder(tokenizer)
    rows = [
        make_row(
            [random_sample(rng) for _ in range(12)]
            + [encoder.encode(about_tables(rng)) for _ in range(2 if has_tables else 0)]
        )
        for _ in range(2)
    ]
    batch = {name: torch.from_numpy(array) for name, array in pad(rows).items()}
    assert bool(batch["sees"].any()) == has_tables
    mask = block_mask(batch)
    num = batch["tokens"].shape[1]
    b, i, j = torch.meshgrid(torch.arange(2), torch.arange(num), torch.arange(num), indexing="ij")
    assert torch.equal(mask.mask_mod(b, 0, i, j), dense_mask(batch)[:, 0])


def test_examples_survive_a_file_and_bad_ones_are_named(
    tmp_path: Any, examples: list[Example]
) -> None:
    file = tmp_path / "data.jsonl"
    examples = [replace(examples[0], alternatives=("Cracow", "Łódź")), *examples[1:]]
    examples.append(about_tables(random.Random(6)))
    assert write_examples(examples, file) == len(examples)
    assert list(read_examples(file)) == examples
    for line, word in (
        ('{"question": "a"}', "answer"),
        ('{"question": "", "answer": "b"}', "question"),
        ('{"question": "a", "answer": "b", "paths": [[1]]}', "paths"),
        ('{"question": "a", "answer": "b", "tables": {}}', "tables"),
        ('{"question": "a", "answer": "b", "tables": [{"name": "t"}]}', "tables"),
        (
            '{"question": "a", "answer": "b", "paths": [["A", "is", "B"]],'
            ' "tables": [{"name": "t", "text": "t"}]}',
            "paths and tables",
        ),
        ('{"question": "a", "answer": "b", "alternatives": "c"}', "alternatives"),
        ('{"question": "a", "answer": "b", "alternatives": ["c", ""]}', "alternatives"),
        ("[]", "example"),
        ("{", "line 14"),
    ):
        with file.open("a") as lines:
            lines.write(line + "\n")
        with pytest.raises(ConfigError, match=word) as caught:
            list(read_examples(file))
        assert "line 14" in str(caught.value)
        write_examples(examples, file)
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_examples(tmp_path / "nothing.jsonl"))


def test_what_cannot_be_encoded_is_refused(tokenizer: Any, examples: list[Example]) -> None:
    for options, word in (
        ({"attention": "full"}, "attention"),
        ({"layouts": []}, "layouts"),
        ({"layouts": ["round"]}, "layouts"),
    ):
        with pytest.raises(ConfigError, match=word):
            Encoder(tokenizer, **options)
    encoder = Encoder(tokenizer, max_tokens=100)
    assert encoder.encode_all(examples) == []
    assert encoder.num_too_long == len(examples)

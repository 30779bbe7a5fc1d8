# SPDX-License-Identifier: Apache-2.0
"""A sample of tables is the server's prompt: tokens, positions, and who sees whom, to the bit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from depcache.errors import ConfigError
from depcache.prompt.layout import LAYOUTS
from depcache.prompt.wire import parse_wire
from depcache.tables.catalog import Catalog
from depcache.tables.render import render_tables
from depcache.tables.seen import SEES
from depcache.training.packing import make_row, pad
from depcache.training.samples import Encoder, Sample
from flashinfer_masks.dense import dense_mask as oracle_mask
from flashinfer_masks.visibility import Step
from tests.helpers.models import make_tokenizer
from tests.helpers.tables import about_tables

pytestmark = pytest.mark.sglang  # torch and transformers come with the server


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def mask_of(samples: list[Sample]) -> np.ndarray:
    """bool (n, n) of one packed row."""
    import torch

    from depcache.training.masks import dense_mask

    batch = {name: torch.from_numpy(array) for name, array in pad([make_row(samples)]).items()}
    return dense_mask(batch)[0, 0].numpy()


@pytest.mark.parametrize("sees", SEES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sample_of_tables_is_the_servers_prompt(tokenizer: Any, layout: Any, sees: Any) -> None:
    from sglang_patches.requests.inbound import read_text
    from sglang_patches.requests.state import RequestState

    rng = random.Random(2)
    encoder = Encoder(tokenizer, layouts=[layout], sees=sees)
    num_joins = 0
    for _ in range(20):
        example = about_tables(rng, rng.randint(2, 8))
        rendered = render_tables(
            Catalog(example.tables), None, example.question, sees=sees, layout=layout
        )
        text = tokenizer.apply_chat_template(
            rendered.messages, tokenize=False, add_generation_prompt=True
        )
        wire = parse_wire(rendered.params_in(text))
        ids, params = read_text(text, wire, tokenizer, add_special_tokens=False).to_wire()
        state = RequestState.make(np.array(ids), parse_wire(params), None)
        sample = encoder.encode(example)
        num_joins += len(sample.joins)
        assert sample.tokens[: len(ids)].tolist() == list(ids)
        assert sample.positions[: len(ids)].tolist() == state.table.positions.tolist()
        step = Step(state.structure, np.arange(len(ids)), 0, len(sample))
        assert np.array_equal(mask_of([sample]), oracle_mask(step))
    assert bool(num_joins) == (sees == "references")  # else single parents: a tree says it all


def test_questions_about_the_same_tables_share_their_context(tokenizer: Any) -> None:
    first = about_tables(random.Random(3))
    asked = [replace(first, question=f"How many t{i}?") for i in range(3)]
    encoder = Encoder(tokenizer)
    alone = [encoder.encode(example) for example in asked]
    [shared] = encoder.encode_all(asked)
    num = shared.task_start
    assert len(shared.joins) and len(shared) == num + sum(len(sample) - num for sample in alone)
    # Beside a sample of other tables, neither sees anything of the other.
    other = encoder.encode(about_tables(random.Random(4)))
    mask = mask_of([other, shared])
    at = len(other) + num
    for sample in alone:
        rows = np.r_[len(other) : len(other) + num, at : at + len(sample) - num]
        at += len(sample) - num
        assert np.array_equal(mask[np.ix_(rows, rows)], mask_of([sample]))
        assert not mask[rows, : len(other)].any()
    assert np.array_equal(mask[: len(other), : len(other)], mask_of([other]))


def test_flat_tables_stand_as_they_come(tokenizer: Any) -> None:
    example = about_tables(random.Random(5))
    sample = Encoder(tokenizer, "flat").encode(example)
    text = tokenizer.decode(sample.tokens)
    places = [text.index(table.text) for table in example.tables]
    assert places == sorted(places)
    assert len(sample.joins) == 0 and sample.task_start == 0
    with pytest.raises(ConfigError, match="'all'"):
        Encoder(tokenizer, sees="all")

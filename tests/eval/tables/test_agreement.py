# SPDX-License-Identifier: Apache-2.0
"""What is forced upon a model: equal to ordinary attention where there is one table, hidden tables
hidden."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from depcache.tables.catalog import Catalog
from depcache.tables.seen import SEES
from depcache.tables.table import Table
from eval.tables.agreement import ABSENT, ALL, OPEN, Forced, measure_agreement
from eval.tables.answers import Asked, make_set
from models.tiny.stages import kept_folder

pytestmark = pytest.mark.sglang  # torch and transformers come with the server


@pytest.fixture(scope="module")
def model() -> Forced:
    return Forced(kept_folder())


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    return make_set("made_up", 24)


def referring(asked: list[Asked]) -> Asked:
    """A question about a catalog in which some table refers to another."""
    return next(each for each in asked if any(table.references for table in each.catalog))


def test_with_one_table_every_mode_is_ordinary_attention(model: Forced, asked: list[Asked]) -> None:
    first = asked[0]
    one = Catalog([next(iter(first.catalog))])
    flat = model.logits(model.encode(first, one, ALL))
    assert len(flat) > 5
    for mode in SEES:
        found = model.logits(model.encode(first, one, mode))
        assert np.abs(found - flat).max() < 1e-3


def test_what_is_hidden_is_the_absent_table_and_the_task_does_not_see_it(
    model: Forced, asked: list[Asked]
) -> None:
    first = referring(asked)
    table = next(each for each in first.catalog if each.references)
    [target, *_] = table.references
    sample = model.encode(first, first.catalog, "references")
    ranges = model.hidden_ranges(first, first.catalog, [target])
    [(start, stop)] = ranges
    text = model.tokenizer.decode(sample.tokens[start:stop])
    assert text.split() == first.catalog[target].text.split()
    seen, hidden = model.logits(sample), model.logits(sample, ranges)
    assert np.abs(seen - hidden).max() > 1e-4
    # A table that nobody refers to is of no use to others: hidden, it might as well not be there.
    alone = Table("aside", "CREATE TABLE aside (\n    c1 INTEGER\n)")
    more = Catalog([*first.catalog, alone])
    sample = model.encode(first, more, "references")
    without = model.hidden_ranges(first, more, ["aside"])
    other = Catalog([*first.catalog, Table("aside", alone.text.replace("c1", "c2"))])
    found = [
        model.logits(model.encode(first, catalog, "references"), without)
        for catalog in (more, other)
    ]
    assert np.abs(found[0] - found[1]).max() < 1e-4


def test_a_report_has_every_mode_and_the_open_prompts(tmp_path: Path) -> None:
    (tmp_path / "references").symlink_to(kept_folder())
    # Small schemas have hardly a question that leaves out what its tables refer to.
    asked = make_set("more_tables", 10)
    rows = measure_agreement(tmp_path, asked)
    modes = {row["mode"]: row for row in rows}
    assert list(modes) == [*SEES, OPEN, ABSENT]
    assert all(row["kl"] >= 0 and 0 <= row["agree"] <= 1 for row in rows)
    assert modes["nothing"]["questions"] == 10 > modes[ABSENT]["questions"] > 0
    # What sees less is farther away.
    assert modes["nothing"]["kl"] > modes["component"]["kl"]
    assert measure_agreement(tmp_path / "references", asked[:1]) == []

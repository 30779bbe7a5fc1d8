# SPDX-License-Identifier: Apache-2.0
"""Two graphs in `eval/unseen` with relations that no model of this repository was trained on.

A hospital's equipment and a rail depot, invented and written by hand; the questions are worded as
users word them. Nothing of them may reach a training file: `python -m eval teach` keeps their names
out, and the tests hold the words of their relations apart from those of the made-up worlds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from eval.sets import DataSet, load_folder

UNSEEN = "unseen_"
"""What the names of these sets begin with: `unseen_depot_1hop`, ..."""

_FOLDER = Path(__file__).parents[1] / "unseen"


@cache
def load_unseen() -> dict[str, DataSet]:
    """Returns the sets by name, those of one graph behind each other, by number of hops."""
    return {(name := UNSEEN + data.name): replace(data, name=name) for data in load_folder(_FOLDER)}


def unseen_entities() -> frozenset[str]:
    """Returns the names in both graphs."""
    return frozenset[str]().union(*(data.entities() for data in load_unseen().values()))


def unseen_relations() -> frozenset[str]:
    """Returns the relations of both graphs."""
    return frozenset(name for data in load_unseen().values() for _, name, _ in data.triples)

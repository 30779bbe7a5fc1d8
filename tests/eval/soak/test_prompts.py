# SPDX-License-Identifier: Apache-2.0
"""The prompts of a soak are of every kind and form, and the same for the same seed."""

from __future__ import annotations

import random
from typing import Any

from depcache.prompt.wire import forest_from_wire, parse_wire
from eval.soak.prompts import LAYOUTS, World


def test_a_world_draws_every_kind_in_every_form_and_the_same_again(tokenizer: Any) -> None:
    prompts = [World(tokenizer, 3).draw(random.Random(i)) for i in range(200)]
    assert prompts == [World(tokenizer, 3).draw(random.Random(i)) for i in range(200)]
    assert {(p.kind, p.form) for p in prompts} == {
        (kind, form) for kind in ("plain", *LAYOUTS) for form in ("ids", "text", "chat")
    }
    for prompt in prompts:
        wire = parse_wire(prompt.structure)
        if wire is not None:
            forest = forest_from_wire(prompt.input_ids, wire)
            assert forest.system_len == prompt.system_len > 0
        assert (prompt.custom_params is None) == (prompt.kind == "plain")


def test_a_long_prompt_is_nearly_as_long_as_it_may_be(tokenizer: Any) -> None:
    world = World(tokenizer, 0)
    for seed in range(20):
        count = len(world.draw_long(random.Random(seed), 1200).input_ids)
        assert 900 < count <= 1200

# SPDX-License-Identifier: Apache-2.0
"""Heavy requests just fit into the context, and each has a plain twin."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.wire import WireOutline, forest_from_wire, parse_wire
from eval.soak.heavy import CONTEXT_TOKENS, SMALL_NODES, Heavies


def test_the_heavy_prompts_just_fit_into_the_context(tokenizer: Any) -> None:
    heavies = Heavies(tokenizer).all()
    for name in (SMALL_NODES, "largest tree of ids"):
        body = json.loads(heavies[name](random.Random(1)).content or "")
        wire = parse_wire(body["sampling_params"]["custom_params"])
        assert wire is not None
        forest = forest_from_wire(body["input_ids"], wire)
        assert 0.95 * CONTEXT_TOKENS < forest.num_tokens <= CONTEXT_TOKENS
        assert (int(forest.lens.max()) == 1) == (name == SMALL_NODES)
    body = json.loads(heavies["300 entities, /generate"](random.Random(1)).content or "")
    wire = parse_wire(body["sampling_params"]["custom_params"])
    assert isinstance(wire, WireOutline)
    assert len(set(re.findall(r"(\d+ \d+) ->", body["text"]))) == 300
    prompt = DepPrompt.from_outline(body["text"], wire.outline, tokenizer=tokenizer)
    assert 0.8 * CONTEXT_TOKENS < prompt.num_tokens <= CONTEXT_TOKENS


def test_every_heavy_request_is_new_every_time_and_its_twin_is_plain(tokenizer: Any) -> None:
    heavies = Heavies(tokenizer).all()
    for name, make in heavies.items():
        heavy = make(random.Random(1))
        assert (heavy.twin is None) == (not heavy.twin_route), name
        assert "depcache_" not in (heavy.twin or ""), name
        if heavy.content is not None and "custom_params" not in (heavy.twin or ""):
            assert "depcache_" in heavy.content, name
    fresh = {heavies["300 entities, chat"](random.Random(i)).content for i in range(3)}
    assert len(fresh) == 3

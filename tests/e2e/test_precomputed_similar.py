# SPDX-License-Identifier: Apache-2.0
"""Chunks behind their most similar ones, precomputed: on the device, and after a restart."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from depcache.client.reply import ReuseReport
from depcache.prompt.recompute import Recompute
from tests.e2e.test_precomputed_chunks import SALT, Corpus
from tests.helpers.commands import run_json, serve_every_tier

pytestmark = pytest.mark.sglang


@dataclass
class Similar(Corpus):
    """A corpus whose chunks have neighbours, by id, the most similar last."""

    neighbours: dict[str, list[str]] | None = None

    def compute(self, number: int, *arguments: str) -> dict[str, Any]:
        assert self.neighbours is not None
        file = self.folder / "neighbours.jsonl"
        rows = [{"id": name, "neighbours": some} for name, some in self.neighbours.items()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        by = ("--similar", str(number), "--similar-by", str(file))
        return self.precompute("--source", "similar", *by, *arguments)

    def invalidate(self, name: str) -> dict[str, Any]:
        """What `depcache invalidate --chunks` says of a chunk."""
        state = self.folder / "--source-similar.jsonl"
        where = ("--state", state, "--server", self.client.base_url)
        return run_json("invalidate", "--chunks", self.write(), "--entity", name, *where)

    def ask_similar(self, *names: str, number: int = 2, **fields: Any) -> ReuseReport:
        assert self.neighbours is not None
        reply = self.client.ask_chunks(
            [self.texts[name] for name in names],
            "Where?",
            recompute=Recompute(0.15, is_pinned=True),
            behind=[[self.texts[n] for n in self.neighbours[name][-number:]] for name in names],
            max_tokens=1,
            **fields,
        )
        assert reply.depcache is not None
        return reply.depcache


def test_similar_chunks_are_computed_kept_and_found(
    model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    rng = random.Random(5)
    texts = {
        f"{d}-{n}": f"In {1800 + 7 * n} {d} went to {n * n} towns." for d in "abc" for n in range(4)
    }
    near = {name: rng.sample([n for n in texts if n != name], 3) for name in texts}
    model = model_path("llama_gqa")
    with serve_every_tier(model, tmp_path) as client:
        corpus = Similar(client, tmp_path, texts, near)
        first = corpus.compute(2)
        assert (first["computed"], first["failed"]) == (12, 0)
        assert corpus.compute(2)["requests"] == 0
        for _ in range(4):
            names = rng.sample(list(texts), rng.randint(2, 5))
            report = corpus.ask_similar(*names)
            assert (report.see, report.settled, report.missed) == ("fused", 0, 0)
            assert report.behind == len(names)
        # Another salt, other neighbours and another order are other copies.
        assert corpus.ask_similar("a-1", cache_salt=SALT).settled > 0
        near["b-2"] = near["b-2"][::-1]
        again = corpus.compute(2)
        assert (again["computed"], again["unchanged"]) == (1, 11)
        assert corpus.ask_similar("b-2").settled == 0
        anew = corpus.compute(1)
        assert anew["computed"] == 12
        assert anew["notes"] == ["starting anew: similar not the same as before"]
        assert corpus.compute(2)["computed"] == 12  # the state began anew
    with serve_every_tier(model, tmp_path) as client:
        corpus = Similar(client, tmp_path, texts, near)
        assert corpus.compute(2)["requests"] == 0  # the disk has it all
        names = ["c-3", "a-0", "b-2"]
        report = corpus.ask_similar(*names)
        # Brought back: each request that settles computes its one token of the task.
        assert (report.settled, report.missed) == (1 + len(names), 0)
        assert corpus.ask_similar(*names).settled == 0
        assert corpus.ask_similar(*names, cache_salt=SALT).settled > 1 + len(names)
        # Chunk a-0 goes, alone and behind others, and so does what stands behind it; no other does.
        kept = [name for name in texts if name != "a-0" and "a-0" not in near[name][-2:]]
        lost = [name for name in texts if "a-0" in near[name][-2:]]
        corpus.ask_similar(*kept[:2])
        gone = corpus.invalidate("a-0")
        assert (gone["affected"], gone["in_use"], gone["forgotten"]) == (1, 0, 1)
        assert gone["tokens"]["device"] > 0
        assert corpus.ask_similar(*kept[:2]).settled == 0
        assert all(corpus.ask_similar(name).settled > 2 for name in ["a-0", *lost[:1]])

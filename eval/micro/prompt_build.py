# SPDX-License-Identifier: Apache-2.0
"""How long a DepPrompt takes to build from retrieved paths, and what it costs on the wire.

The paper's retrieval (section 6): 10 entities, 2 hops, 30 paths each, with a warm element
cache. The tokenizer is a byte-level BPE trained here on the names themselves, so nothing is
downloaded.

`python -m eval.micro.prompt_build [--entities N] [--paths N] [--repeats N] [--json FILE]`
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.paths import Path as RelationPath
from depcache.prompt.tokenization import PromptTokenizer
from eval.micro.spread import spread_ms
from eval.output import write_rows
from eval.tokenizer import train_tokenizer

SYSTEM = "Answer the question with the facts you are given. Each fact is one line.\n" * 4
TASK = "\n\nQuestion: Where are the headquarters of the company that Elon Musk founded?\nAnswer:"


def main() -> None:
    """Print median and spread of building and of the wire."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=10)
    parser.add_argument("--paths", type=int, default=30, help="paths per entity")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    started = time.perf_counter()

    paths = make_paths(arguments.entities, arguments.paths, seed=0)
    texts = [*(element for path in paths for element in path), SYSTEM, TASK]
    tokenizer = train_tokenizer(texts, vocab_size=4000)

    def build(prompt_tokenizer: PromptTokenizer) -> DepPrompt:
        return DepPrompt.from_paths(paths, tokenizer=prompt_tokenizer, system=SYSTEM, task=TASK)

    warm = PromptTokenizer(tokenizer)
    prompt = build(warm)
    input_ids, params = prompt.to_wire()
    size = {
        "tokens": prompt.num_tokens,
        "flat_tokens": prompt.num_flat_tokens,
        "segments": prompt.forest.num_segments,
    }
    calls: dict[str, Callable[[], object]] = {
        "built, warm": lambda: build(warm),
        "built, cold": lambda: build(PromptTokenizer(tokenizer)),
        "to wire": prompt.to_wire,
        "from wire": lambda: DepPrompt.from_wire(input_ids, params),
    }
    told: list[dict[str, object]] = []
    for name, call in calls.items():
        told.append({"case": name, **size, **spread_ms(call, arguments.repeats)})
        print("  ".join(f"{key}={value}" for key, value in told[-1].items()))
    write_rows(arguments, "python -m eval.micro.prompt_build", started, told)


def make_paths(num_entities: int, num_paths: int, seed: int) -> list[RelationPath]:
    """Two-hop paths with shared first hops, as a retrieval around each entity finds them."""
    rng = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ren", "sor", "tav", "ul", "ben", "dor", "fen", "gra", "hil"]

    def make_name(num_words: int) -> str:
        words = ("".join(rng.choices(syllables, k=rng.randint(2, 3))) for _ in range(num_words))
        return " ".join(words).title()

    relations = [
        make_name(1).lower() + suffix for suffix in ("ed", "s in", " of") for _ in range(20)
    ]
    paths: list[RelationPath] = []
    for _ in range(num_entities):
        entity = make_name(2)
        hops = [(rng.choice(relations), make_name(2)) for _ in range(max(1, num_paths // 4))]
        for _ in range(num_paths):
            paths.append((entity, *rng.choice(hops), rng.choice(relations), make_name(2)))
    return paths


if __name__ == "__main__":
    main()

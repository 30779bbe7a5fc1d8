# SPDX-License-Identifier: Apache-2.0
"""How long a DepPrompt takes to build from retrieved paths: `python -m eval.micro.prompt_build`.

The paper's retrieval (section 6): 10 entities, 2 hops, 30 paths each, with a warm element
cache. The tokenizer is a byte-level BPE trained here on the names themselves, so nothing is
downloaded. Smaller is better.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.paths import Path
from depcache.prompt.tokenization import PromptTokenizer

SYSTEM = "Answer the question with the facts you are given. Each fact is one line.\n" * 4
TASK = "\n\nQuestion: Where are the headquarters of the company that Elon Musk founded?\nAnswer:"


def main() -> int:
    """Measure and print; the exit code."""
    parser = argparse.ArgumentParser(description="Time to build a DepPrompt from paths.")
    parser.add_argument("--entities", type=int, default=10)
    parser.add_argument("--paths", type=int, default=30, help="paths per entity")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    paths = make_paths(args.entities, args.paths, seed=0)
    tokenizer = make_tokenizer([*(element for path in paths for element in path), SYSTEM, TASK])

    def build(prompt_tokenizer: PromptTokenizer) -> DepPrompt:
        return DepPrompt.from_paths(paths, tokenizer=prompt_tokenizer, system=SYSTEM, task=TASK)

    warm = PromptTokenizer(tokenizer)
    prompt = build(warm)
    input_ids, params = prompt.to_wire()
    result = {
        "what": f"{args.entities} entities x {args.paths} two-hop paths",
        "tokens": prompt.num_tokens,
        "flat_tokens": prompt.num_flat_tokens,
        "segments": prompt.forest.num_segments,
        "runs": args.runs,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "warm_ms": spread_ms(lambda: build(warm), args.runs),
        "cold_ms": spread_ms(lambda: build(PromptTokenizer(tokenizer)), args.runs),
        "to_wire_ms": spread_ms(prompt.to_wire, args.runs),
        "read_wire_ms": spread_ms(lambda: DepPrompt.from_wire(input_ids, params), args.runs),
    }
    if args.json:
        print(json.dumps(result))
        return 0
    for key, value in result.items():
        if isinstance(value, dict):
            value = "  ".join(f"{name} {number:.2f}" for name, number in value.items())
        print(f"{key:12} {value}")
    return 0


def spread_ms(run: Callable[[], object], runs: int) -> dict[str, float]:
    """Median, 10th and 90th percentile and the extremes of `runs` calls, in milliseconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    numbers = {
        "median": statistics.median(times),
        "p10": deciles[0],
        "p90": deciles[-1],
        "min": min(times),
        "max": max(times),
    }
    return {name: round(number, 3) for name, number in numbers.items()}


def make_paths(num_entities: int, num_paths: int, seed: int) -> list[Path]:
    """Two-hop paths with shared first hops, as a retrieval around each entity finds them."""
    rng = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ren", "sor", "tav", "ul", "ben", "dor", "fen", "gra", "hil"]

    def make_name(num_words: int) -> str:
        words = ("".join(rng.choices(syllables, k=rng.randint(2, 3))) for _ in range(num_words))
        return " ".join(words).title()

    relations = [
        make_name(1).lower() + suffix for suffix in ("ed", "s in", " of") for _ in range(20)
    ]
    paths: list[Path] = []
    for _ in range(num_entities):
        entity = make_name(2)
        hops = [(rng.choice(relations), make_name(2)) for _ in range(max(1, num_paths // 4))]
        for _ in range(num_paths):
            paths.append((entity, *rng.choice(hops), rng.choice(relations), make_name(2)))
    return paths


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of 4,000 tokens at most, trained on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


if __name__ == "__main__":
    sys.exit(main())

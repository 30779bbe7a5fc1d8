# SPDX-License-Identifier: Apache-2.0
"""Train depcache-tiny from nothing: `python -m models.tiny.train OUT [--minutes 60]`.

A small Llama that reads a path out of the facts, says it, and names where it ends. Stages:

    copy        random strings that are repeated: heads that look back for what came next
    base        questions over flat text with ordinary attention, as any model is trained
    dependency  from base: the same kind of questions over trees, every token seeing its
                ancestors only, in all layouts; and some over flat text, so that it reads both
    control     what the last cycle of dependency is compared with: it begins where that began,
                but is over flat text only, with ordinary attention; as long as any cycle but
                the first

`dependency` is trained in `--cycles` of the learning rate, each from where the one before it
ended, and `base` in `--base-cycles`. `--cycles 0 --base-cycles 3` trains a model that has never
seen a tree. With `--from FOLDER` there is no copy and no base: all are cycles, the first from the
model that is there. `OUT/base`, `OUT/dependency`, `OUT/dependency-2`, ... are the models after the
stages, and `OUT/log.jsonl` has the losses. A stage whose model is there already is not trained
again. Questions are about made-up worlds (`models.tiny.worlds`), new ones all the time, and about
what `--examples` holds (as for `depcache finetune`). No made-up world has a name of the demo's
graph or one of `--forbidden`, a file with a name on each line. `--made-up-relations 0.5` gives
half of them relations of their own (`models.tiny.invented`), and `--other-styles 0.3` writes so
many contexts otherwise than `depcache.render` does (`models.tiny.styles`). Needs the extra
`finetune`.
"""

from __future__ import annotations

import argparse
import ctypes
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from depcache.demo.sample import load_entities
from depcache.errors import ConfigError
from depcache.prompt.render import DEFAULT_SYSTEM
from depcache.training.examples import Example, read_examples
from depcache.training.packing import Row
from depcache.training.samples import Attention
from models.tiny.rows import COPY_LEN, copy_rows, question_rows, with_copies
from models.tiny.stages import BASE, SELF_ATTENTION, TINY, cycle_name
from models.tiny.tokenizer import make_tokenizer
from models.tiny.trainer import (
    MAX_LEN,
    Shape,
    Trainer,
    add_shape_arguments,
    make_network,
    read_shape,
    shape_of,
)
from models.tiny.worlds import make_examples

SEED = 20261121
STAGE_SHARES = {"copy": 0.02, "base": 0.43, "dependency": 0.55}
"""Each stage's share of the time."""

CYCLE_SHARE = 0.3
"""Shares of the time for each cycle behind the first and the control, on top of the stages."""

CYCLE_PEAK = 0.5
"""The highest learning rate in these cycles, as a share of that in the stages."""

Lengths = tuple[tuple[float, int, int], ...]
"""Until this share of a stage: tokens of a row, and paths of a made-up prompt at most."""

PHASES: dict[str, Lengths] = {
    "base": ((0.55, 512, 8), (0.85, 1024, 24), (1.0, 2048, 50)),
    "dependency": ((0.25, 512, 8), (1.0, 1024, 40)),  # trees are shorter than text
    "control": ((0.3, 512, 12), (0.75, 1024, 30), (1.0, 2048, 60)),
}

NUM_QUESTIONS = {"base": 6, "dependency": 16, "control": 16}
"""About a made-up world at most: they share its facts, so more of them are cheaper to learn."""

FLAT_SHARE = 0.25
"""The share of flat prompts in the rows of the stage `dependency`."""

_REUSE = 3  # times that a row is trained on, on average
_CHECK_ROWS = 16
_HELD_OUT = 1_000_003  # added to the seed: worlds that training never sees


def make_vocabulary(
    size: int,
    examples: Sequence[Example] = (),
    seed: int = SEED,
    forbidden: frozenset[str] = frozenset(),
    made_up_relations: float = 0.0,
) -> Any:
    """A tokenizer of the words of made-up worlds and of these examples."""
    texts = [DEFAULT_SYSTEM, "\n\nQuestion: ", "\nAnswer: ", "Facts:"]
    made_up = make_examples(seed + 7, forbidden=forbidden, made_up_relations=made_up_relations)
    for example in [*islice(made_up, 2000), *examples]:
        texts += [example.question, *("\n" + " -> ".join(path) for path in example.paths[:3])]
    return make_tokenizer(texts, size, MAX_LEN)


def train(
    out: Path,
    minutes: float,
    shape: Shape,
    examples: Iterable[Example] = (),
    *,
    seed: int = SEED,
    forbidden: Iterable[str] = (),
    is_compiled: bool = False,
    has_control: bool = False,
    num_cycles: int = 1,
    num_base_cycles: int = 1,
    source: Path | None = None,
    made_up_relations: float = 0.0,
    other_styles: float = 0.0,
) -> None:
    """All stages, each for its share of the time.

    forbidden        names that no made-up world has, besides those of the demo's graph
    num_cycles       of `dependency`; 0 trains on flat text only
    num_base_cycles  of `base`, before the first tree
    source           a trained model, to go on from instead of `base`; its shape is taken
    made_up_relations  share of made-up worlds that have relations of their own
    other_styles     share of contexts that are written otherwise than by `depcache.render`

    Raises ConfigError where `source` holds no model, and ValueError for a control without a cycle
    of `dependency` to compare it with.
    """
    if has_control and not num_cycles:
        raise ValueError("a control is compared with a cycle of dependency; train at least one")
    if source is not None and not (source / "config.json").is_file():
        raise ConfigError(f"{str(source)!r} holds no model: name a folder with a config.json")
    from transformers import AutoTokenizer

    _keep_memory()
    out.mkdir(parents=True, exist_ok=True)
    examples = list(examples)
    forbidden = load_entities().union(forbidden)
    begun = source or out / BASE
    is_begun = begun.exists()
    if is_begun:
        shape = shape_of(begun, shape)
        tokenizer = AutoTokenizer.from_pretrained(begun)
    else:
        tokenizer = make_vocabulary(shape.vocab_size, examples, seed, forbidden, made_up_relations)
    network = make_network(shape, MAX_LEN, seed)
    trainer = Trainer(network, shape, out / "log.jsonl", is_compiled=is_compiled)
    seconds = 60 * minutes
    if source is not None:
        trainer.load(source)
    elif not is_begun:
        copies = copy_rows(shape.vocab_size, np.random.default_rng(seed))
        num_copies = shape.num_rows(4 * COPY_LEN)
        phases = [(1.0, num_copies, copies)]
        trainer.run("copy", phases, STAGE_SHARES["copy"] * seconds, has_muon=False)
    names = [] if source else [cycle_name(BASE, cycle + 1) for cycle in range(num_base_cycles)]
    names += [cycle_name(TINY, cycle + 1) for cycle in range(num_cycles)]
    names += [SELF_ATTENTION] if has_control else []
    for name in names:
        if (out / name).exists():
            trainer.load(out / name)
            continue
        if name == SELF_ATTENTION:
            # From before the last cycle.
            trainer.load(out / names[-3] if source is None or num_cycles > 1 else source)
        _train_stage(
            trainer,
            name,
            tokenizer,
            seconds,
            is_cycle=source is not None or name not in STAGE_SHARES,
            seed=seed,
            examples=examples,
            forbidden=forbidden,
            made_up_relations=made_up_relations,
            other_styles=other_styles,
        )
        network.save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)


def _train_stage(
    trainer: Trainer,
    name: str,
    tokenizer: Any,
    seconds: float,
    *,
    is_cycle: bool,
    seed: int,
    examples: Sequence[Example],
    **worlds: Any,
) -> None:
    """`base`, `dependency`, `dependency-2`, ... or `control`.

    seconds   those of all stages
    is_cycle  from trained weights
    worlds    what made-up ones are like, as for `question_rows`
    """
    stage, _, cycle = name.partition("-")
    if stage == BASE and cycle:
        stage = SELF_ATTENTION  # what a cycle on flat text is made of
    phases = [
        (
            share,
            trainer.shape.num_rows(row_tokens),
            _stage_rows(
                stage,
                tokenizer,
                seed + i + 1000 * int(cycle or 0),
                row_tokens=row_tokens,
                max_paths=max_paths,
                num_questions=NUM_QUESTIONS[stage],
                examples=examples,
                reuse=_REUSE,
                **worlds,
            ),
        )
        for i, (share, row_tokens, max_paths) in enumerate(PHASES[stage])
    ]
    attention: Attention = "dependency" if stage == "dependency" else "flat"
    held_out = seed + _HELD_OUT
    check = question_rows(tokenizer, attention, held_out, row_tokens=1024, **worlds)
    rows = [*islice(check, _CHECK_ROWS)]
    if is_cycle:
        share = CYCLE_SHARE
        trainer.run(name, phases, share * seconds, rows, peak=CYCLE_PEAK, cool_down=1.0)
    else:
        trainer.run(name, phases, STAGE_SHARES[name] * seconds, rows)


def _stage_rows(
    stage: str, tokenizer: Any, seed: int, *, row_tokens: int, **settings: Any
) -> Iterator[Row]:
    """What a stage is trained on."""
    settings["row_tokens"] = row_tokens
    flat = question_rows(tokenizer, "flat", seed, **settings)
    trees = question_rows(tokenizer, "dependency", seed + 100, **settings)
    flat_share = FLAT_SHARE if stage == "dependency" else 1.0
    rng = random.Random(seed + 1)
    questions = (next(flat if rng.random() < flat_share else trees) for _ in count())
    return with_copies(questions, len(tokenizer), seed, row_tokens)


def _keep_memory() -> None:
    """Let glibc keep what is freed: giving pages back and asking anew took a tenth of a step."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train depcache-tiny from nothing.")
    parser.add_argument("out", type=Path, help="folder for the models and the log")
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="of all stages but later cycles and the control, "
        f"each of which takes {CYCLE_SHARE} of it more (default 60)",
    )
    parser.add_argument(
        "--examples", type=Path, nargs="*", default=[], help="JSONL, as for depcache finetune"
    )
    parser.add_argument(
        "--forbidden", type=Path, nargs="*", default=[], help="names of no made-up world, in lines"
    )
    parser.add_argument("--control", action="store_true", help="add the stage `control`")
    parser.add_argument(
        "--cycles", type=int, default=1, help="of the stage `dependency` (default 1)"
    )
    parser.add_argument(
        "--base-cycles", type=int, default=1, help="of the stage `base` (default 1)"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, help="folder of a trained model to go on from"
    )
    parser.add_argument(
        "--made-up-relations",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of made-up worlds, with relations of their own (default 0)",
    )
    parser.add_argument(
        "--other-styles",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of contexts, with other words around the facts, or in another place (default 0)",
    )
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler on a CPU")
    parser.add_argument("--seed", type=int, default=SEED)
    add_shape_arguments(parser)
    args = parser.parse_args()
    for flag in ("made_up_relations", "other_styles"):
        if not 0 <= getattr(args, flag) <= 1:
            name = flag.replace("_", "-")
            parser.error(f"--{name} is {getattr(args, flag)}: use a share from 0 to 1")
    shape = read_shape(args)
    examples = [example for file in args.examples for example in read_examples(file)]
    forbidden = [
        name for file in args.forbidden for name in file.read_text(encoding="utf-8").splitlines()
    ]
    try:
        train(
            args.out,
            args.minutes,
            shape,
            examples,
            seed=args.seed,
            forbidden=forbidden,
            is_compiled=args.compile,
            has_control=args.control,
            num_cycles=args.cycles,
            num_base_cycles=args.base_cycles,
            source=args.source,
            made_up_relations=args.made_up_relations,
            other_styles=args.other_styles,
        )
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

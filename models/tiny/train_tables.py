# SPDX-License-Identifier: Apache-2.0
"""Train readers of tables from nothing: `python -m models.tiny.train_tables OUT [--minutes 30]`.

What do tables lose that do not see each other? Small Llamas as depcache-tiny write SQL over made-up
schemas (`models.tiny.schemas`), new ones all the time. Stages:

    copy        random strings that are repeated, for `--copy-steps` steps: whoever does not copy
                names learns nothing from what follows
    base        ordinary attention over the text of all tables, in any order
    flat        from base: the same once more
    nothing, references, component
                from base: each table sees of the others what its stage is called, see
                `depcache.tables.seen.Sees`, and begins where layout `tree` has it

The last four are trained on the same questions in the same order for equally many steps,
`--mode-steps` each, from the same weights, so `python -m eval tables --answers` compares what a
table sees and nothing else. `OUT/base`,
`OUT/flat`, ... are the models and `OUT/log.jsonl` has the losses. A stage whose model is there
already is not trained again. With `--start` the base goes on from another folder's, without the
stage `copy`. Needs the extra `finetune`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from depcache.prompt.render import DEFAULT_TABLE_SYSTEM
from depcache.tables.render import HEADING
from depcache.tables.seen import DEFAULT_SEES, SEES
from depcache.training.packing import Row
from depcache.training.samples import Attention
from models.tiny.rows import COPY_LEN, copy_rows, schema_rows, with_copies
from models.tiny.sql_questions import make_examples
from models.tiny.stages import BASE, TABLE_MODES
from models.tiny.tokenizer import make_tokenizer
from models.tiny.trainer import (
    MAX_LEN,
    Shape,
    Trainer,
    add_shape_arguments,
    make_network,
    read_shape,
)

SEED = 20261128
COPY_STEPS = 600
"""Steps of the stage `copy`: by then the loss is below 0.001, on any machine."""

MODE_STEPS = 800
"""Steps of each stage after the base: about a quarter of an hour on two cores."""

_REUSE = 3
_CHECK_ROWS = 16
_HELD_OUT = 1_000_003  # added to the seed: schemas that training never sees
_NUM_QUESTIONS = 16  # of a schema at most
_MODE_PEAK = 0.5  # the highest learning rate of a mode, as a share of the base's

Lengths = tuple[tuple[float, int, tuple[int, int]], ...]
"""Until this share of a stage: tokens of a row, and tables of a schema, from and to."""

_BASE_PHASES: Lengths = ((0.4, 512, (2, 4)), (0.75, 1024, (3, 8)), (1.0, 1024, (4, 12)))
_MODE_PHASES: Lengths = ((0.3, 1024, (3, 8)), (1.0, 1024, (4, 12)))


def make_vocabulary(size: int, seed: int = SEED) -> Any:
    """A tokenizer of the words of made-up schemas."""
    texts = [DEFAULT_TABLE_SYSTEM, HEADING, "\n\nQuestion: ", "\nAnswer: "]
    for example in islice(make_examples(seed + 7), 4000):
        texts += [example.question, example.answer]
        texts += [f"\n{table.text}" for table in example.tables[:2]]
    return make_tokenizer(texts, size, MAX_LEN)


def train(
    out: Path,
    minutes: float,
    mode_steps: int,
    shape: Shape,
    *,
    seed: int = SEED,
    is_compiled: bool = False,
    copy_steps: int = COPY_STEPS,
    start: Path | None = None,
    modes: tuple[str, ...] = TABLE_MODES,
) -> None:
    """The base for `minutes`, then each of `modes` from it for so many steps.

    start  a model of another run's, of the same shape, that the base goes on from; give another
           seed, or it sees the same schemas again
    """
    from transformers import AutoTokenizer

    out.mkdir(parents=True, exist_ok=True)
    is_begun = (out / BASE).exists()
    known = out / BASE if is_begun else start
    if known is None:
        tokenizer = make_vocabulary(shape.vocab_size, seed)
    else:
        tokenizer = AutoTokenizer.from_pretrained(known)
    network = make_network(shape, MAX_LEN, seed)
    trainer = Trainer(network, shape, out / "log.jsonl", is_compiled=is_compiled)
    if not is_begun:
        if start is None:
            copies = copy_rows(shape.vocab_size, np.random.default_rng(seed))
            phases = [(1.0, shape.num_rows(4 * COPY_LEN), copies)]
            trainer.run("copy", phases, 0.0, max_steps=copy_steps, has_muon=False)
        else:
            trainer.load(start)
        _run(trainer, BASE, tokenizer, _BASE_PHASES, 60 * minutes, seed)
        network.save_pretrained(out / BASE)
        tokenizer.save_pretrained(out / BASE)
    for mode in modes:
        if (out / mode).exists():
            continue
        trainer.load(out / BASE)
        _run(trainer, mode, tokenizer, _MODE_PHASES, 0.0, seed + 500, mode_steps, _MODE_PEAK)
        network.save_pretrained(out / mode)
        tokenizer.save_pretrained(out / mode)


def _run(
    trainer: Trainer,
    stage: str,
    tokenizer: Any,
    lengths: Lengths,
    seconds: float,
    seed: int,
    max_steps: int | None = None,
    peak: float = 1.0,
) -> None:
    """One stage. Every mode is trained on the same questions, in the same order."""
    phases = [
        (
            share,
            trainer.shape.num_rows(row_tokens),
            _with_copies(stage, tokenizer, seed + number, row_tokens, sizes),
        )
        for number, (share, row_tokens, sizes) in enumerate(lengths)
    ]
    check = _rows(stage, tokenizer, seed + _HELD_OUT, row_tokens=1024, sizes=(4, 12))
    check_rows = [*islice(check, _CHECK_ROWS)]
    cool_down = 1.0 if peak < 1 else 0.4
    trainer.run(
        stage, phases, seconds, check_rows, max_steps=max_steps, peak=peak, cool_down=cool_down
    )


def _rows(stage: str, tokenizer: Any, seed: int, **settings: Any) -> Iterator[Row]:
    sees = stage if stage in SEES else DEFAULT_SEES
    attention: Attention = "dependency" if stage in SEES else "flat"
    return schema_rows(tokenizer, attention, seed, sees=sees, **settings)


def _with_copies(
    stage: str, tokenizer: Any, seed: int, row_tokens: int, sizes: tuple[int, int]
) -> Iterator[Row]:
    rows = _rows(
        stage,
        tokenizer,
        seed,
        row_tokens=row_tokens,
        sizes=sizes,
        num_questions=_NUM_QUESTIONS,
        reuse=_REUSE,
    )
    return with_copies(rows, len(tokenizer), seed, row_tokens)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Train readers of tables from nothing.")
    parser.add_argument("out", type=Path, help="folder for the models and the log")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the base (default 30)")
    parser.add_argument(
        "--mode-steps", type=int, default=MODE_STEPS, help=f"of each of the four ({MODE_STEPS})"
    )
    parser.add_argument(
        "--modes", nargs="*", choices=TABLE_MODES, default=TABLE_MODES, help="default: all"
    )
    parser.add_argument(
        "--copy-steps", type=int, default=COPY_STEPS, help=f"before the base ({COPY_STEPS})"
    )
    parser.add_argument("--start", type=Path, help="model that the base goes on from")
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler on a CPU")
    parser.add_argument("--seed", type=int, default=SEED)
    add_shape_arguments(parser)
    args = parser.parse_args()
    train(
        args.out,
        args.minutes,
        args.mode_steps,
        read_shape(args),
        seed=args.seed,
        is_compiled=args.compile,
        copy_steps=args.copy_steps,
        start=args.start,
        modes=tuple(args.modes),
    )


if __name__ == "__main__":
    main()

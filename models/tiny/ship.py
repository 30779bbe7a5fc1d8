# SPDX-License-Identifier: Apache-2.0
"""From a training run to the files that are kept: `python -m models.tiny.ship RUN [FOLDER]`.

Of depcache-tiny the mean of the weights of its last three cycles, of the control the same with its
own in place of the last: a cycle forgets some of what the one before it knew, and the mean keeps
more of all (as in "Averaging Weights Leads to Wider Optima", Izmailov et al., 2018). `--shares`
weighs them, or takes another number of them.
Weights in bfloat16, half the size; the tokenizer; the log with the losses of all, behind the log
that is there where the run went on from a trained model.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from depcache.errors import ConfigError
from models.tiny.stages import BASE, KEPT, RECIPE, SELF_ATTENTION, TINY, cycles_of

NUM_CYCLES = 3
"""Whose mean ships, unless shares say otherwise."""


def ship(run: Path, folder: Path, shares: Sequence[float] | None = None) -> None:
    """Write depcache-tiny, and the control if the run has one, to their places in `folder`.

    shares  of the last cycles in the mean, oldest first; divided by their sum. None: alike

    Raises ConfigError if the run has no depcache-tiny, and for shares it has no cycles for.
    """
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    tiny = cycles_of(run, TINY)
    if not tiny:
        raise ConfigError(f"{str(run)!r} has no model {TINY!r}: train one with models.tiny.train")
    shares = [1.0] * min(NUM_CYCLES, len(tiny)) if shares is None else shares
    if len(shares) > len(tiny) or not all(0 < share < math.inf for share in shares):
        raise ConfigError(
            f"the shares are {list(shares)}, the cycles of {str(run)!r} {len(tiny)}: give numbers "
            "above 0, one a cycle at most"
        )
    tiny = tiny[-len(shares) :]
    models = {TINY: tiny}
    if control := cycles_of(run, SELF_ATTENTION):
        models[SELF_ATTENTION] = [*tiny[:-1], control[-1]]
    for name, folders in models.items():
        cycles = [LlamaForCausalLM.from_pretrained(f, dtype=torch.float32) for f in folders]
        with torch.no_grad():
            for same in zip(*(cycle.parameters() for cycle in cycles), strict=True):
                mean = sum(share * each for share, each in zip(shares, same, strict=True))
                same[-1].copy_(mean / sum(shares))
        cycles[-1].bfloat16().save_pretrained(folder / KEPT[name])
        AutoTokenizer.from_pretrained(folders[-1]).save_pretrained(folder / KEPT[name])
    log = (run / "log.jsonl").read_text(encoding="utf-8")
    kept = folder / "log.jsonl"
    if kept.is_file() and not cycles_of(run, BASE):
        # Shipped twice, a run stands there once.
        log = kept.read_text(encoding="utf-8").removesuffix(log) + log
    kept.write_text(log, encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Ship the models of a training run.")
    parser.add_argument("run", type=Path, help="folder that models.tiny.train made")
    parser.add_argument("folder", type=Path, nargs="?", default=RECIPE, help="default: the recipe")
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        metavar="SHARE",
        help="of the last cycles in the mean, oldest first (default: the last three alike)",
    )
    args = parser.parse_args()
    try:
        ship(args.run, args.folder, args.shares)
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

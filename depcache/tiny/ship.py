# SPDX-License-Identifier: Apache-2.0
"""From a training run to the files that ship: `python -m depcache.tiny.ship RUN [FOLDER]`.

Of each model the last cycle: weights in bfloat16, half the size; the tokenizer; the log with the
losses of all.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from depcache.errors import ConfigError
from depcache.tiny.models import SELF_ATTENTION, TINY, last_cycle, model_folder


def ship(run: Path, folder: Path) -> None:
    """Write depcache-tiny, and the control if the run has one, to `folder`.

    Raises ConfigError if the run has no depcache-tiny.
    """
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    lasts = {name: last_cycle(run, name) for name in (TINY, SELF_ATTENTION)}
    if lasts[TINY] is None:
        raise ConfigError(f"{str(run)!r} has no model {TINY!r}: train one with depcache.tiny.train")
    for name, last in lasts.items():
        if last is None:
            continue
        model = LlamaForCausalLM.from_pretrained(last, dtype=torch.bfloat16)
        model.save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(last).save_pretrained(folder / name)
    shutil.copyfile(run / "log.jsonl", folder / "log.jsonl")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Ship the models of a training run.")
    parser.add_argument("run", type=Path, help="folder that depcache.tiny.train made")
    parser.add_argument("folder", type=Path, nargs="?", default=model_folder().parent)
    args = parser.parse_args()
    try:
        ship(args.run, args.folder)
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

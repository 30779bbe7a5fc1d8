# SPDX-License-Identifier: Apache-2.0
"""From a training run to the files that ship: `python -m depcache.tiny.ship RUN [FOLDER]`.

Weights in bfloat16, half the size; the tokenizer; the log with the losses.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from depcache.tiny.models import SELF_ATTENTION, TINY, model_folder


def ship(run: Path, folder: Path) -> None:
    """Write the models of a run, made by `depcache.tiny.train --control`, to `folder`."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    for name in (TINY, SELF_ATTENTION):
        model = LlamaForCausalLM.from_pretrained(run / name, dtype=torch.bfloat16)
        model.save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(run / name).save_pretrained(folder / name)
    shutil.copyfile(run / "log.jsonl", folder / "log.jsonl")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Ship the models of a training run.")
    parser.add_argument("run", type=Path, help="folder that depcache.tiny.train made")
    parser.add_argument("folder", type=Path, nargs="?", default=model_folder().parent)
    args = parser.parse_args()
    ship(args.run, args.folder)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A workload as files that other tools replay: OpenAI chat requests, and the tokenizer.

`bench_command` is how `sglang.bench_serving` replays one. It reads the tokenizer from the folder
beside the requests: from the name of the served model it would look for one on a hub.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.serve.systems import MODEL_NAME, System, Writer
from eval.serve.workloads import Request

TOKENIZER_FOLDER = "tokenizer"


def export(
    requests: Sequence[Request], system: System, writer: Writer, max_tokens: int, file: Path
) -> None:
    """Write them as this system gets them, one a line, and the tokenizer beside them.

    `custom_params` stand beside the messages. The tokenizer is in the folder `TOKENIZER_FOLDER`.
    """
    with file.open("w", encoding="utf-8") as out:
        for request in requests:
            fields = dict(writer.write(system, request).fields)
            extra = fields.pop("extra_body", {})
            line = {**fields, "max_tokens": max_tokens, "temperature": 0.0, **extra}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
    writer.save_tokenizer(file.parent / TOKENIZER_FOLDER)


def bench_command(file: Path, num_requests: int, url: str) -> list[str]:
    """The arguments of `sglang.bench_serving` that replay an exported file, with no network.

    url  address of the server, which is to serve the model that the tokenizer is of
    """
    tokenizer = str(file.parent / TOKENIZER_FOLDER)
    return [
        *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat"),
        *("--base-url", url, "--served-model-name", MODEL_NAME),
        *("--dataset-name", "openai", "--dataset-path", str(file)),
        *("--num-prompts", str(num_requests)),
        # It loads a tokenizer from the name of the model, too, to see if that is for chats.
        *("--model", tokenizer, "--tokenizer", tokenizer),
    ]

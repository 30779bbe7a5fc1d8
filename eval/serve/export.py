# SPDX-License-Identifier: Apache-2.0
"""A workload as a file that other tools replay: one OpenAI chat request a line.

    python -m sglang.bench_serving --backend sglang-oai-chat --dataset-name openai \\
        --dataset-path requests.jsonl --model bench --tokenizer MODEL ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from eval.serve.systems import System, Writer
from eval.serve.workloads import Request


def export(
    requests: Sequence[Request], system: System, writer: Writer, max_tokens: int, file: Path
) -> None:
    """Write them as this system gets them; `custom_params` stand beside the messages."""
    with file.open("w", encoding="utf-8") as out:
        for request in requests:
            fields = dict(writer.write(system, request).fields)
            extra = fields.pop("extra_body", {})
            line = {**fields, "max_tokens": max_tokens, "temperature": 0.0, **extra}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")

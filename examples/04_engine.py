# SPDX-License-Identifier: Apache-2.0
"""No server: an `sglang.Engine` in this process, and the KV of a prompt computed ahead.

python 04_engine.py [MODEL]     without a model, depcache-tiny
"""

import sys

import sglang  # noqa: TID253
from facts import PATHS
from transformers import AutoTokenizer  # noqa: TID253

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.render import render
from depcache.serving.launch import find_gpu
from depcache.serving.tiny import TINY_NAME, resolve_model
from sglang_patches.engine import compute_depkv, generate_with_depkv


def main() -> None:
    """Compute the KV of a prompt, then generate from it."""
    model = resolve_model(sys.argv[1] if len(sys.argv) > 1 else TINY_NAME)
    device = {} if find_gpu() else {"device": "cpu", "sampling_backend": "pytorch"}
    engine = sglang.Engine(
        model_path=model,
        radix_cache_backend="depcache",
        attention_backend="torch_native",
        page_size=1,
        dtype="float32",
        mem_fraction_static=0.3,
        max_total_tokens=16384,
        log_level="error",
        **device,
    )
    try:
        # A chat model answers inside its own chat template; what stands before the facts is the
        # system of the prompt, what stands behind them the task.
        tokenizer = AutoTokenizer.from_pretrained(model)
        chat = render(PATHS, "What did Marie Curie win?")
        text = tokenizer.apply_chat_template(
            chat.messages, tokenize=False, add_generation_prompt=True
        )
        system, _, task = text.partition(chat.flat_text)
        prompt = DepPrompt.from_paths(PATHS, tokenizer=tokenizer, system=system, task=task)
        print(prompt)
        kv = compute_depkv(engine, prompt)
        print("ahead:", kv.report)
        result = generate_with_depkv(engine, kv, {"max_new_tokens": 64, "temperature": 0})
        print("answer:", result["text"])
        print("then:", result["meta_info"]["depcache"])
    finally:
        engine.shutdown()


if __name__ == "__main__":  # the engine starts processes that import this file
    main()

# SPDX-License-Identifier: Apache-2.0
"""An SGLang frontend program with a graph context. Needs the extra `server`.

SGLang writes roles as the model knows them where it knows the model by its name; of another one
pass the name of a template: `DepCacheEndpoint(server, chat_template_name="chatml")`.
"""

import os
import sys
from typing import Any

import sglang as sgl  # noqa: TID253
from facts import PATHS

from depcache.prompt.render import DEFAULT_SYSTEM
from sglang_patches.frontend import DepCacheEndpoint, graph_context


@sgl.function
def answer(s: Any, paths: list[tuple[str, ...]], question: str) -> None:
    """Facts, then the question, then what the model makes of them."""
    s += sgl.system(DEFAULT_SYSTEM)
    s += sgl.user(f"Facts:{graph_context(paths)}\n\nQuestion: {question}")
    s += sgl.assistant(sgl.gen("answer", max_tokens=64, temperature=0))


server = os.environ.get("DEPCACHE_SERVER", "http://127.0.0.1:30000")
try:
    backend = DepCacheEndpoint(server)
except OSError as error:
    sys.exit(f"{server} gave no answer ({error}): start it with `depcache serve depcache-tiny`")
for question in ("Where was Marie Curie born?", "What did Marie Curie win?"):
    state = answer.run(PATHS, question, backend=backend)
    print("answer:", state["answer"])
    report = state.get_meta_info("answer").get("depcache")
    print("reused:", report or "unknown, the server runs without DepCache")

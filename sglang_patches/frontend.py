# SPDX-License-Identifier: Apache-2.0
"""Graph contexts in SGLang frontend programs.

    backend = DepCacheEndpoint("http://localhost:30000")

    @sgl.function
    def answer(s, paths, question):
        s += sgl.user(f"Facts:{graph_context(paths)}\\n\\nQuestion: {question}")
        s += sgl.assistant(sgl.gen("answer", max_tokens=64))

    state = answer.run(paths, "Who founded SpaceX?", backend=backend)
    state.get_meta_info("answer")["depcache"]

The program's text holds the facts as plain text, so it runs on any other backend as well.
Roles are written by the chat template that SGLang's frontend has for the model; depcache-tiny's
is registered here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cachetools import LRUCache
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint
from sglang.lang.chat_template import (
    ChatTemplate,
    register_chat_template,
    register_chat_template_matching_function,
)

from depcache.errors import PromptError
from depcache.prompt.layout import Layout
from depcache.prompt.render import RenderedPrompt, render
from depcache.serving.tiny import TINY_NAME

MAX_REMEMBERED_CONTEXTS = 1024

# Flat text -> the context. By text, because a program's state is forked and joined, and
# text is all that survives of what was added to it.
_contexts: LRUCache[str, RenderedPrompt] = LRUCache(MAX_REMEMBERED_CONTEXTS)
_lock = threading.Lock()

_TINY_FOLDER = ("depcache_tiny", "model")

# As its `chat_template.jinja` writes them.
register_chat_template(
    ChatTemplate(
        name=TINY_NAME,
        default_system_prompt="",
        role_prefix_and_suffix={
            role: (f"<|{role}|>\n", "<|end|>\n") for role in ("system", "user", "assistant")
        },
    )
)


@register_chat_template_matching_function
def _match_tiny(model_path: str) -> str | None:
    # By the end of the path alone: the server may run in another installation.
    return TINY_NAME if Path(model_path).parts[-2:] == _TINY_FOLDER else None


def graph_context(paths: Iterable[Any], *, template: str = "path", layout: Layout = "tree") -> str:
    """The text of `paths`, to be added to a program's state; remembered for the endpoint.

    paths  anything that `depcache.render` takes
    Raises PromptError for paths that cannot be read.
    """
    rendered = render(paths, "?", system="", template=template, layout=layout)
    if not rendered.flat_text:
        raise PromptError("a graph context needs at least one path: leave it out of the program")
    with _lock:
        _contexts[rendered.flat_text] = rendered
    return rendered.flat_text


def find_context(text: str) -> dict[str, Any] | None:
    """The `custom_params` of the longest remembered context that stands in `text` once."""
    with _lock:
        found = [flat for flat in _contexts if flat in text and text.count(flat) == 1]
        return _contexts[max(found, key=len)].params_in(text) if found else None


class DepCacheEndpoint(RuntimeEndpoint):
    """SGLang's RuntimeEndpoint, sending dependency data for contexts in the program's text."""

    def _add_images(self, s: Any, data: dict[str, Any]) -> None:
        # Every request of the endpoint passes here on its way out.
        super()._add_images(s, data)
        custom_params = find_context(s.text_)
        if custom_params is not None:
            data["sampling_params"] = {**data["sampling_params"], "custom_params": custom_params}

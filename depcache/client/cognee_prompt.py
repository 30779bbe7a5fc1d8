# SPDX-License-Identifier: Apache-2.0
"""cognee's prompt with the question behind the facts.

Its template has the question first, so everything before the facts differs from question to
question and nothing is reused. cognee reads templates from its own folder alone; the one function
that fills them in is wrapped here (cognee 1.6: `build_completion_prompts` looks it up by name).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULE = "cognee.modules.retrieval.utils.completion"
TEMPLATE = "graph_context_for_question.txt"

_IS_OURS = "is_of_depcache"


def put_question_last() -> None:
    """Have cognee write facts first. Safe to call twice. Raises ImportError without cognee."""
    module: Any = import_module(MODULE)
    fill_in = module.render_prompt
    if getattr(fill_in, _IS_OURS, False):
        return

    def render_prompt(filename: str, context: dict[str, Any], *args: Any, **others: Any) -> str:
        if filename != TEMPLATE:
            return fill_in(filename, context, *args, **others)
        return (
            "Relations from a knowledge graph, as node1 -- relation -- node2, with their nodes:\n"
            f"{context['context']}\n\nThe question is: {context['question']}"
        )

    setattr(render_prompt, _IS_OURS, True)
    module.render_prompt = render_prompt

# SPDX-License-Identifier: Apache-2.0
"""Write retrieved paths into an OpenAI chat request that any server understands.

The facts stand in the message as plain text, and `extra_body` names the same paths. A DepCache
server finds the text and puts the dependency tree in its place; one that ignores unknown
fields answers from the text. So the answer is right either way, and fast with DepCache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.layout_names import Layout, read_layout
from depcache.prompt.paths import read_paths
from depcache.prompt.template import TEMPLATES, Template, get_template

DEFAULT_SYSTEM = (
    "You answer questions with the facts you are given. Each fact is one line, a path through a "
    "knowledge graph: entity -> relation -> entity. If the facts do not hold the answer, say so."
)


@dataclass(frozen=True)
class RenderedPrompt:
    """What `client.chat.completions.create(model=..., messages=..., extra_body=...)` takes.

    messages    OpenAI messages: a system message, unless it is empty, and a user message
    extra_body  {"custom_params": ...}, the text form of the wire; {} when there are no paths.
                Leave it out for a server that refuses unknown fields, as OpenAI's own does.
    flat_text   the facts as they stand in the user message
    """

    messages: list[dict[str, str]]
    extra_body: dict[str, Any]
    flat_text: str


def render(
    paths: Iterable[Any],
    question: str,
    *,
    system: str | None = DEFAULT_SYSTEM,
    template: str | Template = "path",
    layout: Layout = "tree",
) -> RenderedPrompt:
    """A chat request that asks `question` about `paths`.

    paths     anything `depcache.prompt.paths.read_paths` takes; none is allowed
    question  goes behind the facts
    system    the system message; None or "" for no system message
    template  its name, or a registered `Template`: the server finds it by name
    layout    position layout of the request

    Raises PromptError when a path, the question or the template is unusable, or the text of
    the facts stands in `system` or `question` once more.
    """
    template = get_template(template)
    if TEMPLATES.get(template.name) != template:
        raise PromptError(
            f"the template {template.name!r} is not registered: call register_template here and "
            "on the server"
        )
    layout = read_layout(layout)
    if not isinstance(question, str) or not question.strip():
        raise PromptError(f"the question is {shorten(question)}: send some text")
    lines = list(dict.fromkeys(read_paths(paths)))
    flat_text = template.flatten(lines)
    user = f"Facts:{flat_text}\n\nQuestion: {question}" if lines else question
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    if not lines:
        return RenderedPrompt(messages, {}, "")
    # Here, because it brings numpy and pydantic, which a client may do without until it asks.
    from depcache.prompt.wire import WireText, split_text

    wire = WireText(
        depcache_version=1,
        depcache_layout=layout,
        depcache_template=template.name,
        depcache_paths=json.dumps(lines, ensure_ascii=False, separators=(",", ":")),
    )
    # Refuse here, with the text at hand, what the server would have to refuse.
    split_text("".join(message["content"] for message in messages), wire)
    return RenderedPrompt(messages, {"custom_params": wire.to_params()}, flat_text)

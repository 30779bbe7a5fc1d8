# SPDX-License-Identifier: Apache-2.0
"""Write retrieved paths into an OpenAI chat request that any server understands.

The facts stand in the message as plain text, and `extra_body` says where (their outline). A
DepCache server puts the dependency tree in the place of the text; one that ignores unknown fields
answers from the text. So the answer is right either way, and fast with DepCache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.layout_names import Layout, read_layout
from depcache.prompt.outline import Outline
from depcache.prompt.paths import read_paths
from depcache.prompt.template import Template, get_template, name_on_wire

DEFAULT_SYSTEM = (
    "You answer questions with the facts you are given. Each fact is one line, a path through a "
    "knowledge graph: entity -> relation -> entity. If the facts do not hold the answer, say so."
)


HEADING = "Facts:"
"""Goes before the facts. Many chat templates trim messages, and the newline that starts the facts
would be lost at the beginning of one."""


@dataclass(frozen=True)
class RenderedPrompt:
    """What `client.chat.completions.create(model=..., messages=..., extra_body=...)` takes.

    messages    OpenAI messages: a system message, unless it is empty, and a user message
    extra_body  {"custom_params": ...}, the outline of the facts; {} when there are no paths.
                Leave it out for a server that refuses unknown fields, as OpenAI's own does.
    flat_text   the facts as they stand in the user message
    """

    messages: list[dict[str, str]]
    extra_body: dict[str, Any]
    flat_text: str

    def params_in(self, text: str, message: int | None = None) -> dict[str, Any]:
        """`custom_params` for another text in which the facts stand once.

        message  number of the message that `text` is; None for a prompt without messages: of
                 `/generate`, `/v1/completions` and an engine, where the caller has run the chat
                 template

        Returns {} where there are no facts. Raises PromptError when they do not stand in
        `text`, or twice.
        """
        params = self.extra_body.get("custom_params")
        if params is None:
            return {}
        start = text.find(self.flat_text)
        if start < 0 or text.find(self.flat_text, start + 1) >= 0:
            raise PromptError(
                f"the text has the facts {'twice' if start >= 0 else 'nowhere'}, "
                f"{shorten(self.flat_text)}: write them into it once, as `flat_text` has them"
            )
        outline = Outline.from_json(params["depcache_outline"]).moved(start, message)
        return {**params, "depcache_outline": outline.to_json()}


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
    template  a `Template`, or the name of one
    layout    position layout of the request

    Raises PromptError when a path, the question or the template is unusable.
    """
    template = get_template(template)
    layout = read_layout(layout)
    if not isinstance(question, str) or not question.strip():
        raise PromptError(f"the question is {shorten(question)}: send some text")
    lines = list(dict.fromkeys(read_paths(paths)))
    flat_text = template.flatten(lines)
    user = f"{HEADING}{flat_text}\n\nQuestion: {question}" if lines else question
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    if not lines:
        return RenderedPrompt(messages, {}, "")
    outline = template.outline(lines, start=len(HEADING), message=len(messages) - 1)
    params = outline.to_params(layout, name_on_wire(template))
    return RenderedPrompt(messages, {"custom_params": params}, flat_text)

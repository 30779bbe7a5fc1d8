# SPDX-License-Identifier: Apache-2.0
"""Write retrieved paths into an OpenAI chat request that any server understands.

The facts stand in the message as plain text, and `extra_body` says where (their outline). A
DepCache server puts the dependency tree in the place of the text; one that ignores unknown fields
answers from the text. So the answer is right either way, and fast with DepCache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.chunks import (
    CHUNK_SEPARATOR,
    TextBehind,
    join_chunks,
    join_rows,
    list_chunks,
    place_behind,
)
from depcache.prompt.layout_names import Layout, read_layout
from depcache.prompt.outline import Outline
from depcache.prompt.paths import read_paths
from depcache.prompt.recompute import DEFAULT_SHARE, Recompute, row_params
from depcache.prompt.template import Template, get_template, name_on_wire

DEFAULT_SYSTEM = (
    "You answer questions with the facts you are given. Each fact is one line, a path through a "
    "knowledge graph: entity -> relation -> entity. If the facts do not hold the answer, say so."
)


DEFAULT_CHUNK_SYSTEM = (
    "You answer questions with the passages you are given. If they do not hold the answer, say so."
)

DEFAULT_TABLE_SYSTEM = (
    "You write one SQL query that answers the question from the tables you are given. If they "
    "cannot answer it, say so."
)

CHUNK_HEADING = "Passages:"

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
    recompute: float | Recompute | None = None,
) -> RenderedPrompt:
    """A chat request that asks `question` about `paths`.

    paths     anything `depcache.prompt.paths.read_paths` takes; none is allowed
    question  goes behind the facts
    system    the system message; None or "" for no system message
    template  a `Template`, or the name of one
    layout    position layout of the request; `sequential` where tokens are recomputed
    recompute  None merges the paths into trees, for models trained for it. A share, 0 to 1, leaves
              every path a row of its own, and computes so many tokens again with full view: for
              models as they come

    Raises PromptError when a path, the question or the template is unusable.
    """
    template = get_template(template)
    layout = Recompute.layout(read_layout(layout), recompute)
    _check_question(question)
    lines = list(dict.fromkeys(read_paths(paths)))
    flat_text = template.flatten(lines)
    if not lines:
        return RenderedPrompt(_messages(system, question), {}, "")
    messages = _messages(system, f"{HEADING}{flat_text}\n\nQuestion: {question}")
    outline = template.outline(lines, start=len(HEADING), message=len(messages) - 1)
    params = row_params(outline, layout, recompute, name_on_wire(template))
    return RenderedPrompt(messages, {"custom_params": params}, flat_text)


def render_chunks(
    chunks: Iterable[str],
    question: str,
    *,
    system: str | None = DEFAULT_CHUNK_SYSTEM,
    separator: str = CHUNK_SEPARATOR,
    layout: Layout = "tree",
    recompute: float | Recompute | None = DEFAULT_SHARE,
    behind: Iterable[TextBehind] | None = None,
) -> RenderedPrompt:
    """A chat request that asks `question` about chunks of text.

    chunks     text, in the order in which the model shall read it; of equal ones the first
    question   goes behind them
    system     the system message; None or "" for no system message
    separator  goes before each chunk
    layout     position layout, where `recompute` is None
    recompute  the share, 0 to 1, of their tokens that is computed again with full view. None reuses
               every chunk as it is alone, which is exact for models that were trained for it
    behind     for each chunk the text that its KV was computed behind, such as the chunk before it
               in its document; a list of texts that stand one after the other, such as similar
               chunks, each computed alone; None for nothing. It is no part of the prompt. With
               `recompute` only

    Raises PromptError when a chunk or the question is unusable.
    """
    if behind is not None:
        chunks = list_chunks(chunks)
        recompute = Recompute.stand(recompute, place_behind(chunks, behind, separator))
    return render_rows(
        chunks,
        question,
        heading=CHUNK_HEADING,
        system=system,
        separator=separator,
        layout=layout,
        recompute=recompute,
    )


def render_rows(
    texts: Iterable[str],
    question: str,
    *,
    heading: str,
    system: str | None,
    separator: str = CHUNK_SEPARATOR,
    layout: Layout = "tree",
    recompute: float | Recompute | None = None,
    sees: Iterable[Iterable[int]] = (),
    absent: int | None = None,
) -> RenderedPrompt:
    """A chat request that asks `question` about texts, each a row that stands for itself.

    heading  goes before the texts, in the same message
    sees     for each text, of which no two are equal, the others that it sees, ascending
    absent   how often they refer to what is not among them; None where they refer to nothing

    The rest and what is raised are as for `render_chunks`.
    """
    layout = Recompute.layout(read_layout(layout), recompute)
    _check_question(question)
    context, lens = join_chunks(texts, separator)
    messages = _messages(system, f"{heading}{context}{separator}Question: {question}")
    outline = Outline(
        len(heading),
        lens,
        (1,) * len(lens),
        message=len(messages) - 1,
        sees=tuple(map(tuple, sees)),
        absent=absent,
    )
    params = row_params(outline, layout, recompute)
    return RenderedPrompt(messages, {"custom_params": params}, context)


def render_chunk_rows(
    rows: Iterable[Sequence[str]],
    question: str,
    *,
    system: str | None = DEFAULT_CHUNK_SYSTEM,
    separator: str = CHUNK_SEPARATOR,
) -> RenderedPrompt:
    """A chat request about rows of chunks, each chunk behind the chunks before it in its row.

    For computing ahead what requests of `render_chunks` reuse: the tokens of a chunk are the same.
    What several rows begin with is computed once. Arguments and errors as for `render_chunks`.
    """
    _check_question(question)
    context, lens, counts = join_rows(rows, separator)
    messages = _messages(system, f"{CHUNK_HEADING}{context}{separator}Question: {question}")
    outline = Outline(len(CHUNK_HEADING), lens, counts, merge=True, message=len(messages) - 1)
    return RenderedPrompt(messages, {"custom_params": outline.to_params("tree")}, context)


def _check_question(question: str) -> None:
    if not isinstance(question, str) or not question.strip():
        raise PromptError(f"the question is {shorten(question)}: send some text")


def _messages(system: str | None, user: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, {"role": "user", "content": user}]

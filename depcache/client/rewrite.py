# SPDX-License-Identifier: Apache-2.0
"""Turn an OpenAI request that holds graph facts or tables as text into a dependency prompt.

They stay in the message as text, in the spelling of their template, and `custom_params` says
where they stand (the outline of the wire). What is not recognised is left exactly as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from depcache.client.context import MARKER, GraphContext
from depcache.client.notice import UnreadNotice
from depcache.errors import DepCacheError
from depcache.prompt.layout_names import Layout
from depcache.prompt.outline import PREFIX
from depcache.prompt.recompute import Recompute, row_params
from depcache.prompt.render import HEADING
from depcache.prompt.template import name_on_wire
from depcache.recognition.recognise import Recognised, recognise

if TYPE_CHECKING:
    from depcache.tables.prompt_tables import FoundTables, PromptTables

ARROW = " -> "
MIN_LINES = 2
"""One line with arrows may be prose; two in a row are facts."""

_FENCE = "```"
_logger = logging.getLogger("depcache.client")


@dataclass(frozen=True, slots=True)
class Block:
    """A run of fact lines in a text: `text[start:stop]`, from the newline before the first
    line (if there is one) to the end of the last line."""

    start: int
    stop: int
    paths: list[tuple[str, ...]]


def find_block(text: str) -> Block | None:
    """The longest run of at least two lines `A -> rel -> B [-> rel -> C ...]`.

    Blank lines and blanks around a line or an arrow do not end a run. Lines inside a ```
    fence are code, never facts. Of runs with as many lines, the first.
    """
    best: Block | None = None
    paths: list[tuple[str, ...]] = []  # of the run that is open, empty if none is
    run_start = run_stop = start = 0
    fenced = False
    # The fence behind the last line closes a run that reaches the end.
    for line in [*text.split("\n"), _FENCE]:
        stripped = line.strip()
        fenced ^= stripped.startswith(_FENCE)
        path = None if fenced else _read_line(stripped)
        if path is not None:
            if not paths:
                run_start = max(0, start - 1)
            paths.append(path)
            run_stop = start + len(line)
        elif stripped and paths:
            if len(paths) >= MIN_LINES and (best is None or len(paths) > len(best.paths)):
                best = Block(run_start, run_stop, paths)
            paths = []
        start += len(line) + 1
    return best


def rewrite_body(
    body: Any,
    *,
    context: GraphContext | None,
    auto: bool,
    layout: Layout,
    merge: bool = False,
    notice: UnreadNotice | None = None,
    tables: PromptTables | None = None,
    recompute: float | Recompute | None = None,
) -> dict[str, Any] | None:
    """The same request as a dependency prompt; None when it should go out as it is.

    body     parsed JSON of a request to `/v1/chat/completions` or `/v1/completions`; may be
             changed when a request is returned
    context  the paths the caller named; they go before what is found in the text
    auto     look for facts in the text when no context is given
    merge    False: rows as frameworks write them stand whole, the text is not changed. True: lines
             `A -> rel -> B` alone are read, and become trees, for models trained for it
    layout   position layout for what was found
    notice   is shown the texts around what was found
    tables   finds tables. It looks first: a prompt that has some is not searched for facts
    recompute  of facts: None, or what a fused request computes again. Its rows stand whole
    """
    if not isinstance(body, dict) or not _may_add_params(body):
        return None
    slots = _find_texts(body)
    try:
        if context is not None:
            params = _place_context(slots, context, recompute)
            if params is None:
                _logger.warning(
                    "the messages hold neither the facts of graph_context, once, nor %s: "
                    "the request goes out as a plain prompt",
                    MARKER,
                )
        else:
            stretch, params = None, None
            if tables is not None:
                stretch, params = _recognise(body, slots, layout, tables.recognise)
            if params is None and auto and merge:
                stretch, params = _place_found(slots, layout, recompute)
            elif params is None and auto:
                stretch, params = _recognise(body, slots, layout, recognise, recompute)
            if auto and notice is not None and not notice.is_said:
                notice.look(_around_facts(slots, stretch))
    except DepCacheError as error:
        _logger.warning("the request goes out as a plain prompt: %s", error)
        return None
    if params is None:
        return None
    for slot in slots:
        slot.holder[slot.key] = slot.text
    body["custom_params"] = {**(body.get("custom_params") or {}), **params}
    return body


@dataclass(slots=True)
class _Slot:
    """One text of a request: `holder[key]`, with what it shall become in `text`.

    message  number of the message that it is of; None for a prompt without messages
    before   code points of the same message in front of it, in parts of their own
    is_ours  whether facts may be placed in it
    """

    holder: Any
    key: Any
    text: str
    message: int | None
    before: int
    is_ours: bool


def _read_line(line: str) -> tuple[str, ...] | None:
    """The elements of one fact line; None when it is none."""
    if ARROW not in line:
        return None
    elements = tuple(element.strip() for element in line.split(ARROW))
    if len(elements) < 3 or len(elements) % 2 == 0 or not all(elements):
        return None
    return elements


def _may_add_params(body: Mapping[str, Any]) -> bool:
    params = body.get("custom_params")
    if params is not None and not isinstance(params, dict):
        return False
    # The caller made a dependency prompt already, or sends ids that the text is not read for.
    return body.get("input_ids") is None and not any(
        isinstance(key, str) and key.startswith(PREFIX) for key in params or {}
    )


def _find_texts(body: dict[str, Any]) -> list[_Slot]:
    """Every text of the prompt, in order. Those of the model itself are only looked at."""
    if isinstance(body.get("prompt"), str):
        return [_Slot(body, "prompt", body["prompt"], None, 0, is_ours=True)]
    messages = body.get("messages")
    slots: list[_Slot] = []
    for number, message in enumerate(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict):
            continue
        is_ours = message.get("role") != "assistant"
        content = message.get("content")
        if isinstance(content, str):
            slots.append(_Slot(message, "content", content, number, 0, is_ours))
        before = 0
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                slots.append(_Slot(part, "text", part["text"], number, before, is_ours))
                before += len(part["text"])
    return slots


def _place_context(
    slots: list[_Slot], context: GraphContext, recompute: float | Recompute | None
) -> dict[str, Any] | None:
    """Bring the caller's facts into shape where they stand; None if that is nowhere, or twice.

    Returns the `custom_params` that say so.
    """
    if not context.paths:
        return None
    flat_text = context.text
    # The newline before the first fact is easily lost when a prompt is put together.
    bare_text = flat_text.removeprefix(context.template.lead)
    for needle in (flat_text, bare_text, MARKER):
        found = [slot for slot in slots if slot.is_ours and needle in slot.text]
        if found:
            if len(found) > 1 or found[0].text.count(needle) > 1:
                return None
            start = found[0].text.index(needle)
            return _place(found[0], start, start + len(needle), context, recompute)
    return None


def _recognise(
    body: Mapping[str, Any],
    slots: list[_Slot],
    layout: Layout,
    read: Callable[[Any], Recognised | FoundTables],
    recompute: float | Recompute | None = None,
) -> tuple[str | None, dict[str, Any] | None]:
    """Find what a framework wrote. Nothing is changed.

    Returns its text and the `custom_params` that say where it stands.
    """
    if not slots:
        return None, None
    found = read(body["prompt"] if slots[0].message is None else body["messages"])
    outline = found.outline
    # A server would refuse a text that ends there: nothing is left to be answered.
    if outline is None or (outline.message is None and outline.stop == len(found.text)):
        return None, None
    return found.text[outline.start : outline.stop], row_params(outline, layout, recompute)


def _place_found(
    slots: list[_Slot], layout: Layout, recompute: float | Recompute | None
) -> tuple[str | None, dict[str, Any] | None]:
    """Find the longest block of facts in all texts and bring it into shape.

    Returns their text and the `custom_params` that say where they stand.
    """
    found = [(slot, find_block(slot.text)) for slot in slots if slot.is_ours]
    blocks = [(slot, block) for slot, block in found if block is not None]
    if not blocks:
        return None, None
    slot, block = max(blocks, key=lambda pair: len(pair[1].paths))
    context = GraphContext(block.paths, "path", layout)
    return context.text, _place(slot, block.start, block.stop, context, recompute)


def _around_facts(slots: list[_Slot], stretch: str | None) -> list[str]:
    """The texts of all but the model itself, a line in the place of facts that were found."""
    texts = [slot.text for slot in slots if slot.is_ours]
    return texts if stretch is None else [text.replace(stretch, "\n---\n") for text in texts]


def _place(
    slot: _Slot,
    start: int,
    stop: int,
    context: GraphContext,
    recompute: float | Recompute | None,
) -> dict[str, Any]:
    """Write the facts of `context` in the place of `[start, stop)`, and say where they stand."""
    before, after = slot.text[:start], slot.text[stop:]
    if slot.message is not None and not before.strip():
        before = HEADING
    slot.text = before + context.text + after
    outline = context.template.outline(context.paths, slot.before + len(before), slot.message)
    return row_params(outline, context.layout, recompute, name_on_wire(context.template))

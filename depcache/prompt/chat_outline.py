# SPDX-License-Identifier: Apache-2.0
"""An outline of one message, found again in the text that a chat template makes of all messages.

A template may write anything around a message, and the facts may stand in the chat twice. So a mark
takes their place before the template runs, and gives it back afterwards. A template that does more
to a message than trim it would damage the mark, and is noticed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.outline import Outline

# Nobody can guess it, and what escapes a text escapes it: quotes, line breaks, brackets.
MARK = f"\ue000{secrets.token_hex(8)}\"\n<'&\\\ue001"


@dataclass(frozen=True, slots=True)
class MarkedMessage:
    """A message whose context is taken out.

    text     the message with `MARK` in the place of the context
    context  what stood there
    outline  of the message as it was
    """

    text: str
    context: str
    outline: Outline

    def place(self, rendered: str) -> tuple[str, Outline]:
        """The rendered chat with the context in it, and the outline of that text.

        Raises PromptError when the template did not write the message as it is.
        """
        if rendered.count(MARK) != 1:
            raise PromptError(
                f"the chat template does not write message {self.outline.message} as it is: send "
                "input_ids with segments"
            )
        start = rendered.index(MARK)
        text = rendered[:start] + self.context + rendered[start + len(MARK) :]
        return text, self.outline.moved(start)


def mark_message(text: str, outline: Outline) -> MarkedMessage:
    """Take the context out of `text`, the message that `outline` is of; PromptError if it leaves
    the text."""
    outline.check_text(text)
    marked = text[: outline.start] + MARK + text[outline.stop :]
    return MarkedMessage(marked, text[outline.start : outline.stop], outline)


def find_message(messages: Sequence[Any], outline: Outline) -> Any:
    """The message that `outline` is of; PromptError where it names none."""
    if outline.message is None:
        raise PromptError(
            "message of the outline is None, but the prompt is a chat: send the number of the "
            "message whose text it is"
        )
    if outline.message >= len(messages):
        raise PromptError(
            f"message of the outline is {shorten(outline.message)}, but the chat has "
            f"{len(messages)} messages: count from 0"
        )
    return messages[outline.message]

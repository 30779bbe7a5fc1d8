# SPDX-License-Identifier: Apache-2.0
"""What the requests to come will look like: all that decides their tokens before the question.

The KV of a context token depends on every token above it, the system and the chat template
included. So precomputed trees are found by requests whose settings are these, to the letter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any

from depcache.client.context import MARKER
from depcache.errors import ConfigError, PromptError, shorten
from depcache.graph.base import GraphStore
from depcache.graph.expansion import DEFAULT_BOUNDS, Bounds, expand
from depcache.graph.pruning import NoPruner, Pruner, get_pruner, prune
from depcache.graph.retrieval import NUM_HOPS, NUM_PATHS
from depcache.prompt.layout import Layout
from depcache.prompt.paths import Path
from depcache.prompt.render import DEFAULT_SYSTEM, render
from depcache.prompt.template import get_template

QUESTION = "-"
"""Stands where questions will; nothing that is computed here depends on it."""


@dataclass(frozen=True)
class PrecomputeSettings:
    """The defaults are those of `depcache ask` and of `Client.ask`.

    num_hops   edges of the longest path
    num_paths  most paths of each entity. The pruner `none` gives every question the same paths;
               None is 30. Any other pruner depends on the question, so every path around an
               entity is computed, shorter paths first; None is 10,000. A question finds all of
               its paths cached unless the bound cut some off
    pruner     the pruner of later questions
    system     the system message; None or "" for none
    messages   a whole chat instead of `system` and the messages of `depcache.render`, for
               programs that write their own; `{{graph_context}}` stands where the facts go
    fields     further fields of every request, `{"cache_salt": "tenant"}` for one
    bounds     of one expansion
    allow_repeats  as in `Retriever.retrieve`
    """

    num_hops: int = NUM_HOPS
    num_paths: int | None = None
    pruner: str | Pruner = "words"
    system: str | None = DEFAULT_SYSTEM
    template: str = "path"
    layout: Layout = "tree"
    messages: Sequence[Mapping[str, Any]] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    bounds: Bounds = DEFAULT_BOUNDS
    allow_repeats: bool = False

    def __post_init__(self) -> None:
        if self.num_paths is not None and self.num_paths < 1:
            raise ConfigError(f"num_paths is {shorten(self.num_paths)}: choose at least 1")
        get_pruner(self.pruner)
        if self.messages is not None and _count_markers(self.messages) != 1:
            raise PromptError(
                f"the messages hold {MARKER} {_count_markers(self.messages)} times: put it once, "
                "into the text of one message, where the facts go"
            )
        self.make_request([("a", "r", "b")])  # refuse now what no entity could make good

    @property
    def max_paths(self) -> int:
        """`num_paths`, with its default where it is None."""
        if self.num_paths is not None:
            return self.num_paths
        return NUM_PATHS if get_pruner(self.pruner).name == "none" else self.bounds.max_paths

    def find_paths(self, store: GraphStore, entity: str) -> list[Path] | None:
        """The paths of one entity, in the stable order; None where the graph has no such entity.

        One at a time, since what is sampled of a very large hub depends on what else is asked.
        """
        found = expand(
            store, [entity], self.num_hops, self.bounds, allow_repeats=self.allow_repeats
        ).get(entity)
        if found is None:
            return None
        return [path for path, _ in prune("", found.paths, self.max_paths, NoPruner())]

    def make_request(self, paths: Sequence[Path]) -> dict[str, Any]:
        """The body of a chat about these paths; PromptError when they make none."""
        prompt = render(
            paths,
            QUESTION,
            system=self.system if self.messages is None else None,
            template=self.template,
            layout=self.layout,
        )
        if self.messages is None:
            return {**self.fields, "messages": prompt.messages, **prompt.extra_body}
        messages: list[Any] = list(self.messages)
        params: dict[str, Any] = {}
        for number, message in enumerate(messages):
            content = message.get("content")
            if isinstance(content, str) and MARKER in content:
                text = content.replace(MARKER, prompt.flat_text)
                messages[number] = {**message, "content": text}
                params = prompt.params_in(text, number)
        return {**self.fields, "messages": messages, "custom_params": params}

    def describe(self) -> dict[str, str]:
        """What decides the KV of a path, by name; texts and fields as digests only."""
        return {
            "template": digest_of(asdict(get_template(self.template))),
            "layout": self.layout,
            "system": digest_of(self.system or "" if self.messages is None else None),
            "messages": digest_of(None if self.messages is None else list(self.messages)),
            "fields": digest_of(dict(self.fields)),
        }

    def choice_of(self, store: GraphStore) -> str:
        """A digest of what decides which paths an entity has: the graph as it is, and bounds."""
        return digest_of(
            [store.url, store.stamp(), self.num_hops, self.max_paths, asdict(self.bounds)]
        )


def digest_of(value: Any) -> str:
    """64 bits of a JSON value, as 16 characters."""
    text = json.dumps(value, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _count_markers(messages: Sequence[Mapping[str, Any]]) -> int:
    texts = [message.get("content") for message in messages]
    return sum(text.count(MARKER) for text in texts if isinstance(text, str))

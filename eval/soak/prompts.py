# SPDX-License-Identifier: Apache-2.0
"""The prompts of a soak: trees of tokens, facts in words, and plain text, drawn from one world.

There are few trees and few names, so that prompts meet the nodes of others, in place and moved.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.render import render
from depcache.prompt.tokenization import PromptTokenizer
from depcache.prompt.wire import WireOutline, parse_wire

LAYOUTS = ("tree", "staggered", "sequential")
NUM_TREES, NUM_NAMES = 24, 40
LONG_TREE_LEN = 120
FIRST_TOKEN, LAST_TOKEN = 100, 3000
"""Trees are drawn from the tokens in between; depcache-tiny knows 3,072."""

_RELATIONS = ("born in", "works at", "knows", "wrote", "lives in", "won", "son of", "likes")
_FIRST = ("Ada", "Bea", "Cid", "Dora", "Emil", "Fay", "Gus", "Hal")
_LAST = ("Adler", "Brandt", "Curie", "Dirac", "Euler")

Tree = tuple[list[int], list["Tree"]]
"""(tokens of a segment, subtrees below it)"""


@dataclass(frozen=True)
class Prompt:
    """One prompt, as it is sent and as the oracle reads it.

    kind       a layout, or `plain`
    input_ids  all tokens; of a tree in pre-order
    structure  `custom_params` in ids form; None for a plain prompt
    text       of /generate and of a completion; None where the prompt is sent as ids
    messages   of a chat; None for the other routes
    wire       `custom_params` as they are sent beside a text; None where there are none
    """

    kind: str
    input_ids: list[int]
    structure: dict[str, Any] | None = None
    text: str | None = None
    messages: list[dict[str, str]] | None = None
    wire: dict[str, Any] | None = None

    @property
    def form(self) -> str:
        """`ids`, `text` or `chat`."""
        if self.messages is not None:
            return "chat"
        return "ids" if self.text is None else "text"

    @property
    def custom_params(self) -> dict[str, Any] | None:
        return self.structure if self.form == "ids" else self.wire

    @property
    def system_len(self) -> int:
        return 0 if self.structure is None else self.structure["depcache_system_len"]


class World:
    """What all prompts of a run are made of; the same for the same seed."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        """`tokenizer` is the HuggingFace tokenizer of the model, with its chat template."""
        rng = random.Random(f"{seed}/world")
        self._tokenizer = tokenizer
        self._pieces = PromptTokenizer(tokenizer)
        self._system = _tokens(rng, 9)
        firsts = rng.sample(range(FIRST_TOKEN, LAST_TOKEN), NUM_TREES + 30)
        self._trees = [_random_tree(rng, first) for first in firsts[:NUM_TREES]]
        self._long = [([first, *_tokens(rng, LONG_TREE_LEN)], []) for first in firsts[NUM_TREES:]]
        names = [f"{first} {last}" for first in _FIRST for last in _LAST][:NUM_NAMES]
        self._paths = {name: _random_paths(rng, name, names) for name in names}

    def draw(self, rng: random.Random) -> Prompt:
        """Returns a prompt of any kind and form; one in eight is a long one."""
        kind = rng.choice(("plain", "tree", "tree", "staggered", "sequential"))
        form = rng.choice(("ids", "ids", "text", "chat"))
        if form == "ids" and kind != "plain":
            trees = rng.sample(self._trees, rng.randint(1, 6))
            if rng.random() < 1 / 8:
                trees.append(rng.choice(self._long))
            return self.tree(rng, kind, trees)
        return self.in_words(rng, kind, form, rng.randint(1, 4))

    def draw_long(self, rng: random.Random, num_tokens: int) -> Prompt:
        """A tree prompt or a plain one with a little less than so many tokens."""
        if rng.random() < 0.3:
            return Prompt("plain", _tokens(rng, num_tokens - rng.randrange(9)))
        num_trees = min(num_tokens // (LONG_TREE_LEN + 1) - 1, len(self._long))
        return self.tree(rng, rng.choice(LAYOUTS), rng.sample(self._long, num_trees))

    def tree(self, rng: random.Random, layout: str, trees: list[Tree]) -> Prompt:
        """A prompt of trees of tokens behind the world's system, with a task of its own."""
        tokens, lens, parents = list(self._system), [], []
        for tree in trees:
            _append(tree, -1, tokens, lens, parents)
        structure = {
            "depcache_version": 1,
            "depcache_layout": layout,
            "depcache_system_len": len(self._system),
            "depcache_segment_lens": lens,
            "depcache_segment_parents": parents,
        }
        return Prompt(layout, tokens + _tokens(rng, rng.randint(1, 8)), structure)

    def in_words(self, rng: random.Random, kind: str, form: str, num_names: int) -> Prompt:
        """Facts about so many names, or the same as plain text, and a question."""
        names = rng.sample(list(self._paths), num_names)
        paths = [path for name in names for path in self._paths[name]]
        question = f"Where does {rng.choice(names)} live, {rng.randrange(100)}?"
        layout: Any = "tree" if kind == "plain" else kind
        prompt = render(paths, question, system="Answer from these facts.", layout=layout)
        messages, wire = None, prompt.extra_body["custom_params"]
        if form == "chat":
            messages = prompt.messages
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        else:
            text = f"Facts:{prompt.flat_text}\nQuestion: {question}\nAnswer:"
            wire = prompt.params_in(text)
        if kind == "plain":
            ids = list(self._tokenizer(text).input_ids)
            made = Prompt("plain", ids, None, text, messages)
        else:
            ids, structure = self._cut(text, prompt.params_in(text), is_chat=form == "chat")
            made = Prompt(kind, ids, structure, text, messages, wire)
        return replace(made, text=None) if form == "ids" else made

    def _cut(
        self, text: str, wire: dict[str, Any], *, is_chat: bool
    ) -> tuple[list[int], dict[str, Any]]:
        """What the server is to make of a text form."""
        read = parse_wire(wire)
        assert isinstance(read, WireOutline)
        prompt = DepPrompt.from_outline(
            text,
            read.outline,
            tokenizer=self._pieces,
            layout=read.layout,
            add_special_tokens=not is_chat,
        )
        return prompt.to_wire()


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]


def _random_tree(rng: random.Random, first: int, levels: int = 3) -> Tree:
    """Up to `levels` segments deep, up to two children each, 2 to 5 tokens a segment."""
    tokens = [first, *_tokens(rng, rng.randint(1, 4))]
    count = rng.randrange(3) if levels > 1 else 0
    firsts = rng.sample(range(FIRST_TOKEN, LAST_TOKEN), count)
    return tokens, [_random_tree(rng, token, levels - 1) for token in firsts]


def _random_paths(rng: random.Random, name: str, names: list[str]) -> list[list[str]]:
    paths: list[list[str]] = []
    for relation in rng.sample(_RELATIONS, rng.randint(1, 4)):
        path = [name, relation, rng.choice(names)]
        if rng.random() < 0.5:
            path += [rng.choice(_RELATIONS), rng.choice(names)]
        paths.append(path)
    return paths


def _append(
    tree: Tree, parent: int, tokens: list[int], lens: list[int], parents: list[int]
) -> None:
    own, children = tree
    number = len(lens)
    tokens += own
    lens.append(len(own))
    parents.append(parent)
    for child in children:
        _append(child, number, tokens, lens, parents)

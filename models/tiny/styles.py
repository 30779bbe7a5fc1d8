# SPDX-License-Identifier: Apache-2.0
"""Other ways to write the same facts: other words around them, another place, another spelling.

A reader that has seen one system message and one way to write a fact depends on both. Here some of
the prompts have their facts in the system message, other words around them, triples in place of
paths, or passages in place of rows; what is to be answered stays the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import yaml

from depcache.prompt.layout import Layout
from depcache.prompt.outline import Outline
from depcache.prompt.paths import Path
from depcache.prompt.render import (
    DEFAULT_SYSTEM,
    HEADING,
    RenderedPrompt,
    render,
    render_chunks,
)
from depcache.prompt.template import Template
from depcache.training.examples import Example
from models.tiny.stages import RECIPE

SPELLINGS: dict[str, Template] = {
    "path": Template("path"),
    "triple": Template("triple", one_hop=True),
    "sentence": Template("sentence", "\n{e}", " {r}", " {e}.", one_hop=True),
    "arrow": Template("arrow", "\n{e}", " -[{r}]->", " {e}", one_hop=True),
    "tuple": Template("tuple", "\n({e}", ", {r}", ", {e})", one_hop=True),
}
PASSAGES = "passages"
"""Sentences about one thing each, behind its name."""

_SPELLED = ("path", "path", "path", *SPELLINGS, PASSAGES, PASSAGES)
_SYSTEM_SHARE = 0.4  # with the facts in the system message
_MERGED_SHARE = 0.5  # of paths, which merge into trees; other facts are rows as they stand
_OWN_WORDS_SHARE = 0.2  # with the words of `depcache.render`, but for place or spelling
_INVERSE = "inverse of "


@dataclass(frozen=True, slots=True)
class Style:
    """One way to write a prompt.

    spelling   a key of `SPELLINGS`, or `passages`
    place      of the facts: the system message or the user's
    system     the system message; "" for none
    heading    before the facts
    question   with `{question}` in it
    title      of a passage, with `{title}` and `{text}` in it
    is_merged  whether rows that begin alike share their beginning
    """

    spelling: str = "path"
    place: str = "user"
    system: str = DEFAULT_SYSTEM
    heading: str = HEADING
    question: str = "Question: {question}"
    title: str = "{title}\n{text}"
    is_merged: bool = True

    def write(self, example: Example, layout: Layout) -> RenderedPrompt:
        """The request for an example of paths."""
        if not example.paths:
            return render((), example.question, system=self.system)
        if self.spelling == PASSAGES:
            texts = make_passages(example.paths, self.title)
            rendered = render_chunks(texts, example.question, layout=layout, recompute=None)
        else:
            template = SPELLINGS[self.spelling]
            rendered = render(example.paths, example.question, template=template, layout=layout)
        params = rendered.extra_body["custom_params"]
        outline = Outline.from_json(params["depcache_outline"])
        if not self.is_merged or self.spelling != "path":
            outline = replace(outline, merge=False, lead=0)
        params = {**params, "depcache_outline": outline.to_json()}
        return replace(
            rendered,
            messages=self._messages(f"{self.heading}{rendered.flat_text}", example.question),
            extra_body={"custom_params": params},
        )

    def _messages(self, facts: str, question: str) -> list[dict[str, str]]:
        asked = self.question.replace("{question}", question)
        system, user = self.system, f"{facts}\n\n{asked}"
        if self.place == "system":
            system, user = f"{system}\n\n{facts}".strip(), asked
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": user}]


def draw_style(rng: random.Random) -> Style:
    """Returns any style."""
    words = load_words()
    spelling = rng.choice(_SPELLED)
    place = "system" if rng.random() < _SYSTEM_SHARE else "user"
    is_merged = rng.random() < _MERGED_SHARE
    if rng.random() < _OWN_WORDS_SHARE:
        return Style(spelling, place, is_merged=is_merged)
    return Style(
        spelling,
        place,
        system=rng.choice(words["systems"]),
        heading=rng.choice(words[PASSAGES if spelling == PASSAGES else "headings"]),
        question=rng.choice(words["questions"]),
        title=rng.choice(words["titles"]),
        is_merged=is_merged,
    )


@dataclass(frozen=True, slots=True)
class Styles:
    """Writes a share of the prompts in another style, all of the same paths in the same one.

    share  of the groups of examples that have the same paths
    """

    share: float
    seed: int = 0

    def __call__(self, example: Example, layout: Layout) -> RenderedPrompt:
        """How `depcache.training.samples.Encoder` writes an example."""
        # By the paths, so that questions about them share a context whoever asks first.
        rng = random.Random(f"{self.seed} {example.paths}")
        style = draw_style(rng) if rng.random() < self.share else Style()
        return style.write(example, layout)


def make_passages(paths: Iterable[Path], title: str) -> list[str]:
    """Texts that say what the paths say: the facts of each thing as sentences behind its name."""
    facts: dict[str, dict[str, None]] = {}
    for path in paths:
        for i in range(0, len(path) - 2, 2):
            subject, sentence = say(*path[i : i + 3])
            facts.setdefault(subject, {})[sentence] = None
    return [
        title.replace("{title}", subject).replace("{text}", " ".join(sentences))
        for subject, sentences in facts.items()
    ]


def say(subject: str, relation: str, obj: str) -> tuple[str, str]:
    """Returns what a fact is about and its sentence; an inverse one is said the right way round."""
    if relation.startswith(_INVERSE):
        subject, relation, obj = obj, relation.removeprefix(_INVERSE), subject
    return subject, f"{subject} {relation} {obj}."


@cache
def load_words() -> Mapping[str, Any]:
    """Returns the words of `styles.yaml` by their use."""
    return yaml.safe_load((RECIPE / "styles.yaml").read_text(encoding="utf-8"))

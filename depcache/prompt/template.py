# SPDX-License-Identifier: Apache-2.0
"""Templates: how a path becomes text, element by element, as data.

Each element is written with its own separator before it, so that its tokens never depend on
a neighbour and equal leading elements of two paths are the same tokens (docs/design.md):

    ("Elon Musk", "founded", "SpaceX")  ->  "\\nElon Musk", " -> founded", " -> SpaceX"

Elements are data: a brace, a newline or the text of a special token in one stays text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.outline import Outline
from depcache.prompt.paths import Path


@dataclass(frozen=True)
class Template:
    """The pieces that elements are set into. `{e}` stands for an entity, `{r}` for a relation.

    name      what the wire calls it
    first     the first entity of a path; starts the line, e.g. "\\n{e}"
    relation  every second element, e.g. " -> {r}"
    entity    every later entity, e.g. " -> {e}"
    one_hop   cut a longer path into its triples before writing it

    Raises PromptError when a piece has not exactly one slot or no separator before it.
    """

    name: str
    first: str = "\n{e}"
    relation: str = " -> {r}"
    entity: str = " -> {e}"
    one_hop: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool if field.name == "one_hop" else str):
                raise PromptError(f"template field {field.name} is {shorten(value)}: wrong type")
        if not self.name.strip():
            raise PromptError("a template needs a name: set one that is not blank")
        for piece, slot in ((self.first, "{e}"), (self.relation, "{r}"), (self.entity, "{e}")):
            if piece.count(slot) != 1:
                raise PromptError(
                    f"the template piece {shorten(piece)} must contain {slot} exactly once"
                )
            if piece.startswith(slot):
                raise PromptError(
                    f"the template piece {shorten(piece)} must start with a separator, "
                    "or its text would run into the element before it"
                )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Template:
        """A template from JSON or TOML; PromptError when a key is missing or unknown."""
        unknown = set(data) - {field.name for field in fields(cls)}
        if unknown or "name" not in data:
            raise PromptError(
                f"{shorten(dict(data))} is no template: its keys are "
                f"{', '.join(field.name for field in fields(cls))}"
            )
        return cls(**data)

    @cached_property
    def _affixes(self) -> tuple[tuple[str, str], tuple[str, str], tuple[str, str]]:
        # str.format would let a user's template reach into attributes.
        first, entity = self.first.split("{e}"), self.entity.split("{e}")
        relation = self.relation.split("{r}")
        return (first[0], first[1]), (relation[0], relation[1]), (entity[0], entity[1])

    @property
    def lead(self) -> str:
        """The separator that every line of the context starts with, e.g. "\\n"."""
        return self._affixes[0][0]

    def lines(self, paths: Iterable[Path]) -> list[Path]:
        """The paths as they are written, one per line: cut if `one_hop`, each only once."""
        if self.one_hop:
            paths = chain.from_iterable(map(_triples, paths))
        return list(dict.fromkeys(paths))

    def pieces(self, line: Path) -> list[str]:
        """The text of each element with its separator; joined they are the line."""
        (first, first_end), (relation, relation_end), (entity, entity_end) = self._affixes
        pieces = [f"{entity}{element}{entity_end}" for element in line]
        pieces[1::2] = [f"{relation}{element}{relation_end}" for element in line[1::2]]
        pieces[0] = f"{first}{line[0]}{first_end}"
        return pieces

    def flatten(self, paths: Iterable[Path]) -> str:
        """The flat text: every path in order, whole duplicates left out, prefixes repeated."""
        return "".join(chain.from_iterable(map(self.pieces, self.lines(paths))))

    def outline(self, paths: Iterable[Path], start: int, message: int | None = None) -> Outline:
        """The outline of `flatten(paths)` where it begins at `start`: rows that merge into trees.

        start, message  as for `Outline`
        """
        pieces = [self.pieces(line) for line in self.lines(paths)]
        return Outline(
            start=start,
            lens=tuple(len(piece) for line in pieces for piece in line),
            rows=tuple(map(len, pieces)),
            merge=True,
            message=message,
            lead=len(self.lead),
        )


TEMPLATES: dict[str, Template] = {
    "path": Template("path"),
    "triple": Template("triple", one_hop=True),
}
"""The templates that the wire may name. A server and its clients must agree on them."""


def name_on_wire(template: Template) -> str | None:
    """What a request may call `template`; None where it is not registered here."""
    return template.name if TEMPLATES.get(template.name) == template else None


def register_template(template: Template) -> None:
    """Let the wire and `get_template` use `template` by name; PromptError if the name is taken."""
    if TEMPLATES.setdefault(template.name, template) != template:
        raise PromptError(
            f"there is another template named {template.name!r}: choose a different name"
        )


def get_template(template: str | Template) -> Template:
    """The template of that name, or the given one; PromptError with the choices if unknown."""
    if isinstance(template, Template):
        return template
    if not isinstance(template, str) or template not in TEMPLATES:
        raise PromptError(f"{shorten(template)} is no template: use {', '.join(sorted(TEMPLATES))}")
    return TEMPLATES[template]


def _triples(path: Sequence[str]) -> list[Path]:
    """(a, r, b, s, c) -> (a, r, b), (b, s, c). What ends in a relation keeps its short end."""
    return [tuple(path[i : i + 3]) for i in range(0, max(1, len(path) - 1), 2)]

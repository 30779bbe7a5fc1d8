# SPDX-License-Identifier: Apache-2.0
"""Two graphs with names as real graphs have them, and questions about them with gold paths.

    names      tab-separated: snake_case, CamelCase, Title_Snake and plain names; places that are
               part of other names; self loops; 1 to 3 hops
    repeats    questions about the same graph whose paths come to an entity twice
    addresses  N-Triples: opaque identifiers with labels, fragments, percent escapes; 1 to 3 hops

Questions write a name as a person would, or now and then as the graph does. All is drawn by a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

Triple = tuple[str, str, str]
Step = tuple[str, bool]
"""A relation, and whether it is walked from head to tail."""

_FIRST = [
    "Alwin",
    "Bera",
    "Corvin",
    "Dalia",
    "Edric",
    "Fenja",
    "Gerwin",
    "Hilda",
    "Ivar",
    "Jorun",
    "Kasimir",
    "Liv",
    "Merten",
    "Nora",
]
_LAST = [
    "Ashdown",
    "Brandt",
    "Corliss",
    "Duval",
    "Eklund",
    "Faro",
    "Grimald",
    "Hesse",
    "Imber",
    "Jarrow",
    "Kolb",
    "Lund",
    "Marr",
]
_SITES = [
    "Velm",
    "Orsk",
    "Tarn",
    "Brill",
    "Quay",
    "Sund",
    "Ulm",
    "Ester",
    "Holm",
    "Gard",
    "Nidd",
    "Pell",
    "Rime",
    "Saar",
    "Thule",
]
_NOUNS = [
    "Lamp",
    "Anchor",
    "Heron",
    "Compass",
    "Lantern",
    "Thistle",
    "Falcon",
    "Anvil",
    "Mirror",
    "Candle",
    "Raven",
    "Bell",
]
_COLOURS = [
    "Iron",
    "Silver",
    "Amber",
    "Scarlet",
    "Ivory",
    "Copper",
    "Grey",
    "Azure",
    "Golden",
    "Hollow",
    "Silent",
    "Winter",
]


@dataclass(frozen=True, slots=True)
class Template:
    """A question about the start of a chain of steps; `{}` is the name."""

    text: str
    kind: str
    steps: tuple[Step, ...]


def _forward(*relations: str) -> tuple[Step, ...]:
    return tuple((relation, True) for relation in relations)


TEMPLATES = (
    Template("Who commanded {}?", "ship", _forward("commanded_by")),
    Template("In which port was {} built?", "ship", _forward("built_in")),
    Template("Which order does the commander of {} belong to?", "ship",
             _forward("commanded_by", "member_of")),
    Template("Who governs the port where {} was built?", "ship",
             _forward("built_in", "governed_by")),
    Template("Where was the order founded that the commander of {} is a member of?", "ship",
             _forward("commanded_by", "member_of", "founded_in")),
    Template("Which order is the governor of the port in which {} was built a member of?", "ship",
             _forward("built_in", "governed_by", "member_of")),
    Template("Which ships were built in {}?", "port", (("built_in", False),)),
    Template("Which orders do the people who crewed {} belong to?", "ship",
             _forward("crewed_by", "member_of")),
    Template("Where did the ships that {} commanded sail to?", "person",
             (("commanded_by", False), ("sailed_to", True))),
    Template("Who governs the ports that the ships built in {} sailed to?", "port",
             (("built_in", False), ("sailed_to", True), ("governed_by", True))),
    Template("Who commanded the ships that were built in {}?", "port",
             (("built_in", False), ("commanded_by", True))),
    Template("Which orders are the commanders of ships built in {} members of?", "port",
             (("built_in", False), ("commanded_by", True), ("member_of", True))),
    Template("Who governs the port in which {} was founded?", "order",
             _forward("founded_in", "governed_by")),
    Template("Which ships did the members of {} command?", "order",
             (("member_of", False), ("commanded_by", False))),
)  # fmt: skip
REPEATS = (
    Template("Which order is the ally of the ally of {}?", "order", _forward("ally_of", "ally_of")),
    Template("Which port is the twin of {}?", "port", _forward("twin_of")),
    Template("Who governs the twin of the twin of {}?", "port",
             _forward("twin_of", "twin_of", "governed_by")),
)  # fmt: skip


def write_hostile(folder: Path, *, seed: int = 0, num_questions: int = 300) -> None:
    """Write `hostile_names`, `hostile_repeats` and `hostile_addresses` below `folder`."""
    rng = random.Random(seed)
    things = make_things(rng)
    triples = make_triples(rng, things)
    spell = {name: _spell(rng, name) for names in things.values() for name in names}
    written = [(spell[h], r, spell[t]) for h, r, t in triples]
    lines = "".join("\t".join(triple) + "\n" for triple in written)

    def as_it_is(name: str) -> str:
        # One in five copies the name out of the graph.
        return spell[name] if rng.random() < 0.2 else name

    for name, templates in (("hostile_names", TEMPLATES), ("hostile_repeats", REPEATS)):
        rows = make_questions(rng, things, triples, templates, num_questions, spell, as_it_is)
        _write(folder / name, "triples.tsv", lines, rows)
    address = {
        name: _address(number, kind, name)
        for number, (kind, name) in enumerate(
            (kind, name) for kind, names in things.items() for name in names
        )
    }
    lines = "".join(_to_ntriples(address, triples))
    itself = {name: name for name in address}
    rows = make_questions(rng, things, triples, TEMPLATES, num_questions, itself, lambda name: name)
    for row in rows:
        row["supporting_triples"] = [(h, _camel(r), t) for h, r, t in row["supporting_triples"]]
    _write(folder / "hostile_addresses", "triples.nt", lines, rows)


def make_things(rng: random.Random) -> dict[str, list[str]]:
    """Kind to names; some ports are part of the names of others, and of orders and ships."""
    ports = [f"{site}{end}" for site in _SITES for end in ("", "mouth", " Harbour", " Old Quay")]
    ports += [f"New {site}" for site in _SITES] + [f"Saint {first}" for first in _FIRST]
    orders = [f"Order of the {c} {n}" for c in _COLOURS for n in _NOUNS[:6]]
    orders += [f"Brothers of {port}" for port in rng.sample(ports, 30)]
    people = [f"{first} {last}" for first in _FIRST for last in _LAST]
    people += [f"{first} of {port}" for first, port in zip(_FIRST * 3, ports, strict=False)]
    ships = [f"{c} {n}" for c in _COLOURS for n in _NOUNS]
    ships += [f"Maid of {port}" for port in ports] + [f"{c} {s}" for c in _COLOURS for s in _SITES]
    return {"ship": ships, "person": people, "order": orders, "port": ports}


def make_triples(rng: random.Random, things: dict[str, list[str]]) -> list[Triple]:
    """About four thousand, each once; one order and port in four is its own ally or twin."""
    ports, orders, people = things["port"], things["order"], things["person"]
    triples: list[Triple] = []
    for ship in things["ship"]:
        triples.append((ship, "built_in", rng.choice(ports)))
        triples.append((ship, "commanded_by", rng.choice(people)))
        triples += [(ship, "crewed_by", person) for person in rng.sample(people, 4)]
        triples += [(ship, "sailed_to", port) for port in rng.sample(ports, 3)]
    triples += [(person, "member_of", rng.choice(orders)) for person in people]
    for order in orders:
        ally = order if rng.random() < 0.25 else rng.choice(orders)
        triples += [(order, "founded_in", rng.choice(ports)), (order, "ally_of", ally)]
    for port in ports:
        twin = port if rng.random() < 0.25 else rng.choice(ports)
        triples += [(port, "governed_by", rng.choice(people)), (port, "twin_of", twin)]
        triples.append((twin, "twin_of", port))
    return list(dict.fromkeys(triples))


def make_questions(
    rng: random.Random,
    things: dict[str, list[str]],
    triples: Sequence[Triple],
    templates: Sequence[Template],
    count: int,
    name_of: dict[str, str],
    mention: Callable[[str], str],
) -> list[dict[str, Any]]:
    """Rows as in a file of questions; entities, answers and gold triples by `name_of`."""
    around: dict[tuple[str, str, bool], list[str]] = {}
    for head, relation, tail in triples:
        around.setdefault((head, relation, True), []).append(tail)
        around.setdefault((tail, relation, False), []).append(head)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        template = templates[len(rows) % len(templates)]
        start = rng.choice(things[template.kind])
        ends, gold = [start], dict[Triple, None]()
        for relation, is_forward in template.steps:
            steps = [(a, b) for a in ends for b in around.get((a, relation, is_forward), ())]
            gold |= dict.fromkeys((a, relation, b) if is_forward else (b, relation, a)
                                  for a, b in steps)  # fmt: skip
            ends = list(dict.fromkeys(b for _, b in steps))
        if not ends:
            continue
        rows.append(
            {
                "question": template.text.format(mention(start)),
                "answers": [name_of[end] for end in ends],
                "entities": [name_of[start]],
                "hops": len(template.steps),
                "allow_repeats": templates is REPEATS,
                "supporting_triples": [(name_of[h], r, name_of[t]) for h, r, t in gold],
            }
        )
    return rows


def _spell(rng: random.Random, name: str) -> str:
    return rng.choice(
        [
            name,
            name.replace(" ", "_"),
            name.lower().replace(" ", "_"),
            "".join(word[0].upper() + word[1:] for word in name.split()),
        ]
    )


def _address(number: int, kind: str, name: str) -> tuple[str, str | None]:
    """An address and its label; without one the last part of the address is the name."""
    if number % 3 == 0:
        return f"http://data.example.org/m/0{number:x}z", name
    if number % 3 == 1:
        return f"http://data.example.org/resource/{quote(name.replace(' ', '_'))}", None
    joined = "".join(word[0].upper() + word[1:] for word in name.split())
    return f"http://data.example.org/onto/{kind}#{joined}", name


def _to_ntriples(
    address: dict[str, tuple[str, str | None]], triples: Iterable[Triple]
) -> Iterable[str]:
    for head, relation, tail in triples:
        said = f"http://data.example.org/onto#{_camel(relation)}"
        yield f"<{address[head][0]}> <{said}> <{address[tail][0]}> .\n"
    for uri, label in address.values():
        if label:
            yield f'<{uri}> <http://www.w3.org/2000/01/rdf-schema#label> "{label}"@en .\n'


def _camel(relation: str) -> str:
    first, *others = relation.split("_")
    return first + "".join(map(str.capitalize, others))


def _write(folder: Path, graph: str, lines: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / graph).write_text(lines, encoding="utf-8")
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "questions.jsonl").write_text(text, encoding="utf-8")

# SPDX-License-Identifier: Apache-2.0
"""Prompts in the formats of frameworks, in words of our own: a harbour, and two questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Fact = tuple[str, str, str]
Messages = list[dict[str, Any]]
Made = tuple[Messages, list[str]]

FACTS: list[Fact] = [
    ("Pella", "moored at", "Heron Lock"),
    ("Heron Lock", "part of", "Tidal Canal"),
    ("Tidal Canal", "dug by", "Ostrava Works"),
    ("Pella", "captained by", "Ilse O'Dell"),
    ("Ilse O'Dell", "trained at", "Quay School"),
    ("Quay School", "stands on", "Gull Street"),
    ("Ostrava Works", "owned by", "Marten Holt"),
    ("Marten Holt", "lives on", "Gull Street"),
]
FIRST = [FACTS[i] for i in (0, 1, 3, 4, 5, 2)]
SECOND = [FACTS[i] for i in (6, 3, 1, 7, 4, 0)]
RULE = "-" * 20
QUESTIONS = ("Where is Pella moored?", "Who lives on Gull Street?")


def told(fact: Fact) -> str:
    return " ".join(fact) + "."


def upper(fact: Fact) -> str:
    return fact[1].upper().replace(" ", "_")


def entities(facts: Sequence[Fact]) -> list[str]:
    return list(dict.fromkeys(end for a, _, b in facts for end in (a, b)))


def chat(user: str, system: str = "Reply from the notes.") -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def _in_system(system: str, question: str) -> Messages:
    return chat(question, system)


def arrows(facts: Sequence[Fact], question: str) -> Made:
    rows = [f"{a} -> {upper((a, r, b))} -> {b}" for a, r, b in facts]
    notes = "\n\n".join(rows)
    return chat(
        f"Notes below.\n------------\n{notes}\n------------\nAsked: {question}\nReply: "
    ), rows


def arrows_with_text(facts: Sequence[Fact], question: str) -> Made:
    rows, blocks = [], []
    for i in range(0, len(facts), 2):
        lines = [" -> ".join(fact) for fact in facts[i : i + 2]]
        text = " ".join(map(told, facts[i : i + 2]))
        blocks.append(
            "These facts were found in a document:\n\n" + "\n".join(lines) + f"\n\n{text}"
        )
        rows += [*lines, text]
    notes = "\n\n".join(blocks)
    return chat(
        f"Notes below.\n------------\n{notes}\n------------\nAsked: {question}\nReply: "
    ), rows


def lists(facts: Sequence[Fact], question: str) -> Made:
    rows = [str(list(fact)) for fact in facts]
    notes = "\n".join(rows)
    return chat(f"Chains of the map, as lists:\n{notes}\n------------\nAsked: {question}"), rows


def json_lines(facts: Sequence[Fact], question: str) -> Made:
    nodes = [json.dumps({"entity": each, "kind": "thing"}) for each in entities(facts)]
    edges = [json.dumps({"entity1": a, "entity2": b, "text": told((a, r, b))}) for a, r, b in facts]
    chunks = [f'"content": "{told(fact)}"}}' for fact in facts[:3]]
    numbered = [f'{{"reference_id": "{(i + len(question)) % 7}", {x}' for i, x in enumerate(chunks)]
    system = "Be brief.\n\n---Notes---\n\n"
    for title, rows in (("Nodes", nodes), ("Edges", edges), ("Texts (with ids)", numbered)):
        system += f"{title}:\n\n```json\n" + "\n".join(rows) + "\n```\n\n"
    return _in_system(
        system + "Ids:\n\n```\n[1] harbour.txt\n```\n", question
    ), nodes + edges + chunks


def pipes(facts: Sequence[Fact], question: str) -> Made:
    def number(x: Any, of: Sequence[Any]) -> int:
        return list(of).index(x)

    nodes = [
        f"{number(each, entities(FACTS))}|{each.upper()}|It is {each}.|2"
        for each in entities(facts)
    ]
    edges = [f"{number(f, FACTS)}|{f[0].upper()}|{f[2].upper()}|{told(f)}|7.0|" for f in facts]
    texts = [f'{number(f, FACTS)}|"{told(f)}\n\nIn two parts, ""quoted""."' for f in facts[:2]]
    links = [f"{edge}{(i + len(question)) % 4}" for i, edge in enumerate(edges)]
    system = (
        "Use the tables.\n\n---Tables---\n\n-----Things-----\nid|entity|description|degree\n"
        + "\n".join(nodes)
        + "\n\n\n-----Edges-----\nid|source|target|description|weight|links\n"
        + "\n".join(links)
        + "\n\n\n-----Texts-----\nid|text\n"
        + "\n".join(texts)
        + "\n\n\n---Task---\n\nReply in two lines.\n"
    )
    return _in_system(system, question), nodes + edges + texts


def numbered_csv(facts: Sequence[Fact], question: str) -> Made:
    nodes = [f'"{each.upper()}",\t"THING",\t"It is {each}.",\t3' for each in entities(facts)]
    edges = [f'"{a.upper()}",\t"{b.upper()}",\t"{told((a, r, b))}",\t7.0' for a, r, b in facts]
    texts = [f'"# {told(fact)}\n\nIn two parts, "quoted"."' for fact in facts[:2]]
    system = "Use the tables.\n\n---Tables---\n\n"
    for title, head, rows in (
        ("Things", '"id",\t"entity",\t"type",\t"text",\t"rank"', nodes),
        ("Edges", '"id",\t"source",\t"target",\t"text",\t"weight"', edges),
        ("Texts", '"id",\t"content"', texts),
    ):
        lines = "\n".join(f"{i},\t{row}" for i, row in enumerate(rows))
        system += f"-----{title}-----\n```csv\n{head}\n{lines}\n```\n"
    return _in_system(
        system + "\n---Task---\n\nReply in two lines.\n", question
    ), nodes + edges + texts


def tabs(facts: Sequence[Fact], question: str) -> Made:
    nodes = [f"{each.upper()}\tIt is {each}." for each in entities(facts)]
    edges = [f"{a.upper()}\t{b.upper()}\t{told((a, r, b))}" for a, r, b in facts]
    texts = [f"{told(fact)}\nIn two lines.\n=====" for fact in facts[:3]]
    sources = "\n\n".join(f"[{i + 1}]  {text}" for i, text in enumerate(texts))
    user = (
        "# NOTES\n\n## Entities\n```csv\nname\tdescription\n"
        + "\n".join(nodes)
        + "\n```\n\n## Edges\n```csv\nsource\ttarget\tdescription\n"
        + "\n".join(edges)
        + f"\n```\n\n## Sources\n\n{sources}\n\n\n# ASKED\n{question}\n\n"
        "# HOW\n- Be brief.\n- Be kind.\n"
    )
    return chat(user), nodes + edges + texts


def titled(facts: Sequence[Fact], question: str) -> Made:
    nodes = [f"- {each}: It is {each}." for each in entities(facts)]
    edges = [f"- {f[0]} —[{upper(f)}]→ {f[2]}: {told(f)}" for f in facts]
    paths = [f"- {f[0]} —[{upper(f)}]→ {f[2]} —[NEAR]→ Sea" for f in facts[:2]]
    texts = [told(fact) for fact in facts[:3]]
    hint = "Say a place.\n---\n" if question == QUESTIONS[0] else "Say a name.\n---\n"
    user = (
        f"<context>\n{hint}## All Entities\n"
        + "\n".join(nodes)
        + "\n---\n## Known Edges\n"
        + "\n".join(edges + paths)
        + "\n---\n## Original Passages\n"
        + "\n---\n".join(texts)
        + f"\n</context>\n\nAsked: {question}\n"
    )
    return chat(user), nodes + edges + paths + texts


def node_blocks(facts: Sequence[Fact], question: str) -> Made:
    nodes = [
        f"Node: {each}\n__node_content_start__\nIt is\n{each}.\n__node_content_end__"
        for each in entities(facts)
    ]
    edges = [f"{a} --[{r.replace(' ', '_')}]--> {b}" for a, r, b in facts]
    notes = "\n\n".join(nodes) + "\n\n\nConnections:\n" + "\n".join(edges)
    return chat(f"Notes:\nNodes:\n{notes}\n\nAsked: {question}"), nodes + edges


def records(facts: Sequence[Fact], question: str) -> Made:
    rows = [f"<Record a={f[0]!r} type(r)={upper(f)!r} b={f[2]!r}>" for f in facts]
    return chat("Notes:\n" + "\n".join(rows) + f"\n\nAsked:\n{question}\n\nReply:\n"), rows


def repr_arrows(facts: Sequence[Fact], question: str) -> Made:
    rows, found = [], []
    for i in range(0, len(facts), 3):
        edges = [f"{f[0]} - {upper(f)} -> {f[2]}" for f in facts[i : i + 3]]
        text = " ".join(map(told, facts[i : i + 3]))
        info = f"=== text ===\n{text}\n\n=== edges ===\n" + "\n".join(edges)
        found.append(f"<Record info={info!r}>")
        rows += edges
    return chat("Notes:\n" + "\n".join(found) + f"\n\nAsked:\n{question}\n\nReply:\n"), rows


def dicts(facts: Sequence[Fact], question: str) -> Made:
    rows = [{"a.name": a, "type(r)": r, "b": {"name": b}} for a, r, b in facts]
    return chat(f"Known so far:\n{rows}\n\nAsked: {question}\nReply:"), list(map(str, rows))


def tool_dicts(facts: Sequence[Fact], question: str) -> Made:
    rows = [{"a.name": a, "type(r)": r, "b.name": b} for a, r, b in facts]
    function = {"name": "look_up", "arguments": "{}"}
    calls = [{"id": "1", "type": "function", "function": function}]
    return [
        *chat(question),
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": str(rows)},
    ], list(map(str, rows))


def json_array(facts: Sequence[Fact], question: str) -> Made:
    edges = [json.dumps({"fact": f'{told(fact)} {{"so"}}', "until": "now"}) for fact in facts]
    nodes = [json.dumps({"entity_name": each, "summary": "A thing."}) for each in entities(facts)]
    system = (
        f"Be kind.\n\n    <EDGES>\n            [{', '.join(edges)}]\n    </EDGES>\n"
        f"    <THINGS>\n            [{', '.join(nodes)}]\n    </THINGS>\n"
        "    <MORE>\n            []\n    </MORE>\n"
    )
    return _in_system(system, question), edges + nodes


def bullets(facts: Sequence[Fact], question: str) -> Made:
    rows = [f"- {told(fact)}" for fact in facts]
    scored = [f"{row} (score: 0.{len(question)}{i})" for i, row in enumerate(rows)]
    system = "Be brief.\nKnown facts of the harbour:\n" + "\n".join(scored)
    return _in_system(system, question), rows


def wikipedia(facts: Sequence[Fact], question: str) -> Made:
    rows = [f"Wikipedia Title: {f[0]}\n{told(f)}\nAnd more of it." for f in facts]
    shots = [
        {"role": "user", "content": "\n\n".join(f"Wikipedia Title: {i}\nOld." for i in range(99))},
        {"role": "assistant", "content": "None."},
    ]
    user = "\n\n".join(rows) + f"\n\nQuestion: {question}\nThought: "
    return [chat("")[0], *shots, {"role": "user", "content": user}], rows


PROMPTS: dict[str, Callable[[Sequence[Fact], str], Made]] = {
    "arrows": arrows,
    "arrows with text": arrows_with_text,
    "bullets": bullets,
    "dicts": dicts,
    "dicts of a tool": tool_dicts,
    "json array": json_array,
    "json lines": json_lines,
    "lists": lists,
    "node blocks": node_blocks,
    "numbered csv": numbered_csv,
    "pipes": pipes,
    "records": records,
    "repr arrows": repr_arrows,
    "tabs": tabs,
    "titled": titled,
    "wikipedia": wikipedia,
}
"""A format to the messages for facts and a question, and the rows that are in them."""

# SPDX-License-Identifier: Apache-2.0
"""A rendered request: plain for any server, and a tree for one that knows DepCache."""

from __future__ import annotations

import networkx as nx
import pytest

from depcache.errors import PromptError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.render import DEFAULT_SYSTEM, render
from depcache.prompt.template import Template
from depcache.prompt.wire import WireText, parse_wire, split_text
from tests.depcache.prompt.make import make_bpe

PATHS = [
    ("Elon Musk", "founded", "SpaceX", "located in", "Hawthorne"),
    ("Elon Musk", "founded", "SpaceX", "launched", "Falcon 9"),
]
QUESTION = "What did Elon Musk found?"


def test_the_user_message_holds_the_facts_and_then_the_question():
    prompt = render(PATHS, QUESTION)
    system, user = prompt.messages
    assert system == {"role": "system", "content": DEFAULT_SYSTEM}
    assert user["role"] == "user"
    before, after = user["content"].split(prompt.flat_text)
    assert (before, after) == ("Facts:", f"\n\nQuestion: {QUESTION}")
    assert prompt.flat_text == (
        "\nElon Musk -> founded -> SpaceX -> located in -> Hawthorne"
        "\nElon Musk -> founded -> SpaceX -> launched -> Falcon 9"
    )


@pytest.mark.parametrize("template", ["path", "triple"])
def test_a_server_gets_the_tree_of_the_same_paths(template):
    prompt = render(PATHS, QUESTION, template=template, layout="staggered")
    wire = parse_wire(prompt.extra_body["custom_params"])
    assert isinstance(wire, WireText)
    assert wire.layout == "staggered"
    # What a chat template makes of the messages.
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in prompt.messages)
    system, task = split_text(text, wire)
    assert system.endswith("Facts:")
    assert task.startswith("\n\nQuestion: ")
    built = DepPrompt.from_paths(
        wire.paths,
        tokenizer=make_bpe(),
        system=system,
        task=task,
        template=wire.template,
        layout=wire.layout,
    )
    assert built.flat_text == prompt.flat_text
    assert built.num_tokens < built.num_flat_tokens


def test_elements_may_hold_anything():
    paths = [('"a"', "{r}\\", "</s>\n🚀"), ("\t{", "Facts:", "Question: é")]
    prompt = render(paths, QUESTION)
    wire = parse_wire(prompt.extra_body["custom_params"])
    assert isinstance(wire, WireText)
    assert wire.paths == paths


def test_every_kind_of_path_is_taken_and_duplicates_travel_once():
    graph = nx.DiGraph()
    graph.add_edge("a", "b", relation="r")
    triple = {"subject": "a", "predicate": "r", "object": "b"}
    prompt = render([(graph, ["a", "b"]), triple, ["a", "r", "b"]], QUESTION)
    assert prompt.flat_text == "\na -> r -> b"
    assert prompt.extra_body["custom_params"]["depcache_paths"] == '[["a","r","b"]]'


def test_without_paths_the_request_is_a_plain_question():
    prompt = render([], QUESTION, system=None)
    assert prompt.messages == [{"role": "user", "content": QUESTION}]
    assert (prompt.extra_body, prompt.flat_text) == ({}, "")


@pytest.mark.parametrize("system", ["", None])
def test_an_empty_system_is_no_message(system):
    assert [message["role"] for message in render(PATHS, QUESTION, system=system).messages] == [
        "user"
    ]


def test_what_a_server_would_refuse_is_refused_here():
    flat_text = render(PATHS, QUESTION).flat_text
    for arguments, options, message in [
        ((PATHS, ""), {}, "question is ''"),
        ((PATHS, None), {}, "question is None"),
        ((PATHS, QUESTION + flat_text), {}, "2 times"),
        ((PATHS, QUESTION), {"system": flat_text}, "2 times"),
        ((PATHS, QUESTION), {"template": "mine"}, "no template"),
        ((PATHS, QUESTION), {"template": Template("mine")}, "not registered"),
        ((PATHS, QUESTION), {"layout": "flat"}, "no position layout"),
        (([()], QUESTION), {}, "path 0 is empty"),
    ]:
        with pytest.raises(PromptError, match=message):
            render(*arguments, **options)

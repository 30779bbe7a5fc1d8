# SPDX-License-Identifier: Apache-2.0
"""A rendered request: plain for any server, and a tree for one that knows DepCache."""

from __future__ import annotations

import json

import networkx as nx
import pytest

from depcache.errors import PromptError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.render import DEFAULT_SYSTEM, render
from depcache.prompt.template import Template
from depcache.prompt.wire import WireOutline, parse_wire
from tests.depcache.prompt.make import make_bpe
from tests.helpers.rendered import paths_of

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
    # What a chat template makes of the messages.
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in prompt.messages)
    wire = parse_wire(prompt.params_in(text))
    assert isinstance(wire, WireOutline)
    assert (wire.layout, wire.depcache_template) == ("staggered", template)
    system, task = text.split(prompt.flat_text)
    assert system.endswith("Facts:")
    assert task.startswith("\n\nQuestion: ")
    tokenizer = make_bpe()
    built = DepPrompt.from_paths(
        PATHS,
        tokenizer=tokenizer,
        system=system,
        task=task,
        template=template,
        layout=wire.layout,
    )
    assert built.flat_text == prompt.flat_text
    assert built.num_tokens < built.num_flat_tokens
    sent = DepPrompt.from_outline(text, wire.outline, tokenizer=tokenizer, layout=wire.layout)
    assert sent.to_wire() == built.to_wire()


def test_the_text_travels_once():
    paths = [
        (f"entity {i}", "is related to", f"thing {i}", "is part of", "all") for i in range(300)
    ]
    prompt = render(paths, QUESTION)
    assert len(json.dumps(prompt.extra_body, separators=(",", ":"))) < 12 * 1024
    assert "entity" not in json.dumps(prompt.extra_body)


def test_the_facts_are_found_in_another_text_or_it_is_refused():
    prompt = render(PATHS, QUESTION)
    text = f"é{prompt.flat_text}?"
    assert prompt.params_in(text)["depcache_outline"]["start"] == 1
    assert prompt.params_in(text, 2)["depcache_outline"]["message"] == 2
    assert render([], QUESTION).params_in("anything") == {}
    for other, where in (("nothing", "nowhere"), (text + text, "twice")):
        with pytest.raises(PromptError, match=f"the text has the facts {where}"):
            prompt.params_in(other)


def test_elements_may_hold_anything():
    paths = [('"a"', "{r}\\", "</s>\n🚀"), ("\t{", "Facts:", "Question: é")]
    prompt = render(paths, QUESTION)
    assert paths_of({"messages": prompt.messages, **prompt.extra_body}) == paths


def test_every_kind_of_path_is_taken_and_duplicates_travel_once():
    graph = nx.DiGraph()
    graph.add_edge("a", "b", relation="r")
    triple = {"subject": "a", "predicate": "r", "object": "b"}
    prompt = render([(graph, ["a", "b"]), triple, ["a", "r", "b"]], QUESTION)
    assert prompt.flat_text == "\na -> r -> b"
    assert paths_of({"messages": prompt.messages, **prompt.extra_body}) == [("a", "r", "b")]


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
    for arguments, options, message in [
        ((PATHS, ""), {}, "question is ''"),
        ((PATHS, None), {}, "question is None"),
        ((PATHS, QUESTION), {"template": "mine"}, "no template"),
        ((PATHS, QUESTION), {"layout": "flat"}, "no position layout"),
        (([()], QUESTION), {}, "path 0 is empty"),
    ]:
        with pytest.raises(PromptError, match=message):
            render(*arguments, **options)


def test_facts_may_stand_in_the_chat_twice_and_a_template_may_be_the_callers_own():
    flat_text = render(PATHS, QUESTION).flat_text
    prompt = render(PATHS, QUESTION + flat_text, system=flat_text, template=Template("mine"))
    params = prompt.extra_body["custom_params"]
    assert "depcache_template" not in params  # a server need not know it
    assert params["depcache_outline"]["message"] == 1
    assert params["depcache_outline"]["start"] == len("Facts:")

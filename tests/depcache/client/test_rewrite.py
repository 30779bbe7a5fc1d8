# SPDX-License-Identifier: Apache-2.0
"""Facts in a request are found and named; everything else stays as it was."""

import copy
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.client.context import MARKER, GraphContext, current_context, graph_context
from depcache.client.rewrite import HEADING, find_block, rewrite_body
from depcache.errors import PromptError
from depcache.prompt.chat_outline import mark_message
from depcache.prompt.wire import WireOutline, parse_wire
from tests.helpers.rendered import paths_of
from tests.helpers.rendered import text_of as text_of_message

PATHS = [("Marie Curie", "born in", "Warsaw"), ("Warsaw", "located in", "Poland")]
LINES = "Marie Curie -> born in -> Warsaw\nWarsaw -> located in -> Poland"


def auto(body) -> Any:
    return rewrite_body(copy.deepcopy(body), context=None, auto=True, merge=True, layout="tree")


def recognised(body) -> Any:
    return rewrite_body(copy.deepcopy(body), context=None, auto=True, layout="tree")


def explicit(body, paths=PATHS, **options) -> Any:
    context = GraphContext(paths, options.pop("template", "path"), options.pop("layout", "tree"))
    return rewrite_body(copy.deepcopy(body), context=context, auto=True, layout="tree")


def chat(*contents, role="user"):
    return {"model": "m", "messages": [{"role": role, "content": text} for text in contents]}


def text_of(body):
    """The prompt as a trimming chat template would write it."""
    if "prompt" in body:
        return body["prompt"]
    texts = []
    for message in body["messages"]:
        content = message["content"]
        parts = [content] if isinstance(content, str) else [part["text"] for part in content]
        texts.append(f"<|{message['role']}|>\n{''.join(parts).strip()}<|end|>\n")
    return "".join(texts)


def assert_served(body, paths):
    """The server will find exactly these paths; returns what stands around them."""
    assert paths_of(body) == paths
    wire = parse_wire(body["custom_params"])
    assert isinstance(wire, WireOutline)
    text, outline = text_of(body), wire.outline
    if outline.message is not None:
        marked = copy.deepcopy(body)
        message = marked["messages"][outline.message]
        content = text_of_message(message)
        mark = mark_message(content, outline)
        message["content"] = mark.text
        text, outline = mark.place(text_of(marked))
    return text[: outline.start], text[outline.stop :]


# finding


def found(text):
    block = find_block(text)
    assert block is not None
    return block


def test_two_fact_lines_are_a_block_that_starts_at_the_newline_before_them():
    text = f"Facts:\n{LINES}\n\nWhere?"
    block = found(text)
    assert block.paths == PATHS
    assert text[block.start : block.stop] == f"\n{LINES}"


def test_one_fact_line_is_prose():
    assert find_block("We go A -> B -> C today.") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a -> b\nc -> d",
        "a -> b -> c -> d\ne -> f -> g -> h",
        "a ->  -> c\nd ->  -> f",
        "a->b->c\nd->e->f",
        "-> a -> b\n-> c -> d",
        "f :: a\ng :: b",
    ],
)
def test_what_is_no_path_is_not_found(text):
    assert find_block(text) is None


def test_a_line_in_between_ends_a_run_and_the_longest_run_wins():
    text = "a -> r -> b\nc -> r -> d\nstop\ne -> r -> f\ng -> r -> h\ni -> r -> j\n"
    assert found(text).paths == [("e", "r", "f"), ("g", "r", "h"), ("i", "r", "j")]


def test_of_two_runs_of_one_length_the_first_is_taken():
    assert found("a -> r -> b\nc -> r -> d\n-\ne -> r -> f\ng -> r -> h").paths[0][0] == "a"


def test_blank_lines_and_blanks_around_lines_do_not_end_a_run():
    text = "  a -> r ->  b \r\n\n \n\tc -> r -> d -> s -> e"
    assert found(text).paths == [("a", "r", "b"), ("c", "r", "d", "s", "e")]


def test_code_in_a_fence_is_never_facts():
    code = "```haskell\nmap -> f -> g\nfoo -> x -> y\n```"
    assert find_block(code) is None
    assert found(f"{code}\n{LINES}").paths == PATHS


# automatic


def test_facts_in_a_message_become_the_text_form():
    body = auto(chat(f"Facts:\n{LINES}\n\nWhere?"))
    assert body["messages"][0]["content"] == f"Facts:\n{LINES}\n\nWhere?"
    system, task = assert_served(body, PATHS)
    assert system.endswith("Facts:")
    assert task.startswith("\n\nWhere?")
    assert body["custom_params"]["depcache_layout"] == "tree"


def test_facts_that_open_a_message_get_a_heading_so_that_trimming_cannot_reach_them():
    body = auto(chat(f"{LINES}\n\nWhere?"))
    assert body["messages"][0]["content"].startswith(f"{HEADING}\nMarie Curie")
    assert_served(body, PATHS)


def test_facts_that_open_a_completion_only_get_their_newline():
    body = auto({"prompt": f"{LINES}\nQ?"})
    assert body["prompt"] == f"\n{LINES}\nQ?"
    assert_served(body, PATHS)


def test_repeated_facts_and_loose_spelling_are_rewritten_to_the_template():
    body = auto(chat("Here:\n\na -> r -> b\n\na -> r -> b\n c ->  r -> d \nend"))
    assert body["messages"][0]["content"] == "Here:\n\na -> r -> b\nc -> r -> d\nend"
    assert_served(body, [("a", "r", "b"), ("c", "r", "d")])


def test_facts_in_a_part_of_a_message_are_found():
    parts = [{"type": "text", "text": "Read:"}, {"type": "text", "text": f"x\n{LINES}\n?"}]
    body = auto({"messages": [{"role": "user", "content": parts}]})
    assert_served(body, PATHS)


def test_facts_in_the_system_message_are_found():
    body = auto(
        {"messages": [{"role": "system", "content": f"Know:\n{LINES}\n"}, *chat("?")["messages"]]}
    )
    assert_served(body, PATHS)


def test_other_custom_params_stay():
    body = auto({**chat(f"F:\n{LINES}\n?"), "custom_params": {"mine": 1}})
    assert body["custom_params"]["mine"] == 1
    assert body["custom_params"]["depcache_version"] == 2


def test_facts_that_stand_in_the_chat_twice_are_taken_where_they_stand_first():
    body = auto(chat(f"F:\n{LINES}\n?", f"F:\n{LINES}\n?"))
    _, task = assert_served(body, PATHS)
    assert LINES in task


@pytest.mark.parametrize(
    "body",
    [
        chat("Hello"),
        chat(f"F:\n{LINES}", role="assistant"),
        {**chat(f"F:\n{LINES}\n?"), "custom_params": {"depcache_version": 1}},
        {**chat(f"F:\n{LINES}\n?"), "custom_params": "odd"},
        {**chat(f"F:\n{LINES}\n?"), "input_ids": [1, 2]},
        {"prompt": [f"F:\n{LINES}"]},
        {"prompt": [1, 2, 3]},
        {"messages": "odd"},
        {"messages": [None, 1, {"content": None}, {"content": [None, {"text": 3}]}]},
        {},
        [],
        None,
        "text",
        {"prompt": "a -> r -> \ud800\nb -> r -> c"},
    ],
)
def test_what_is_not_recognised_is_left_alone(body):
    assert auto(body) is None


def test_without_auto_nothing_is_looked_for():
    body = chat(f"F:\n{LINES}\n?")
    assert rewrite_body(body, context=None, auto=False, layout="tree") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
names = st.sampled_from(["messages", "prompt", "custom_params", "input_ids", "role", "content"])


@given(st.dictionaries(names, json_values) | st.fixed_dictionaries(
    {"messages": st.lists(st.dictionaries(names, json_values))}))  # fmt: skip
def test_odd_bodies_never_raise(body):
    auto(body)


element = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Z"], exclude_characters=">`"), min_size=1
)


@given(st.lists(st.tuples(element, element, element), min_size=2), st.text("ab \n"))
def test_any_list_of_facts_is_found_whole_and_served(paths, before):
    lines = "\n".join(" -> ".join(path) for path in paths)
    body = auto(chat(f"Facts{before}:\n{lines}\n\nQ?"))
    assert_served(body, list(dict.fromkeys(paths)))


# whole rows, as frameworks write them


def test_rows_stand_whole_unless_trees_are_asked_for():
    body = chat(f"Facts:\n{LINES}\n\nWhere?")
    sent = recognised(body)
    assert sent["messages"] == body["messages"]
    wire = parse_wire(sent["custom_params"])
    assert isinstance(wire, WireOutline) and not wire.outline.merge
    pieces = wire.outline.pieces(body["messages"][0]["content"])
    assert set(LINES.split("\n")) <= {piece.strip() for piece in pieces}


def test_rows_are_found_in_prompts_and_parts_of_messages():
    found = recognised({"prompt": f"Facts:\n{LINES}\n\nWhere?"})
    assert found["custom_params"]["depcache_outline"]["message"] is None
    parts = [{"type": "text", "text": f"Facts:\n{LINES}\n\nWhere?"}]
    found = recognised({"messages": [{"role": "user", "content": parts}]})
    assert found["custom_params"]["depcache_outline"]["message"] == 0


@pytest.mark.parametrize("body", [chat("Hello"), chat(f"F:\n{LINES}", role="assistant"), {}, None])
def test_what_holds_no_rows_is_left_alone(body):
    assert recognised(body) is None


# explicit


def test_named_facts_are_found_in_the_message_and_keep_their_template_and_layout():
    paths = [("a", "r", "b", "s", "c")]
    body = explicit(
        chat("Facts:\na -> r -> b\nb -> s -> c\n\nQ?"), paths, template="triple", layout="staggered"
    )
    assert_served(body, [("a", "r", "b"), ("b", "s", "c")])
    assert body["custom_params"]["depcache_template"] == "triple"
    assert body["custom_params"]["depcache_layout"] == "staggered"


def test_the_marker_gives_way_to_the_facts():
    body = explicit(chat(f"Facts: {MARKER}\nQ?"))
    assert body["messages"][0]["content"] == f"Facts: \n{LINES}\nQ?"
    assert_served(body, PATHS)


def test_named_facts_without_their_first_newline_are_found():
    body = explicit(chat(f"{LINES}\nQ?"))
    assert_served(body, PATHS)


def test_named_facts_go_before_what_is_found():
    body = explicit(chat(f"{MARKER}\n---\nx -> r -> y\nz -> r -> w"))
    assert_served(body, PATHS)


@pytest.mark.parametrize(
    "content", ["no facts here", f"{MARKER} {MARKER}", f"F:\n{LINES}\n{LINES}"]
)
def test_named_facts_that_are_nowhere_or_twice_are_warned_about(content, caplog):
    with caplog.at_level(logging.WARNING, "depcache.client"):
        assert explicit(chat(content)) is None
    assert "plain prompt" in caplog.text


def test_the_innermost_context_is_the_current_one():
    assert current_context() is None
    with graph_context(PATHS) as outer:
        with graph_context([("x",)]) as inner:
            assert current_context() is inner
        assert current_context() is outer
        assert str(outer) == f"\n{LINES}"
    assert current_context() is None


def test_one_context_can_be_entered_again():
    facts = graph_context(PATHS)
    for _ in range(2):
        with facts, facts:
            assert current_context() is facts
        assert current_context() is None


@pytest.mark.parametrize(
    ("paths", "options"),
    [([("",)], {}), (PATHS, {"template": "none"}), (PATHS, {"layout": "none"}), ("text", {})],
)
def test_a_bad_context_is_a_prompt_error(paths, options):
    with pytest.raises(PromptError):
        graph_context(paths, **options)


def test_a_rewritten_body_is_json():
    body = auto(chat(f"F:\n{LINES}\n?"))
    assert json.loads(json.dumps(body)) == body

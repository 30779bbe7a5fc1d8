# SPDX-License-Identifier: Apache-2.0
"""Outlines on the real server: the text stands once, and rows stand whole."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.outline import Outline
from depcache.prompt.render import render

pytestmark = pytest.mark.sglang

_fresh = count()


def fresh_rows(num_rows: int = 4) -> list[str]:
    """Rows that no test has sent before. They begin alike."""
    name = f"Author {next(_fresh)}"
    return [f'{{"from": "{name}", "to": "Place {i}", "rank": "{i}"}}\n' for i in range(num_rows)]


def ask(rows: list[str], *, before: str = "Facts:\n", after: str = "Who?") -> dict[str, Any]:
    """A chat whose second message holds the rows, each of them whole."""
    outline = Outline(len(before), tuple(map(len, rows)), (1,) * len(rows), message=1)
    return {
        "model": "m",
        "max_tokens": 4,
        "temperature": 0,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": before + "".join(rows) + after},
        ],
        "custom_params": outline.to_params("tree"),
    }


def report(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()["metadata"]["depcache"]


def test_rows_that_stand_whole_are_reused_in_any_order(served) -> None:
    rows = fresh_rows()
    cold = report(served.post("/v1/chat/completions", ask(rows)))
    again = report(served.post("/v1/chat/completions", ask(rows[::-1], after="And who else?")))
    assert cold["missed"] > 0 and again["missed"] == 0
    assert again["shared"] == again["context_tokens"] == cold["context_tokens"]
    assert cold["differs"] == ["visibility", "placement"]


def test_the_prompt_is_the_text_as_the_template_writes_it(served) -> None:
    rows = [*fresh_rows(2), "<|im_end|> 😀 <s>\n"]
    body = ask(rows)
    table = served.post("/depcache/explain", body).json()
    assert [row["text"] for row in table["table"]] == rows
    text = served.tokenizer.apply_chat_template(
        body["messages"], tokenize=False, add_generation_prompt=True
    )
    start = text.index(rows[0])
    outline = Outline(start, tuple(map(len, rows)), (1,) * len(rows))
    prompt = DepPrompt.from_outline(text, outline, tokenizer=served.tokenizer)
    ids, params = prompt.to_wire()
    answers = [
        served.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"],
        served.post(
            "/generate",
            {
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": 4, "temperature": 0, "custom_params": params},
            },
        ).json()["text"],
    ]
    assert answers[0] == answers[1]
    assert table["prompt_tokens"] == prompt.num_tokens


def test_a_header_is_seen_by_its_rows_alone(served) -> None:
    rows = fresh_rows()
    body = ask(["Places:\n", *rows])
    body["custom_params"]["depcache_outline"]["parents"] = [-1, 0, 0, 0, 0]
    table = served.post("/depcache/explain", body).json()["table"]
    assert [row["parent"] for row in table] == [-1, 0, 0, 0, 0]
    assert report(served.post("/v1/chat/completions", body))["missed"] > 0
    assert report(served.post("/v1/chat/completions", body))["missed"] == 0
    # Without its header a row is another row.
    assert report(served.post("/v1/chat/completions", ask(rows)))["missed"] > 0


def test_what_changes_nothing_is_exact(served) -> None:
    body = ask(fresh_rows(1))
    assert report(served.post("/v1/chat/completions", body))["differs"] == []
    assert served.post("/depcache/explain", body).json()["differs"] == []
    merged = render([["a", "r", f"b {next(_fresh)}"], ["a", "r", "c"]], "Who?")
    body = {"model": "m", "max_tokens": 1, "messages": merged.messages, **merged.extra_body}
    differs = report(served.post("/v1/chat/completions", body))["differs"]
    assert differs == ["merging", "visibility", "placement"]


def test_ids_say_that_they_merge_only_where_segments_fork(served) -> None:
    apart = [[f"One {next(_fresh)}", "is", "a"], [f"Two {next(_fresh)}", "is", "b"]]
    fork = [[f"Fork {next(_fresh)}", "is", "a"]]
    fork.append([fork[0][0], "has", "b"])
    for paths, merges in ((apart, False), (fork, True)):
        ids, params = served.prompt(paths).to_wire()
        asked = {"max_new_tokens": 1, "custom_params": params}
        body = {"input_ids": ids, "sampling_params": asked}
        reply = served.post("/generate", body).json()["meta_info"]["depcache"]
        assert ("merging" in reply["differs"]) == merges and "visibility" in reply["differs"]


def test_both_versions_of_the_wire_share_what_they_cache(served) -> None:
    paths = [[f"Old {next(_fresh)}", "is", "wire"], ["B", "is", "a letter"]]
    prompt = render(paths, "Who?")
    body = {"model": "m", "max_tokens": 1, "messages": prompt.messages}
    old = {"depcache_version": 1, "depcache_paths": json.dumps(paths)}
    assert report(served.post("/v1/chat/completions", {**body, "custom_params": old}))["missed"]
    new = report(served.post("/v1/chat/completions", {**body, **prompt.extra_body}))
    assert new["missed"] == 0 and new["shared"] == new["context_tokens"]


def test_a_message_of_several_texts_is_these_one_behind_the_other(served) -> None:
    rows = fresh_rows()
    body = ask(rows)
    facts = "".join(rows)
    body["messages"][1]["content"] = [
        {"type": "text", "text": "Facts:\n"},
        {"type": "text", "text": facts + "."},
        {"type": "text", "text": "Who?"},
    ]
    table = served.post("/depcache/explain", body).json()
    assert [row["text"] for row in table["table"]] == rows
    body["custom_params"]["depcache_outline"]["start"] = 5
    refused = served.post("/depcache/explain", body)
    assert refused.status_code == 400
    assert "no text part holds all of them" in refused.json()["message"]


def test_completions_and_generate_count_from_the_beginning_of_the_prompt(served) -> None:
    rows = fresh_rows()
    text = "Facts:\n" + "".join(rows) + "Who?"
    params = Outline(7, tuple(map(len, rows)), (1,) * len(rows)).to_params("tree")
    body = {"model": "m", "prompt": text, "max_tokens": 2, "custom_params": params}
    assert report(served.post("/v1/completions", body))["missed"] > 0
    generate = {"text": text, "sampling_params": {"max_new_tokens": 2, "custom_params": params}}
    reply = served.post("/generate", generate).json()["meta_info"]["depcache"]
    assert reply["missed"] == 0 and reply["differs"] == ["visibility", "placement"]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "beyond the text": ({"start": 10**6}, "reaches to code point"),
    "no such message": ({"message": 2}, "the chat has 2 messages"),
    "huge message": ({"message": 10**15}, "the chat has 2 messages"),
    "no message": ({"message": None}, "but the prompt is a chat"),
    "no task": ({"lens": [1, 1, 1, 1], "start": 10**9}, "reaches to code point"),
    "many rows": ({"lens": [1] * 10**6, "rows": [1] * 10**6}, "holds 1000000 rows"),
    "a cycle": ({"parents": [-1, 2, 1, 0]}, "row 1 of the outline has parent 2"),
    "half a character": ({"lens": [1, 2, 3, 0.5]}, "0.5 is among the lens"),
    "twice": ({"rows": [4, 4]}, "have 8 elements"),
    "another key": ({"spans": []}, "'spans' is no key of the outline"),
    "sees and parents": (
        {"sees": [[], [0], [], []], "parents": [-1, 0, 0, 0]},
        "cannot be combined with parents",
    ),
    **{
        f"sees is {value!r}": ({"sees": value}, sentence)
        for value, sentence in (
            (None, "sees of the outline is None"),
            (3, "sees of the outline is 3"),
            ("[[0]]", "sees of the outline is '[[0]]'"),
            ({"1": [0]}, "sees of the outline is {'1': [0]}"),
            ([0, 1, 2, 3], "rows that row 0 of the outline sees is 0"),
            ([[], [0]], "has 4 rows, but sees has 2 lists"),
            ([[], [0], [], [], []], "has 4 rows, but sees has 5 lists"),
            ([[], None, [], []], "rows that row 1 of the outline sees is None"),
            ([[], "0", [], []], "rows that row 1 of the outline sees is '0'"),
            ([[], ["0"], [], []], "'0' is among the rows that row 1"),
            ([[], [0.0], [], []], "0.0 is among the rows that row 1"),
            ([[], [True], [], []], "True is among the rows that row 1"),
            ([[], [None], [], []], "None is among the rows that row 1"),
            ([[], [[0]], [], []], "[0] is among the rows that row 1"),
            ([[], [1], [], []], "row 1 of the outline sees [1]"),
            ([[], [4], [], []], "row 1 of the outline sees [4]"),
            ([[], [-1], [], []], "row 1 of the outline sees [-1]"),
            ([[], [10**30], [], []], "row 1 of the outline sees"),
            ([[], [0, 0], [], []], "once, in ascending order"),
            ([[], [2, 0], [], []], "once, in ascending order"),
        )
    },
    "too many seeing rows": (
        {"lens": [1] * 5000, "rows": [1] * 5000, "sees": [[1], *[[0]] * 4999]},
        "5000 rows that may see others",
    ),
    "too many seen rows": (
        {
            "lens": [1] * 600,
            "rows": [1] * 600,
            "sees": [[], *(list(range(row)) for row in range(1, 600))],
        },
        "names more than 131072 rows",
    ),
}


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/depcache/explain"])
@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_outline_is_refused_with_the_reason(served, name: str, route: str) -> None:
    changes, sentence = BAD[name]
    body = ask(fresh_rows())
    body["custom_params"]["depcache_outline"].update(changes)
    response = served.post(route, body)
    assert response.status_code == 400, response.text
    assert sentence in response.json()["message"]
    assert len(response.json()["message"]) < 400


def test_an_outline_at_another_place_than_its_text_is_refused(served) -> None:
    rows = fresh_rows()
    params = ask(rows)["custom_params"]
    text = "Facts:\n" + "".join(rows) + "Who?"
    for route, body in {
        "/v1/completions": {"model": "m", "prompt": text, "custom_params": params},
        "/generate": {"text": text, "sampling_params": {"custom_params": params}},
    }.items():
        response = served.post(route, body)
        assert response.status_code == 400 and "has no messages" in response.text
    chat = {**ask(rows), "input_ids": [1, 2, 3]}
    response = served.post("/v1/chat/completions", chat)
    assert response.status_code == 400 and "came with input_ids" in response.text

# SPDX-License-Identifier: Apache-2.0
"""`depcache recognise` says what is found in a file, what is not, and why."""

from __future__ import annotations

import io
import json
import sys

import pytest

ROWS = "Ada -> born in -> Mire\nMire -> lies on -> Linn\n"
CODE = "```\nAda -> born in -> Mire\nMire -> lies on -> Linn\n```\n"
MESSAGES = [
    {"role": "system", "content": CODE},
    {"role": "user", "content": f"Read:\n{ROWS}\nWho?"},
]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(MESSAGES),
        json.dumps({"model": "default", "messages": MESSAGES}),
        json.dumps({"prompt": MESSAGES[1]["content"]}),
        json.dumps({"text": MESSAGES[1]["content"]}),
        MESSAGES[1]["content"],
    ],
    ids=["messages", "body", "prompt", "generate", "text"],
)
def test_a_prompt_is_read_in_every_shape(call, tmp_path, content):
    file = tmp_path / "prompt"
    file.write_text(content)
    code, out, err = call("recognise", file, "--seconds", "60")
    assert (code, err) == (0, "")
    assert "2 rows of facts" in out and "Mire -> lies on -> Linn" in out and "relation" in out
    assert ("inside a code fence" in out) == ("system" in content)


def test_json_is_the_outline_and_every_row(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(MESSAGES)))
    code, out, _ = call("recognise", "-", "--json", "--seconds", "60")
    found = json.loads(out)
    assert code == 0
    assert found["outline"] == {"message": 1, "start": 6, "lens": [23, 24], "rows": [1, 1]}
    assert found["rows"][0] == {"start": 6, "stop": 29, "name": "arrows", "kind": "relation"}
    assert found["unread"] == [
        {
            "message": 0,
            "start": 4,
            "stop": 51,
            "rows": 2,
            "name": "arrows",
            "reason": "inside a code fence",
        }
    ]


def test_a_prompt_without_facts_says_so(call, tmp_path):
    file = tmp_path / "prompt"
    file.write_text("\x1b[2JAda -> won -> Cup")
    code, out, _ = call("recognise", file)
    assert code == 0
    assert "no outline: no rows of facts" in out and "one row only" in out
    assert "\x1b" not in out


def test_more_than_a_page_is_shown_on_request(call, tmp_path):
    file = tmp_path / "prompt"
    file.write_text("".join(f"A{i} -> is -> B{i}\n" for i in range(30)))
    assert "and 10 more (--all shows them)" in call("recognise", file, "--seconds", "60")[1]
    assert "A29 -> is -> B29" in call("recognise", file, "--all", "--seconds", "60")[1]


@pytest.mark.parametrize("only", ["arrows", "records", "odd"])
def test_recognisers_are_chosen_by_name(call, tmp_path, only):
    file = tmp_path / "prompt"
    file.write_text(ROWS)
    code, out, err = call("recognise", file, "--only", only, "--seconds", "60")
    assert code == (2 if only == "odd" else 0)
    assert ("2 rows" in out) == (only == "arrows")
    assert ("is no recogniser" in err) == (only == "odd")


def test_a_file_that_is_not_there_is_one_sentence(call, tmp_path):
    code, out, err = call("recognise", tmp_path / "none")
    assert (code, out, err.count("\n")) == (2, "", 1)

# SPDX-License-Identifier: Apache-2.0
"""Every data set, in its own layout, becomes the one form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from eval.sets import SetError, load_dragonball, load_folder, load_multihop_rag, load_rgb


def write_lines(path: Path, rows: list) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_a_folder_gives_a_set_for_every_file_of_questions(tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "triples.tsv.gz").write_bytes(gzip.compress("a\tr\tb\u2028c\n".encode()))
    question = {"id": "1", "question": "a?", "answers": ["b"], "entities": ["a"], "type": "x"}
    write_lines(tmp_path / "films" / "questions_1hop.jsonl.gz", [question])
    write_lines(tmp_path / "films" / "questions_2hop.jsonl", [question, question])
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "triples.tsv").write_text("a\tr\tb\n")
    write_lines(tmp_path / "plain" / "questions.jsonl", [{"question": "?", "answers": [1999]}])
    (tmp_path / "no graph").mkdir()
    sets = {data.name: data for data in load_folder(tmp_path)}
    assert list(sets) == ["films_1hop", "films_2hop", "plain"]
    assert sets["films_1hop"].triples == (("a", "r", "b\u2028c"),)
    assert sets["films_1hop"].questions[0].kind == "x"
    assert len(sets["films_2hop"].questions) == 2
    assert sets["plain"].questions[0].answers == ("1999",)
    assert sets["plain"].entities() == {"a", "b"}


def test_rgb_has_nested_answers_and_documents(tmp_path: Path) -> None:
    rows = [
        {
            "id": 0,
            "query": "When?",
            "answer": [["1 May", "May 1"], "2022"],
            "positive": [["one", "two"], "three"],
            "negative": ["four"],
        }
    ]
    data = load_rgb(write_lines(tmp_path / "en.json", rows))
    assert data.questions[0].answers == ("1 May", "May 1", "2022")
    assert [text for _, text in data.documents] == ["one", "two", "three", "four"]
    assert len(dict(data.documents)) == 4


def test_multihop_rag_keeps_the_kind_the_paper_used(tmp_path: Path) -> None:
    rows = [
        {"query": "Who?", "answer": "Ann", "question_type": "inference_query"},
        {"query": "Same?", "answer": "Yes", "question_type": "comparison_query"},
    ]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    (tmp_path / "c.json").write_text(json.dumps([{"title": "T", "body": "B"}]))
    (tmp_path / "t.tsv").write_text("a\tr\tb\n")
    data = load_multihop_rag(tmp_path / "q.json", tmp_path / "c.json", tmp_path / "t.tsv")
    assert [q.text for q in data.questions] == ["Who?"]
    assert data.documents == (("0: T", "B"),)
    assert data.triples == (("a", "r", "b"),)
    assert len(load_multihop_rag(tmp_path / "q.json", kind=None).questions) == 2


def test_dragonball_keeps_english_summaries(tmp_path: Path) -> None:
    def row(number: int, language: str, kind: str) -> dict:
        return {
            "language": language,
            "query": {"query_id": number, "query_type": kind, "content": "Sum up."},
            "ground_truth": {"content": "All well.", "doc_ids": [1]},
        }

    rows = [row(1, "en", "Summary Question"), row(2, "zh", "Summary Question"), row(3, "en", "x")]
    docs = [{"doc_id": 7, "language": "en", "content": "D"}, {"language": "zh", "content": "Z"}]
    data = load_dragonball(
        write_lines(tmp_path / "q.jsonl", rows), write_lines(tmp_path / "d.jsonl", docs)
    )
    assert [(q.id, q.answers) for q in data.questions] == [("dragonball-1", ("All well.",))]
    assert data.documents == (("7", "D"),)


def test_what_is_no_set_says_why(tmp_path: Path) -> None:
    with pytest.raises(SetError, match="holds no set"):
        load_folder(tmp_path)
    with pytest.raises(SetError, match="no folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(SetError, match="cannot read"):
        load_rgb(tmp_path / "missing.json")
    with pytest.raises(SetError, match=r"row 0 .* has no 'answer'"):
        load_rgb(write_lines(tmp_path / "bad.json", [{"query": "?"}]))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(SetError, match="no JSON"):
        load_rgb(tmp_path / "bad.json")

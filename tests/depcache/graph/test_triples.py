# SPDX-License-Identifier: Apache-2.0
"""Reading triples from files: every form, and what is malformed is counted by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.errors import PromptError
from depcache.graph.triples import MAX_KEPT_PROBLEMS, Skipped, has_triples_suffix, read_triples

LINES = "a\tr\tb\n\nonly two\tcells\nc\tr s\td\r\n\tr\tb\n"


@pytest.mark.parametrize("suffix", [".tsv", ".txt", ".TSV", ".tsv.gz"])
def test_malformed_lines_are_skipped_and_counted_with_their_numbers(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"facts{suffix}"
    data = b"\xef\xbb\xbf" + LINES.encode() + b"\xff\tr\tb\n"
    path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    skipped = Skipped()
    assert list(read_triples(path, skipped=skipped)) == [("a", "r", "b"), ("c", "r s", "d")]
    assert skipped.count == 3
    assert [p.split(":")[0] for p in skipped.problems] == ["line 3", "line 5", "line 6"]


def test_strict_fails_at_the_first_malformed_line(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text(LINES)
    rows = read_triples(path, strict=True)
    assert next(rows) == ("a", "r", "b")
    with pytest.raises(PromptError, match=r"line 3 of .* is malformed: it has 2 columns"):
        next(rows)


def test_json_lines_may_be_lists_or_objects_of_several_spellings(tmp_path: Path) -> None:
    rows = [
        ["tab\tand\nnewline", "r", "b"],
        {"head": "a", "relation": "r", "tail": "b"},
        {"subject": "a", "predicate": "s", "object": "b", "score": 1},
        {"source": "a", "label": "t", "target": "b"},
        {"head": "a", "tail": "b"},
        ["a", 1, "b"],
        "a",
    ]
    path = tmp_path / "facts.jsonl"
    lines = [json.dumps(row) for row in rows] + ["{", "[" * 100_000]
    path.write_text("\n".join(lines))
    skipped = Skipped()
    assert list(read_triples(path, skipped=skipped)) == [
        ("tab\tand\nnewline", "r", "b"),
        ("a", "r", "b"),
        ("a", "s", "b"),
        ("a", "t", "b"),
    ]
    assert skipped.count == 5


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(*[st.text(min_size=1).filter(str.strip)] * 3), max_size=8))
def test_what_json_writes_comes_back(
    rows: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    kept = [row for row in rows if not any("\0" in element for element in row)]
    assert list(read_triples(path)) == kept


def test_only_the_first_problems_are_kept_but_all_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    path.write_text("bad\n" * 1000)
    skipped = Skipped()
    assert list(read_triples(path, skipped=skipped)) == []
    assert skipped.count == 1000
    assert len(skipped.problems) == MAX_KEPT_PROBLEMS


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "facts.tsv.gz"
    broken.write_bytes(gzip.compress(LINES.encode() * 1000)[:-20])
    for path in (tmp_path / "missing.tsv", tmp_path, broken):
        with pytest.raises(PromptError, match=r"cannot (read|tell)"):
            list(read_triples(path))
    assert has_triples_suffix("x/facts.JSONL.gz")
    assert not has_triples_suffix("facts.db")


def test_a_header_is_no_triple_and_counts_only_in_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text("Subject\tpredicate\tobject\nAda\twrote\tNotes\nhead\trelation\ttail\n")
    skipped = Skipped()
    assert list(read_triples(file, strict=True, skipped=skipped)) == [
        ("Ada", "wrote", "Notes"),
        ("head", "relation", "tail"),
    ]
    assert skipped.count == 0

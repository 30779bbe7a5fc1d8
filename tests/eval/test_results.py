# SPDX-License-Identifier: Apache-2.0
"""A figure on a page can be measured again: its file says how, and the page names the file."""

from __future__ import annotations

import json
import re
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "eval" / "results"
FILES = sorted(file for file in RESULTS.iterdir() if not file.name.startswith("."))
PAGES = sorted(
    chain(
        ROOT.glob("*.md"),
        *(folder.rglob("*.md") for folder in (ROOT / "datasets", ROOT / "depcache", ROOT / "eval")),
        *(ROOT.glob(f"{folder}/**/*.md") for folder in ("docs", "models", "sglang_patches")),
    )
)
# Sections of README and docs with figures and no file -> why.
WITHOUT_FILE = {
    "README.md: Your own facts, in ten lines": "from the log that docs/measurements.md shows",
    "docs/measurements.md: A newcomer's first answer": "the log is the record",
    "docs/operate/sizing.md: KV of one token": "arithmetic",
    "docs/use/recognise.md: What is recognised": "a limit, not a measurement",
    "docs/use/recognise.md: Rules": "a limit, not a measurement",
}
FIGURE = re.compile(r"\d\s?(?:ms|%|s|GB/s|times|x)(?!\w)")
WHY_NOT = ("was not written down", "is not in this history", "was run before its commit")
CITED = re.compile(r"eval/results/([\w.*-]*\w)")


def cited_names() -> dict[str, list[str]]:
    """Name or pattern of a file to the pages that name it."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for name in CITED.findall(page.read_text(encoding="utf-8")):
            found.setdefault(name, []).append(str(page.relative_to(ROOT)))
    return found


def report_of(file: Path) -> Path:
    """The report that a file is, or that a picture is of: `serve_ttft.png` is of `serve.json`."""
    if file.suffix == ".json":
        return file
    reports = [each for each in FILES if each.suffix == ".json"]
    fitting = [each for each in reports if f"{file.stem}_".startswith(f"{each.stem}_")]
    return max(fitting, key=lambda each: len(each.stem))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_result_says_how_and_when_and_with_what_it_was_measured(file: Path) -> None:
    assert file.suffix in (".json", ".png")
    report: dict[str, Any] = json.loads(report_of(file).read_text(encoding="utf-8"))
    about: dict[str, Any] = report.get("manifest", report)
    assert re.match(
        r"(python (-m eval[. ]|scripts/)|make test-frameworks$)|unknown: \S", about["command"]
    )
    assert about.get("dirty") is not True or WHY_NOT[2] in about["note"]
    assert re.fullmatch(r"[0-9a-f]{40}", about["commit"])
    assert date.fromisoformat(about["date"])
    assert re.fullmatch(r"3\.\d+\.\d+", about["versions"]["python"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_result_is_of_a_clean_commit_or_its_page_says_what_is_wrong_with_it(
    file: Path,
) -> None:
    report: dict[str, Any] = json.loads(report_of(file).read_text(encoding="utf-8"))
    about: dict[str, Any] = report.get("manifest", report)
    if about.get("dirty") is False:
        return
    [why] = [why for why in WHY_NOT if why in about["note"]]
    pages = {
        ROOT / page
        for pattern, pages in cited_names().items()
        if file in RESULTS.glob(pattern)
        for page in pages
    }
    assert any(why in page.read_text(encoding="utf-8") for page in pages)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_result_says_where_it_lay(file: Path) -> None:
    if file.suffix == ".json":
        assert not re.search(r'["\s](/tmp|/work|/root|/home)/', file.read_text(encoding="utf-8"))


def test_every_result_is_named_by_a_page() -> None:
    cited = cited_names()
    named = {file.name for pattern in cited for file in RESULTS.glob(pattern)}
    assert {file.name for file in FILES} - named == set()


def test_what_a_page_names_is_there() -> None:
    cited = cited_names()
    assert {name: pages for name, pages in cited.items() if not any(RESULTS.glob(name))} == {}
    assert len(cited) > 10  # the pattern finds what the pages say


def test_a_section_with_figures_names_their_file() -> None:
    without = set()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for section in re.split(r"^(?=#{1,3} )", page.read_text(encoding="utf-8"), flags=re.M):
            title = section.partition("\n")[0].strip("# ")
            in_table = re.search(r"[Mm]illiseconds|\bin (?:%|ms)", section) and "\n|" in section
            if (FIGURE.search(section) or in_table) and not CITED.search(section):
                without.add(f"{page.relative_to(ROOT)}: {title}")
    without -= {name for name in without if name.startswith("docs/reference/commands.md")}
    assert without == set(WITHOUT_FILE)


def test_the_demos_table_is_of_a_run_in_its_file() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("<!-- demo table -->")[2].split("```")[1]
    rows = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if line.strip()]
    assert rows[0] == ["DepCache", "SGLang"] and len(rows) > 5
    runs = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))["runs"]

    def cells(run: dict[str, Any]) -> list[list[str]]:
        both = [run["systems"][name] for name in ("depcache", "sglang")]
        first, second = zip(*(found["ttft_ms_by_order"] for found in both), strict=True)
        tokens = [found["reused_tokens"] for found in both]
        shares = [found["reused_tokens"] / found["tree_tokens"] for found in both]
        return [
            ["questions asked", *(str(found["questions"]) for found in both)],
            ["prompt tokens, flat", *(f"{found['flat_tokens']:,}" for found in both)],
            ["prompt tokens, in the tree", f"{both[0]['tree_tokens']:,}", "-"],
            ["reused", *(f"{n:,} ({part:.0%})" for n, part in zip(tokens, shares, strict=True))],
            ["computed", *(f"{found['computed_tokens']:,}" for found in both)],
            ["time to first token, first order", *(f"{ms:.0f} ms" for ms in first)],
            ["time to first token, second order", *(f"{ms:.0f} ms" for ms in second)],
            ["speed-up", f"{run['speed_up']:.1f}x", "-"],
            ["right answers", *(f"{each['correct']} of {each['questions']}" for each in both)],
        ]

    assert any(all(row in cells(run) for row in rows[1:]) for run in runs)

# SPDX-License-Identifier: Apache-2.0
"""What is asked stays unseen in training, scores are what they say, and the command runs."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from depcache.demo.sample import final_answer, load_entities
from depcache.prompt.layout import LAYOUTS
from depcache.training.examples import read_examples
from eval.__main__ import main
from eval.quality.command import compare
from eval.quality.prompts import Asked, make_sets
from eval.quality.scores import Score, interval, score
from eval.quality.systems import FINE_TUNED, SAME_WEIGHTS, make_systems
from eval.quality.teach import phrases_of, relations_of, teach_2wiki, teach_metaqa
from eval.sets import DataSet, Question, load_folder
from eval.workloads.questions import asked_of, taught_of, topics_of, without
from eval.workloads.unseen import unseen_entities, unseen_relations
from models.tiny.stages import TINY
from models.tiny.worlds import UNKNOWN, answer_of

NUM_FILMS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Films with a director and two actors each, and questions about all of them."""
    folder = tmp_path_factory.mktemp("kg")
    triples, one, two = [], [], []
    for i in range(NUM_FILMS):
        film, director = f"Film {i:02}", f"Director {i % 7}"
        triples += [(film, "directed_by", director), (film, "release_year", str(1950 + i))]
        triples += [(film, "starred_actors", f"Actor {i % 11}")]
        one.append(
            {
                "question": f"who directed {film}" if i % 2 else f"{film} is directed by who",
                "answers": [director],
                "entities": [film],
                "path": "movie_to_director",
            }
        )
    for i in range(11):
        two.append(
            {
                "question": f"when were the films released that Actor {i} is in",
                "answers": [str(1950 + j) for j in range(NUM_FILMS) if j % 11 == i],
                "entities": [f"Actor {i}"],
                "path": "actor_to_movie_to_year",
            }
        )
    (folder / "metaqa").mkdir()
    _write(folder / "metaqa" / "triples.tsv", triples)
    for name, rows in (("1hop", one), ("2hop", two)):
        lines = "\n".join(json.dumps(row) for row in rows)
        (folder / "metaqa" / f"questions_{name}.jsonl").write_text(lines)
    (folder / "2wiki").mkdir()
    chains = [(f"Song {letter}", "performer", f"Singer {letter}") for letter in "ABCDEFGH"]
    chains += [(f"Singer {s}", "date of birth", f"May {i}, 1950") for i, s in enumerate("ABCDEFGH")]
    _write(folder / "2wiki" / "triples.tsv", chains)
    wiki = [
        {
            "question": f"When was the performer of song {chains[i][0].upper()} born?",
            "answers": [f"May {i}, 1950"],
            "entities": [chains[i][0]],
            "type": "compositional",
            "split": "dev" if i < 2 else "train",
            "supporting_triples": [chains[i], chains[i + 8]],
        }
        for i in range(8)
    ]
    (folder / "2wiki" / "questions.jsonl").write_text("\n".join(map(json.dumps, wiki)))
    return folder


def _write(file: Path, triples: list[tuple[str, str, str]]) -> None:
    file.write_text("".join("\t".join(triple) + "\n" for triple in triples))


@pytest.fixture(scope="module")
def sets(folder: Path) -> dict[str, DataSet]:
    return {data.name: data for data in load_folder(folder)}


def test_what_is_asked_is_the_same_every_time_and_held_out_parts_come_first(
    sets: dict[str, DataSet],
) -> None:
    asked = asked_of(sets["metaqa_1hop"], 10)
    assert asked == asked_of(sets["metaqa_1hop"], 10)
    assert asked_of(sets["metaqa_1hop"], 20)[:10] == asked
    assert {q.split for q in asked_of(sets["2wiki"])} == {"dev"}
    assert len(asked_of(sets["2wiki"])) == 2


def test_nothing_that_is_asked_about_occurs_in_training(sets: dict[str, DataSet]) -> None:
    metaqa = [sets["metaqa_1hop"], sets["metaqa_2hop"]]
    unseen = topics_of([*asked_of(metaqa[0], 20), *asked_of(metaqa[1], 4)])
    assert len(unseen) == 24
    examples = list(islice(teach_metaqa(metaqa, unseen, 0), 300))
    for example in examples:
        assert unseen.isdisjoint(node for path in example.paths for node in path[::2])
        assert not any(f" {name} " in f" {example.question} " for name in unseen)
        evidence, answer = example.answer.split("\nAnswer: ")
        walk = tuple(evidence.split(" -> "))
        assert walk[-1] == answer
        same = {
            path[: len(walk)] for path in example.paths if path[1 : len(walk) : 2] == walk[1::2]
        }
        assert walk in same
        assert {*example.alternatives} == {answer_of(other) for other in same - {walk}}
    assert any(example.alternatives for example in examples)
    assert len({example.question for example in examples}) > 20
    assert {len(e.answer.split("\n")[0].split(" -> ")) for e in examples} == {3, 5}
    assert not [q for q in taught_of(metaqa[0], unseen) if unseen & {*q.entities, *q.answers}]
    assert all(t[0] not in unseen and t[2] not in unseen for t in without(metaqa[0], unseen))


def test_phrases_are_those_of_the_questions(sets: dict[str, DataSet]) -> None:
    assert relations_of("actor_to_movie_to_year") == ("inverse of starred_actors", "release_year")
    assert relations_of("movie_to_tags") == ("has_tags",)
    assert relations_of("comparison") == ()
    phrases = phrases_of(sets["metaqa_1hop"].questions)
    assert phrases == {("directed_by",): ["{x} is directed by who", "who directed {x}"]}


def test_questions_of_2wiki_come_with_names_of_their_own(sets: dict[str, DataSet]) -> None:
    unseen = topics_of(asked_of(sets["2wiki"]))
    examples = list(islice(teach_2wiki(sets["2wiki"], unseen, 0), 60))
    real = [example for example in examples if "SONG " in example.question]
    assert 0 < len(real) < 40
    for example in examples:
        assert not any(name in example.question for name in ("SONG A", "SONG B"))
        evidence, answer = example.answer.split("\nAnswer: ")
        walk = tuple(evidence.split(" -> "))
        assert walk[1::2] == ("performer", "date of birth")
        assert walk[-1] == answer and answer.startswith("May ")
        assert any(path[:5] == walk for path in example.paths)
        assert walk[0].casefold() in example.question.casefold()
    assert not any(example.answer == UNKNOWN for example in examples)


def test_scores_take_the_best_gold_answer() -> None:
    right = score("the Black Sea.", ["Baltic Sea", "Black Sea"])
    assert (right.em, right.f1) == (1.0, 1.0)
    half = score("Black", ["Black Sea"])
    assert half.em == 0 and half.f1 == pytest.approx(2 / 3) == half.rouge_l
    none = score("", ["Black Sea"])
    assert (none.em, none.f1, none.rouge_l) == (0, 0, 0)


def test_an_interval_holds_the_mean_and_shrinks_with_more_answers() -> None:
    few, many = interval([1.0, 0.0] * 10), interval([1.0, 0.0] * 200)
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
    assert interval([1.0] * 5) == (1.0, 1.0)


def test_the_final_answer_is_what_stands_behind_the_last_mark() -> None:
    assert final_answer("A -> b -> C\nAnswer: C") == "C"
    assert final_answer("Answer: no. Answer: yes\n") == "yes"
    assert final_answer(" plain ") == "plain"


def test_every_set_gets_paths_that_may_hold_the_answer(folder: Path) -> None:
    names = ("demo", "metaqa_1hop", "metaqa_2hop", "2wiki")
    numbers = dict.fromkeys(names, 5)
    sets = make_sets(folder, numbers, pruner="words", max_paths=10)
    assert list(sets) == list(names)
    for name, questions in sets.items():
        assert len(questions) == (2 if name == "2wiki" else 5)
        assert all(q.is_reachable() for q in questions)
    assert not Asked("?", ("Mars",), (("a", "b", "c"),)).is_reachable()
    assert list(make_sets(None, numbers, pruner="words", max_paths=10)) == ["demo"]


def test_where_depcache_tiny_is_not_asked_there_are_no_differences() -> None:
    wrong = Score(0.0, 0.0, 0.0)
    scores = {("demo", each): [wrong] for each in make_systems() if each.reader != TINY}
    assert compare(scores) == []


def test_without_the_control_differences_are_to_the_same_weights_only() -> None:
    right, wrong = Score(1.0, 1.0, 1.0), Score(0.0, 0.0, 0.0)
    scores = {
        ("demo", system): [right, right if system.name == FINE_TUNED else wrong]
        for system in make_systems()
        if system.reader == TINY
    }
    found = compare(scores)
    assert [(row["layout"], row["against"], row["em"]) for row in found] == [
        (layout, SAME_WEIGHTS, 0.5) for layout in LAYOUTS
    ]


def test_every_system_has_a_name_of_its_own() -> None:
    systems = make_systems()
    assert len({(system.name, system.layout) for system in systems}) == len(systems)
    assert {system.layout for system in systems if not system.reencodes} == {
        "staggered",
        "sequential",
    }


def test_a_folder_without_the_set_is_an_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sglang")
    assert main(["quality", "--data", str(folder), "--sets", "metaqa_3hop"]) == 2
    assert "holds no 'metaqa_3hop'" in capsys.readouterr().err
    arguments = ["quality", "--sets", "demo", "--models", str(tmp_path)]
    assert main(arguments) == 2
    assert "has no model 'dependency'" in capsys.readouterr().err
    assert main([*arguments, "--readers", "base"]) == 2
    assert "has no model 'base'" in capsys.readouterr().err


def test_questions_know_their_part_and_their_evidence(sets: dict[str, DataSet]) -> None:
    question: Question = sets["2wiki"].questions[0]
    assert question.split == "dev"
    assert question.evidence[0] == ("Song A", "performer", "Singer A")


def test_the_training_file_comes_with_the_names_that_are_not_in_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "public.jsonl"
    # Everything in this little graph would be asked about; the real one has more.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eval.quality.teach.asked_of", lambda data: asked_of(data, 4))
        assert main(["teach", "--data", str(folder), "--number", "80", str(out)]) == 0
    unseen = set((tmp_path / "public.unseen.txt").read_text().splitlines())
    assert load_entities() < unseen
    assert {"Song A", "Song B"} < unseen and unseen_entities() < unseen
    assert len(unseen - load_entities() - unseen_entities() - unseen_relations()) == 10
    examples = list(read_examples(out))
    assert len(examples) == 80
    assert unseen.isdisjoint(n for e in examples for path in e.paths for n in path[::2])
    assert "80 examples" in capsys.readouterr().out


def test_a_folder_without_metaqa_or_2wiki_teaches_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kg").mkdir()
    (tmp_path / "kg" / "2wiki").symlink_to(folder / "2wiki")
    out = tmp_path / "public.jsonl"
    assert main(["teach", "--data", str(tmp_path / "kg"), str(out)]) == 2
    assert "no set of 'metaqa'" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.sglang
@pytest.mark.usefixtures("forked_servers")
def test_the_whole_comparison_runs_on_real_servers(folder: Path, tmp_path: Path) -> None:
    from models.tiny.train import train
    from models.tiny.trainer import Shape

    models = tmp_path / "models"
    train(models, 0.05, Shape(512, 64, 2, 1, 512), has_control=True)
    out, picture = tmp_path / "report.json", tmp_path / "picture.png"
    arguments = ["quality", "--data", str(folder), "--models", str(models)]
    arguments += ["--questions", "3", "--sets", "demo", "metaqa_2hop"]
    arguments += ["--answers", str(tmp_path / "answers.jsonl")]
    assert main([*arguments, "--json", str(out), "--plot", str(picture)]) == 0
    report = json.loads(out.read_text())
    systems = {(system.name, system.layout) for system in make_systems()}
    for name in ("demo", "metaqa_2hop"):
        rows = [row for row in report["rows"] if row["set"] == name]
        assert [(row["system"], row["layout"]) for row in rows] == [
            (system.name, system.layout) for system in make_systems()
        ]
        for row in rows:
            assert {"set", "system", "layout", "em", "f1", "rouge_l", "n"} < set(row)
            assert row["n"] == 3
            for measure in ("em", "f1", "rouge_l"):
                low, high = row[f"{measure}_95"]
                assert 0 <= low <= row[measure] <= high <= 1
    assert len(report["rows"]) == 2 * len(systems)
    em = {(row["set"], row["system"], row["layout"]): row["em"] for row in report["rows"]}
    assert len(report["differences"]) == 2 * 3 * 2
    for row in report["differences"]:
        mine, other = em[row["set"], "DepAttn", row["layout"]], em[row["set"], row["against"], ""]
        assert row["em"] == pytest.approx(mine - other, abs=2e-4)
        assert row["em_95"][0] <= row["em"] <= row["em_95"][1]
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 3 * len(systems)
    for row in report["rows"]:
        mine = [
            line["em"]
            for line in lines
            if all(line[key] == row[key] for key in ("set", "system", "layout"))
        ]
        assert sum(mine) / 3 == pytest.approx(row["em"], abs=1e-4)
    assert report["warm_equals_cold"] is True
    assert report["reachable"] == {"demo": 1.0, "metaqa_2hop": 1.0}
    assert picture.read_bytes().startswith(b"\x89PNG")

# SPDX-License-Identifier: Apache-2.0
"""Templates: text of a path, piece by piece, and what is no template."""

from __future__ import annotations

import pytest

from depcache.errors import PromptError
from depcache.prompt.template import TEMPLATES, Template, get_template, register_template

HOPS = ("Elon Musk", "founded", "SpaceX", "located in", "Hawthorne")


def test_a_path_is_one_line_and_every_element_carries_its_separator():
    template = get_template("path")
    assert template.pieces(HOPS) == [
        "\nElon Musk", " -> founded", " -> SpaceX", " -> located in", " -> Hawthorne",
    ]  # fmt: skip
    assert template.flatten([HOPS]) == "\nElon Musk -> founded -> SpaceX -> located in -> Hawthorne"


def test_triple_cuts_a_longer_path_and_writes_each_triple_once():
    text = get_template("triple").flatten([HOPS, HOPS[:3], HOPS[2:]])
    assert text == "\nElon Musk -> founded -> SpaceX\nSpaceX -> located in -> Hawthorne"


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (("a",), [("a",)]),
        (("a", "r"), [("a", "r")]),
        (("a", "r", "b", "s"), [("a", "r", "b"), ("b", "s")]),
    ],
)
def test_triple_keeps_short_and_open_paths(path, lines):
    assert get_template("triple").lines([path]) == lines


def test_flat_text_keeps_the_order_and_prefixes_but_no_duplicates():
    paths = [("b", "r", "c"), ("a",), ("b", "r", "c"), ("b", "r", "c", "s", "d")]
    assert get_template("path").flatten(paths) == "\nb -> r -> c\na\nb -> r -> c -> s -> d"
    assert get_template("path").flatten([]) == ""


def test_elements_are_data_and_stay_as_they_are():
    path = ("{e}", "{r!r}", 'a "b"\n{0}', "%s", "</s> 🚀")
    assert get_template("path").flatten([path]) == ('\n{e} -> {r!r} -> a "b"\n{0} -> %s -> </s> 🚀')


def test_a_template_of_a_user_is_data_with_text_on_both_sides():
    template = Template.from_dict(
        {"name": "arrows", "first": "\n* {e}", "relation": " -[{r}]->", "entity": " {e}"}
    )
    assert template.flatten([HOPS[:3]]) == "\n* Elon Musk -[founded]-> SpaceX"
    assert template.lead == "\n* "


@pytest.mark.parametrize(
    "fields",
    [
        {"first": "\n"},
        {"first": "{e}"},
        {"first": "\n{e}{e}"},
        {"first": "\n{e.__class__}"},
        {"relation": "{r}"},
        {"relation": " {e}"},
        {"entity": " {r}"},
        {"entity": 5},
        {"one_hop": "yes"},
        {"name": " "},
        {"second": "x"},
    ],
)
def test_what_is_no_template_is_refused(fields):
    with pytest.raises(PromptError, match=r"template"):
        Template.from_dict({"name": "mine", **fields})


def test_an_unknown_name_is_refused_with_the_choices():
    for name in ("paths", None, 3):
        with pytest.raises(PromptError, match="path, triple"):
            get_template(name)  # pyright: ignore[reportArgumentType]


def test_a_registered_template_is_found_by_name_and_names_are_not_taken_twice(monkeypatch):
    monkeypatch.setattr("depcache.prompt.template.TEMPLATES", dict(TEMPLATES))
    mine = Template("mine", first="\n- {e}")
    register_template(mine)
    register_template(Template("mine", first="\n- {e}"))
    assert get_template("mine") is mine
    with pytest.raises(PromptError, match="another template named 'path'"):
        register_template(Template("path", first="\n- {e}"))

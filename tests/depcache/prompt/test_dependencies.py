# SPDX-License-Identifier: Apache-2.0
"""What nodes can depend on, and the sentences for what they cannot."""

from __future__ import annotations

import pytest

from depcache.errors import PromptError
from depcache.prompt.dependencies import resolve_dependencies
from depcache.prompt.nodes import LinearNode, TreeNode


def line(name: str, depends_on=None) -> LinearNode:
    return LinearNode(name, name, depends_on)


def tree(name: str, depends_on=None) -> TreeNode:
    return TreeNode(name, [("a", "r", "b")], depends_on=depends_on)


@pytest.mark.parametrize(
    ("nodes", "chains"),
    [
        ([line("task")], []),
        ([line("system"), line("task")], [()]),
        ([line("system"), tree("context"), line("task")], [(), (0,)]),
        ([tree("context"), line("task")], [()]),
        ([tree("a"), tree("b"), line("task")], [(), ()]),
        ([line("system"), tree("a", ()), line("task")], [(), ()]),
        ([line("s"), line("n"), tree("a", "n"), line("task")], [(), (0,), (0, 1)]),
        ([line("s"), line("n", ()), tree("a", "n"), line("task")], [(), (), (1,)]),
        ([line("s"), line("n"), tree("a", ["s", "n", "n"]), line("task")], [(), (0,), (0, 1)]),
        ([line("s"), tree("a"), tree("b"), line("task", ["a", "b"])], [(), (0,), (0,)]),
    ],
)
def test_chains_lead_from_the_outermost_node_inwards(nodes, chains):
    assert resolve_dependencies(nodes) == chains


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "no nodes"),
        ([line("a"), line("a")], "own name"),
        ([line("s"), tree("context")], "last node is the tree 'context'"),
        ([line("s"), tree("a"), tree("b", "a"), line("t")], "'b' depends on the tree 'a'.*only"),
        ([line("s"), tree("a"), line("b", "a"), line("t")], "'b' depends on the tree 'a'.*only"),
        (
            [line("s"), line("m"), line("n"), tree("a", ["m", "n"]), line("t")],
            "do not depend on each other.*one chain",
        ),
        ([line("s"), tree("a", "x"), line("t")], "'x', which is no node.*s, a, t"),
        ([line("s"), tree("a", "b"), tree("b"), line("t")], "'b', which does not come before"),
        ([line("s"), tree("a", "a"), line("t")], "'a', which does not come before"),
        ([line("s"), tree("a"), line("t", "s")], "task 't' does not depend on 'a'"),
        ([line("s"), tree("a", ()), line("t", "a")], "task 't' does not depend on 's'"),
        ([line("s"), line("t", ())], "task 't' does not depend on 's'"),
    ],
)
def test_what_intervals_cannot_say_is_refused_and_the_choices_are_named(nodes, message):
    with pytest.raises(PromptError, match=message):
        resolve_dependencies(nodes)


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_node_needs_a_name(name):
    with pytest.raises(PromptError, match="node name"):
        LinearNode(name, "text")

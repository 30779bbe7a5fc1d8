# SPDX-License-Identifier: Apache-2.0
"""Which node of a prompt sees which: checks that one interval per token can say it.

What a node sees before it is the system, then one `LinearNode`, then perhaps another that sees
the first, and so on: a chain. Intervals cannot say that a node in the middle sees a `TreeNode`,
or two nodes that do not see each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from depcache.errors import PromptError, shorten

if TYPE_CHECKING:
    from depcache.prompt.nodes import PromptNode


def resolve_dependencies(nodes: Sequence[PromptNode]) -> list[tuple[int, ...]]:
    """For each node but the last, the LinearNodes it sees, outermost first, by number.

    Raises PromptError when names repeat, the last node is no LinearNode, or a dependency
    cannot be said by intervals; the sentence tells what can.
    """
    if not nodes:
        raise PromptError("the prompt has no nodes: it needs at least a task")
    numbers = {node.name: number for number, node in enumerate(nodes)}
    if len(numbers) != len(nodes):
        raise PromptError(
            f"the nodes are named {shorten([node.name for node in nodes])}: give each its own name"
        )
    if nodes[-1].is_tree:
        raise PromptError(
            f"the last node is the tree {nodes[-1].name!r}: "
            "end the prompt with a LinearNode, the task"
        )
    chains: list[tuple[int, ...]] = []
    for number, node in enumerate(nodes):
        is_task = number == len(nodes) - 1
        if node.depends_on is None:
            named = [0] if 0 < number and not nodes[0].is_tree else []
        else:
            named = [_find_earlier(name, numbers, node, number) for name in node.depends_on]
        if is_task:
            seen = {other for one in named for other in (one, *chains[one])}
            if node.depends_on is not None and len(seen) < number:
                unseen = next(other for other in nodes[:-1] if numbers[other.name] not in seen)
                raise PromptError(
                    f"the task {node.name!r} does not depend on {unseen.name!r}, but the last node "
                    "sees the whole prompt: leave its depends_on out, or leave that node out"
                )
            break
        for other in named:
            if nodes[other].is_tree:
                raise PromptError(
                    f"node {node.name!r} depends on the tree {nodes[other].name!r}: only the last "
                    "node can; others can depend on a LinearNode, or on nothing"
                )
        # The innermost node of a chain sees all the others.
        inner = max(named, key=lambda other: len(chains[other]), default=None)
        chain = () if inner is None else (*chains[inner], inner)
        for other in named:
            if other not in chain:
                raise PromptError(
                    f"node {node.name!r} depends on {nodes[other].name!r} and "
                    f"{nodes[max(chain)].name!r}, which do not depend on each other: "
                    "a node can depend on one chain of LinearNodes"
                )
        chains.append(chain)
    return chains


def _find_earlier(name: str, numbers: dict[str, int], node: PromptNode, number: int) -> int:
    other = numbers.get(name)
    if other is None:
        raise PromptError(
            f"node {node.name!r} depends on {shorten(name)}, which is no node: "
            f"the nodes are {', '.join(numbers)}"
        )
    if other >= number:
        raise PromptError(
            f"node {node.name!r} depends on {name!r}, which does not come before it: "
            "a node can depend on earlier nodes only"
        )
    return other

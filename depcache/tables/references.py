# SPDX-License-Identifier: Apache-2.0
"""Which tables refer to which: closures, units, components, an order with the referenced first.

An edge leads from the table that is referred to, to the one with the foreign key (TableCache,
section 4.1.1). The paper calls the graph acyclic; schemas are not. Tables that refer to each other
are one *unit*, and units have no cycles.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import networkx as nx

from depcache.tables.table import Table


class ReferenceGraph:
    """The references among some tables. Every result is ordered and depends on no input order.

    tables  names are unique; a reference to the table itself is no edge, and one to a table that is
            not among these is no edge but counted in `unknown`
    """

    def __init__(self, tables: Iterable[Table]) -> None:
        by_name = {table.name: table for table in tables}
        self.unknown: tuple[tuple[str, str], ...] = tuple(
            (name, target)
            for name in sorted(by_name)
            for target in by_name[name].references
            if target not in by_name
        )
        """(table, target) of each reference that leads nowhere."""
        self.graph = nx.DiGraph()
        self.graph.add_nodes_from(sorted(by_name))
        self.graph.add_edges_from(
            (target, name)
            for name in sorted(by_name)
            for target in by_name[name].references
            if target in by_name and target != name
        )

    @cached_property
    def units(self) -> tuple[tuple[str, ...], ...]:
        """Strongly connected tables, names ascending; a unit stands behind all it refers to.

        Where that leaves a choice, the unit whose first name is smallest comes first.
        """
        condensed = nx.condensation(self.graph)
        members = {
            number: tuple(sorted(names)) for number, names in condensed.nodes(data="members")
        }
        order = nx.lexicographical_topological_sort(condensed, key=lambda unit: members[unit][0])
        return tuple(members[number] for number in order)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """All tables, unit by unit."""
        return tuple(name for unit in self.units for name in unit)

    @cached_property
    def components(self) -> tuple[tuple[str, ...], ...]:
        """Tables that hang together, whichever way references lead, each set in `order`."""
        found = map(self.sort, nx.weakly_connected_components(self.graph))
        return tuple(sorted(found, key=min))

    @property
    def cycles(self) -> tuple[tuple[str, ...], ...]:
        """The units of more than one table."""
        return tuple(unit for unit in self.units if len(unit) > 1)

    def sort(self, names: Iterable[str]) -> tuple[str, ...]:
        """These tables, each once, in `order`. KeyError for a name that is not there."""
        return tuple(sorted(set(names), key=self._rank.__getitem__))

    def closure(self, names: Iterable[str]) -> tuple[str, ...]:
        """These tables and all they refer to, directly or not, in `order`."""
        found = set(names)
        return self.sort(found.union(*(nx.ancestors(self.graph, name) for name in found)))

    def dependents(self, names: Iterable[str]) -> tuple[str, ...]:
        """These tables and all that refer to them, directly or not, in `order`."""
        found = set(names)
        return self.sort(found.union(*(nx.descendants(self.graph, name) for name in found)))

    def level(self, name: str) -> int | None:
        """How many units stand on the longest way down to a table; None in a cycle.

        No table sees another one of its level.
        """
        return self._levels[name]

    @cached_property
    def _levels(self) -> dict[str, int | None]:
        condensed = nx.condensation(self.graph)
        levels: dict[str, int | None] = {}
        for level, units in enumerate(nx.topological_generations(condensed)):
            for unit in units:
                members = condensed.nodes[unit]["members"]
                levels |= dict.fromkeys(members, level if len(members) == 1 else None)
        return levels

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {name: rank for rank, name in enumerate(self.order)}

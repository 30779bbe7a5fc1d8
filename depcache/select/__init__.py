# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a fused request are computed again: budgets, selectors and their scores."""

from depcache.select.scored import ByScore
from depcache.select.simple import SELECTORS, num_selected, select, selectable

__all__ = ["SELECTORS", "ByScore", "num_selected", "select", "selectable"]

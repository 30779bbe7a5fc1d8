# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a fused request are computed again: budgets, selectors and their scores."""

from depcache.select.simple import SELECTORS, num_selected, select, selectable

__all__ = ["SELECTORS", "num_selected", "select", "selectable"]

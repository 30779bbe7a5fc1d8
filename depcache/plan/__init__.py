# SPDX-License-Identifier: Apache-2.0
"""What to do with each token of one request: shared, shifted or computed."""

from depcache.plan.request import RequestPlan, ShiftedRows, plan_request
from depcache.plan.segments import SegmentTable

__all__ = ["RequestPlan", "SegmentTable", "ShiftedRows", "plan_request"]

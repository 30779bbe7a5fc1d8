# SPDX-License-Identifier: Apache-2.0
"""What to do with each token of a request, in which order requests run, and what they will use."""

from depcache.plan.insertion import ContextInsertion, Duplicate, Offer
from depcache.plan.look import Look, look_up
from depcache.plan.lookahead import Lookahead
from depcache.plan.match import Match, match_segments
from depcache.plan.patch import PatchInsertion
from depcache.plan.patch_match import count_patched
from depcache.plan.request import RequestPlan, ShiftedRows, plan_request
from depcache.plan.rows import RowKind, RowTable
from depcache.plan.schedule import SCHEDULERS, Scheduler, make_scheduler
from depcache.plan.segments import SegmentTable
from depcache.plan.tail import TailInsertion

__all__ = [
    "SCHEDULERS",
    "ContextInsertion",
    "Duplicate",
    "Look",
    "Lookahead",
    "Match",
    "Offer",
    "PatchInsertion",
    "RequestPlan",
    "RowKind",
    "RowTable",
    "Scheduler",
    "SegmentTable",
    "ShiftedRows",
    "TailInsertion",
    "count_patched",
    "look_up",
    "make_scheduler",
    "match_segments",
    "plan_request",
]

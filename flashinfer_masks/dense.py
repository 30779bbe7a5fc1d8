# SPDX-License-Identifier: Apache-2.0
"""The oracle: a dense mask written from the definition of an ancestor, through `parents` alone.

Quadratic on purpose, and blind to everything `Structure.make` derives, so that an error there
shows as a difference. For tests and for looking at; the plans are `masked`, `segments`,
`cascade` and `fused`.
"""

from __future__ import annotations

import numpy as np

from flashinfer_masks.visibility import Step, Structure


def visible_ref(structure: Structure) -> np.ndarray:
    """(num_tokens, num_tokens) bool: whether token i of the prompt attends to token j.

    DepCache paper, Algorithm 1: 1 for a token and its ancestors, 0 otherwise. A joined tree sees
    also what it is joined to and all that this sees; a recomputed token everything before it.
    """
    lens, parents = structure.lens.tolist(), structure.parents.tolist()
    starts = [structure.system_len]
    for length in lens:
        starts.append(starts[-1] + length)
    mask = np.zeros((structure.num_tokens, structure.num_tokens), bool)
    mask[:, : structure.system_len] = True
    mask[starts[-1] :] = True  # the task
    joins = dict(structure.joins)
    for segment, length in enumerate(lens):
        rows = slice(starts[segment], starts[segment] + length)
        to_see = [segment]
        while to_see:
            above = to_see.pop()
            mask[rows, starts[above] : starts[above] + lens[above]] = True
            to_see += [parents[above]] if parents[above] >= 0 else joins.get(above, ())
    mask[structure.recomputed] = True
    return np.tril(mask)


def dense_mask(step: Step) -> np.ndarray:
    """bool (num_new, num_rows): may new row i attend to row j.

    Generated tokens see all before them.
    """
    num_prompt, num_rows = len(step.order), step.num_prefix + step.num_new
    size = max(num_prompt, num_rows)
    visible = np.tri(size, dtype=bool)
    visible[:num_prompt, :num_prompt] = visible_ref(step.structure)
    indices = np.concatenate((step.order, np.arange(num_prompt, size)))[:num_rows]
    return visible[np.ix_(indices[step.num_prefix :], indices)]

# SPDX-License-Identifier: Apache-2.0
"""Which checks have passed on a GPU, and what is said of the others until they have."""

from __future__ import annotations

# Numbers of the rows of eval/gpu/CHECKS.md whose outcome there is a pass: change both together.
PASSED: frozenset[int] = frozenset({1, 3, 5})
NUM_CHECKS = 8


def why_unchecked() -> str | None:
    """One sentence for whoever serves on a GPU; None when every check has passed."""
    missing = [number for number in range(1, NUM_CHECKS + 1) if number not in PASSED]
    if not missing:
        return None
    which = f"Checks {', '.join(map(str, missing))}" if PASSED else "None of the checks"
    have = "have not" if PASSED else "has"
    return (
        f"{which} of eval/gpu/CHECKS.md {have} passed on a GPU yet: compare answers with "
        "`depcache serve --stock` before you rely on them"
    )

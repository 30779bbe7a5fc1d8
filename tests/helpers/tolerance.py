# SPDX-License-Identifier: Apache-2.0
"""How close is equal: every tolerance of the tests, in one place."""

from __future__ import annotations

ORACLE_LOGPROB = 1e-4
"""Engine against the HuggingFace oracle, float32, absolute, in log-probability (promise P1)."""

STOCK_LOGPROB = 1e-5
"""Plain requests against stock SGLang, float32 (promise P5)."""

SENSITIVE_LOGPROB = 0.5
"""A wrong mask or wrong positions must move a log-probability of the test models at least this
far; otherwise a passing comparison would prove nothing."""

RTOL_BY_DTYPE = {"float32": 1e-5, "bfloat16": 1.6e-2, "float16": 2e-3}
"""Relative closeness of single tensor operations, as `torch.testing` has it."""

ATOL_BY_DTYPE = {"float32": 1e-5, "bfloat16": 1.6e-2, "float16": 2e-3}

BFLOAT16_KL_RATIO = 3.0
"""Divergence from the float32 oracle in bfloat16, over that of plain prompts on the same engine;
a wrong mask or position is worth a factor of hundreds."""

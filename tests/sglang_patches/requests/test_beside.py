# SPDX-License-Identifier: Apache-2.0
"""A request beside another goes where that one goes. Who sends it is tested in its own file."""

from __future__ import annotations

import pytest

from sglang_patches.requests.beside import make_beside

pytestmark = pytest.mark.sglang


def test_it_has_the_tenant_and_the_adapter_of_the_other() -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput

    other = GenerateReqInput(
        input_ids=[1, 2], rid="r", extra_key="t", lora_path="a", priority=3, stream=True
    )
    made = make_beside(other, "settle", [7, 8], {"max_new_tokens": 1}, return_logprob=True)
    assert (made.input_ids, made.rid, made.stream) == ([7, 8], "r/settle", False)
    assert (made.extra_key, made.lora_path, made.priority) == ("t", "a", 3)
    assert made.sampling_params == {"max_new_tokens": 1} and made.return_logprob

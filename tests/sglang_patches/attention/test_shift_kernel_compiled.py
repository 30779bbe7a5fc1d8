# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel as machine code for GPUs that this machine need not have."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = pytest.mark.sglang
triton = pytest.importorskip("triton")

ADDRESSES = ("key_addresses", "value_addresses", "sources", "targets", "homes", "placed")


def compile_kernel(
    capability: int,
    dtype: str,
    shape: tuple[int, int, int],
    *,
    is_neox: bool = True,
    alignment: int = 16,
) -> Any:
    """As at its first launch: torch's tensors begin at multiples of 16 bytes."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sglang_patches.attention.shift_kernel import _move_rows, kernel_sizes

    sizes = kernel_sizes(*shape, is_neox=is_neox, alignment=alignment)
    types = dict.fromkeys(ADDRESSES, "*i64") | {"like": f"*{dtype}", "cos_sin": "*fp32"}
    types |= {"num_rows": "i32", "table_stride": "i32"} | dict.fromkeys(sizes, "constexpr")
    names: tuple[str, ...] = tuple(_move_rows.arg_names)
    aligned = [name for name in names if types[name].startswith("*")] + ["table_stride"]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(_move_rows, {name: types[name] for name in names}, sizes, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("shape", [(8, 128, 128), (2, 96, 64), (3, 16, 8)])
def test_it_compiles(
    capability: int, dtype: str, is_neox: bool, shape: tuple[int, int, int]
) -> None:
    compiled = compile_kernel(capability, dtype, shape, is_neox=is_neox)
    assert len(compiled.asm["cubin"]) > 1000
    assert f".target sm_{capability}" in compiled.asm["ptx"]


def test_rows_are_moved_many_channels_at_a_time() -> None:
    """Llama-3-8B's rows: 2 KB of keys and of values, by 128 threads in 16 bytes or twice 8."""
    code = compile_kernel(90, "bf16", (8, 128, 128)).asm["ptx"]
    loads, stores = (re.findall(rf"\b{kind}\.global\.([\w.]+)", code) for kind in ("ld", "st"))
    assert sorted(stores) == ["v2.b32", "v2.b32", "v4.b32"]
    assert loads.count("v2.b32") == 2
    assert "b16" not in loads


def test_buffers_that_begin_anywhere_are_moved_one_channel_at_a_time() -> None:
    """A buffer that begins at an odd element may not be read 16 bytes at a time."""
    code = compile_kernel(90, "bf16", (8, 128, 128), alignment=2).asm["ptx"]
    assert set(re.findall(r"\bst\.global\.([\w.]+)", code)) == {"b16"}

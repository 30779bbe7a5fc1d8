# SPDX-License-Identifier: Apache-2.0
"""Move cached keys to other positions: turn them by the difference of two RoPE angles.

DepCache paper, section 4.1: a key rotated for its home position becomes the key of another
position by one more rotation; values carry no position. Always from the home copy, never
from a shifted copy, so that rounding does not add up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shift_keys(
    keys: Tensor,
    homes: Tensor,
    placed: Tensor,
    cos_sin: Tensor,
    *,
    rotary_dim: int,
    is_neox: bool,
) -> Tensor:
    """Cached keys, rotated from their home positions to where they are placed now.

    keys        (num_tokens, num_kv_heads, head_dim), any float dtype; not modified
    homes       (num_tokens,) int64, position each key was rotated for
    placed      (num_tokens,) int64, position it is used at
    cos_sin     (max_position, rotary_dim) the model's own table: cosines, then sines. Linear,
                Llama-3 and YaRN scaling are in the table, YaRN's attention factor too.
    rotary_dim  leading channels of the head that rotate; the rest is copied
    is_neox     channel i turns with channel i + rotary_dim // 2 (NeoX) or with i + 1 (GPT-J)

    Returns a new tensor like `keys`. Computed in float32, because bfloat16 angles lose whole
    positions at long context.
    """
    half = rotary_dim // 2
    table = cos_sin.float()
    # The table holds m * cos and m * sin, m being YaRN's attention factor (1 without it).
    # The key was scaled by m once already, so the difference of the angles must not be.
    scale = table[0, :half].square()
    cos_home, sin_home = table[homes, :half], table[homes, half:]
    cos_placed, sin_placed = table[placed, :half], table[placed, half:]
    cos = ((cos_placed * cos_home + sin_placed * sin_home) / scale).unsqueeze(1)
    sin = ((sin_placed * cos_home - cos_placed * sin_home) / scale).unsqueeze(1)

    rotary, rest = keys[..., :rotary_dim].float(), keys[..., rotary_dim:]
    if is_neox:
        low, high = rotary[..., :half], rotary[..., half:]
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    else:
        low, high = rotary[..., ::2], rotary[..., 1::2]
        turned = torch.stack((low * cos - high * sin, high * cos + low * sin), dim=-1).flatten(-2)
    return torch.cat((turned.to(keys.dtype), rest), dim=-1)


def shift_keys_ref(keys: Tensor, shift: int, inv_freq: Tensor) -> Tensor:
    """Move cached keys by `shift` positions. The oracle for `shift_keys` (NeoX pairing).

    keys      (num_tokens, num_kv_heads, head_dim), any float dtype; not modified
    shift     positions to move by; positive is later in the prompt
    inv_freq  (head_dim // 2,) float32, radians per position

    Returns a new tensor like `keys`. Moving by a and then by b equals moving by a + b, up to
    rounding. Written from the angles, not from the model's table.
    """
    angle = shift * inv_freq
    cos, sin = angle.cos(), angle.sin()
    low, high = keys.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(keys.dtype)

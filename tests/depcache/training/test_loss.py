# SPDX-License-Identifier: Apache-2.0
"""The loss, against torch's cross entropy and against its definition."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from depcache.training.samples import IGNORED

pytestmark = pytest.mark.sglang  # torch comes with the server


def test_with_one_right_token_it_is_the_cross_entropy() -> None:
    import torch

    from depcache.training.loss import losses_of

    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([3, 0, 10, 3, 7])
    right = torch.full((5, 4), IGNORED)
    right[:, 0] = labels
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(losses_of(logits, right), expected)


def test_with_several_it_is_of_all_they_have_together() -> None:
    import torch

    from depcache.training.loss import losses_of

    logits = torch.tensor([[2.0, 1.0, -1.0, 0.5]], requires_grad=True)
    p = logits.detach().softmax(-1)[0]
    [loss] = losses_of(logits, torch.tensor([[2, IGNORED, 0]]))
    torch.testing.assert_close(loss, -(p[2] + p[0]).log())
    loss.backward()
    # Both are drawn up, each by its share of what they have; the others are pushed down.
    shares = torch.tensor([p[0], 0, p[2], 0]) / (p[0] + p[2])
    torch.testing.assert_close(logits.grad, (p - shares)[None])


def test_the_mean_is_over_what_is_learned_one_token_ahead() -> None:
    import torch

    from depcache.training.loss import causal_loss, losses_of, right_tokens

    logits = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([[IGNORED, IGNORED, 5, 6], [IGNORED, 2, IGNORED, IGNORED]])
    alternatives = torch.full((2, 4, 3), IGNORED)
    alternatives[0, 3, 0] = 8
    right = right_tokens({"labels": labels, "alternatives": alternatives})
    one = losses_of(logits[0, 1:3], right[0, 2:4])
    two = losses_of(logits[1, 0:1], right[1, 1:2])
    total = one.sum() + two.sum()
    outputs = SimpleNamespace(logits=logits)
    torch.testing.assert_close(causal_loss(outputs, right), total / 3)
    torch.testing.assert_close(causal_loss(outputs, right, torch.tensor(12)), total / 12)

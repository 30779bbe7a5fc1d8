# SPDX-License-Identifier: Apache-2.0
"""What is held against a model: everything but the answers that are right.

The loss of a token is -log p of all tokens that are right in its place. With one that is the
cross entropy; with several it is the marginal likelihood of them (as of answer spans in Min et
al., "A Discrete Hard EM Approach for Weakly Supervised Question Answering", EMNLP 2019, section
3). A model that sees several right answers in no order need not guess which one was meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from depcache.training.samples import IGNORED

if TYPE_CHECKING:
    import torch


def right_tokens(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(rows, num_tokens, K) int64 of a padded batch: what is right at each place, or `IGNORED`."""
    import torch

    return torch.cat((batch["labels"][..., None], batch["alternatives"]), -1)


def losses_of(logits: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """(N,) float32, -log p of what is right.

    logits  (N, vocab_size)
    right   (N, K) int64, the right tokens of each, in any order; `IGNORED` fills up
    """
    log_p = logits.float().log_softmax(-1).gather(1, right.clamp(min=0))
    return -log_p.masked_fill(right == IGNORED, float("-inf")).logsumexp(1)


def causal_loss(
    outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
) -> torch.Tensor:
    """The mean over learned tokens, for `Trainer(compute_loss_func=...)`.

    outputs  of a language model, with `logits` (rows, num_tokens, vocab_size)
    labels   (rows, num_tokens, K) int64, as `right_tokens` has them
    num_items_in_batch  tokens that are learned in the whole step, over which to take the mean;
             None: those of this batch
    """
    right = labels[:, 1:]
    learned = right[..., 0] != IGNORED
    losses = losses_of(outputs.logits[:, :-1][learned], right[learned])
    return losses.mean() if num_items_in_batch is None else losses.sum() / num_items_in_batch

# SPDX-License-Identifier: Apache-2.0
"""The oracle of fused requests: two passes of HuggingFace in float32, sharing no code with us.

Pass A computes the context as layout `tree` does, every token over its ancestors. Its keys are
turned to where the tokens sit in the fused prompt, at their index. Trees that stand behind tokens
of no prompt see these in pass A, which have no KV in pass B. What stands behind several chunks is
computed over their KV, each alone and turned to where it follows the one before (FusionRAG, eq.
10). Pass B computes the chosen tokens, the task and the answer, each over all that stands before
it: stale KV of the chosen tokens is left out, the new KV takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from depcache.select.focus import find_focus
from tests.helpers.oracle import Oracle, turn
from tests.helpers.prompts import TreePrompt, grow

Behind = list[Any]
"""Per tree the tokens that it stands behind, a list of the tokens of several chunks, or None."""


def is_several(entry: list[Any] | None) -> bool:
    return entry is not None and isinstance(entry[0], list)


@dataclass(slots=True)
class FusedPrompt(TreePrompt):
    """A prompt whose request is fused, as `asked` says: keys of the wire without their prefix."""

    asked: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def behind(self) -> Behind:
        """Per tree the tokens that it stands behind, or those of several chunks."""
        return self.asked.get("behind") or [None] * len(self.trees)

    def params(self) -> dict[str, Any] | None:
        params = TreePrompt.params(self)
        assert params is not None
        return {
            **params,
            "depcache_version": 2,
            "depcache_layout": "sequential",
            "depcache_see": "fused",
            **{f"depcache_{name}": value for name, value in self.asked.items()},
        }


def fuse(prompt: TreePrompt, chosen: list[int] | None = None, **asked: Any) -> FusedPrompt:
    """The same prompt, fused; pinned, unless `asked` says otherwise.

    chosen  indices of the tokens that are computed again; None leaves it to a selector
    """
    if chosen is not None:
        asked = {"select": "given", "selected": chosen, **asked}
    return FusedPrompt(prompt.system, prompt.trees, prompt.task, asked={"pin": True, **asked})


class FusedOracle:
    """Recomputes both passes for every answer."""

    def __init__(self, oracle: Oracle) -> None:
        self.model = oracle.model
        self.inv_freq: torch.Tensor = self.model.model.rotary_emb.inv_freq.float()

    @torch.no_grad()
    def score(
        self,
        prompt: TreePrompt,
        chosen: list[int],
        answer: list[int],
        behind: Behind | None = None,
    ) -> torch.Tensor:
        """(len(answer), vocab_size) float32 log-probabilities of each token of the answer.

        prompt  in layout `tree`
        chosen  indices of the context tokens that are computed again
        behind  per tree the tokens, or the chunks, that it stands behind; None for none
        """
        kept = np.setdiff1d(np.arange(prompt.num_context), chosen)
        cache = self._reused(prompt, kept, behind)
        tokens = np.array(prompt.tokens + answer[:-1])
        new = np.setdiff1d(np.arange(len(tokens)), kept)
        seen = np.concatenate((kept, new))
        logits = self._run(
            tokens[new].tolist(), torch.from_numpy(new), seen[None, :] <= new[:, None], cache
        )
        return torch.log_softmax(logits[-len(answer) :].float(), dim=-1)

    @torch.no_grad()
    def scores(
        self,
        prompt: TreePrompt,
        layer: int = -1,
        *,
        in_context: bool = False,
        behind: Behind | None = None,
    ) -> np.ndarray:
        """What the task gives each token of the context behind the system in a layer, float64.

        Below this layer the task sees the system and itself. In it, it sees the reused context and
        nothing else, so that HuggingFace's own softmax is over that.

        in_context  the task sees everything before it instead, in all layers
        behind      as for `score`
        """
        start, stop = len(prompt.system), prompt.num_context
        cache = self._reused(prompt, np.arange(stop), behind)
        num_task = len(prompt.task)
        seen = np.concatenate(
            (np.ones((num_task, stop), bool), np.tri(num_task, dtype=bool)), axis=1
        )
        seen[:, start:stop] = in_context
        in_last = np.zeros_like(seen)
        in_last[:, start:stop] = True
        weights: list[torch.Tensor] = []

        def look(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, "attention_mask": _additive(in_last)}

        def keep(module: Any, args: Any, output: Any) -> None:
            weights.append(output[1][0])

        attention = self.model.model.layers[layer].self_attn
        hooks = [attention.register_forward_hook(keep)]
        if not in_context:
            hooks.append(attention.register_forward_pre_hook(look, with_kwargs=True))
        try:
            positions = torch.arange(stop, prompt.num_tokens)
            self._run(prompt.task, positions, seen, cache)
        finally:
            for hook in hooks:
                hook.remove()
        [of_heads] = weights
        return of_heads.double().sum((0, 1))[start:stop].numpy()

    @torch.no_grad()
    def deviations(self, prompt: TreePrompt, behind: Behind | None = None) -> np.ndarray:
        """How far the reused keys of the second layer lie from those under full view, float64.

        Squares, summed over heads and channels, of each token of the context behind the system.

        behind  as for `score`
        """
        start, stop = len(prompt.system), prompt.num_context
        whole: Any = DynamicCache()
        tokens = prompt.tokens[:stop]
        self._run(tokens, torch.arange(stop), np.tri(stop, dtype=bool), whole)
        reused: Any = self._reused(prompt, np.arange(stop), behind)
        differ = (whole.layers[1].keys - reused.layers[1].keys)[0].double()
        return differ.square().sum((0, 2))[start:].numpy()

    def choose(
        self,
        prompt: TreePrompt,
        share: float,
        select: str = "query",
        behind: Behind | None = None,
    ) -> tuple[list[int], np.ndarray]:
        """The indices of the highest scores, and the scores by index; the system has none.

        share   of the context
        select  `mixed` gives half of it, rounded down, to the first tokens of the trees
        behind  as for `score`
        """
        part = 0.5 if select == "mixed" else 0.0
        start, stop = len(prompt.system), prompt.num_context
        mask = _seen(prompt, behind)
        free = [index for index in range(start, stop) if not mask[index, : index + 1].all()]
        num = min(max(1, round(share * (stop - start))), len(free))
        roots = np.flatnonzero(np.array(prompt.segment_parents) < 0)
        firsts = start + (np.cumsum(prompt.segment_lens) - prompt.segment_lens)[roots]
        within = {index: index - max(firsts[firsts <= index]) for index in free}
        taken = sorted(free, key=lambda index: (within[index], index))[: int(part * num)]
        ways = {
            "query-context": lambda: self.scores(prompt, in_context=True, behind=behind),
            "deviation": lambda: self.deviations(prompt, behind),
        }
        found = ways.get(select, lambda: self.scores(prompt, behind=behind))()
        scores = np.concatenate((np.zeros(start), found))
        others = sorted(set(free) - set(taken), key=lambda index: (-scores[index], index))
        return sorted(taken + others[: num - len(taken)]), scores

    def choose_in_focus(
        self,
        prompt: TreePrompt,
        chosen: list[int],
        *,
        in_context: bool = False,
        behind: Behind | None = None,
    ) -> list[int]:
        """Those of `chosen` that lie in trees which the question focuses on.

        in_context, behind  as in `scores`
        """
        start, stop = len(prompt.system), prompt.num_context
        roots = np.flatnonzero(np.array(prompt.segment_parents) < 0)
        firsts = start + (np.cumsum(prompt.segment_lens) - prompt.segment_lens)[roots]
        tree_of = np.searchsorted(firsts, np.arange(start, stop), side="right") - 1
        masses = np.array(
            [
                np.bincount(
                    tree_of,
                    weights=self.scores(prompt, layer, in_context=in_context, behind=behind),
                )
                for layer in range(len(self.model.model.layers))
            ],
            np.float64,
        )
        focus = find_focus(masses).chunks
        return [index for index in chosen if tree_of[index - start] in focus]

    def _reused(
        self, prompt: TreePrompt, kept: np.ndarray, behind: Behind | None = None
    ) -> DynamicCache:
        """KV of the context in layout `tree`, at `kept` (K,), turned to where these stand."""
        assert prompt.layout == "tree"
        rows = behind or [None] * len(prompt.trees)
        several = [is_several(entry) for entry in rows]
        grown, own = grow(
            prompt, [None if is_so else e for e, is_so in zip(rows, several, strict=True)]
        )
        homes = torch.tensor(grown.positions[: grown.num_context])
        alone: Any = DynamicCache()
        mask = grown.mask()[: grown.num_context, : grown.num_context]
        self._run(grown.tokens[: grown.num_context], homes, mask, alone)
        for row, chunks in enumerate(rows):
            if chunks is not None and several[row]:
                self._put_behind(prompt, row, chunks, alone, homes, own)
        old = np.array(own)[kept]
        cache = DynamicCache()
        for layer, entry in enumerate(alone.layers):
            keys = turn(entry.keys[:, :, old], homes[old], torch.from_numpy(kept), self.inv_freq)
            cache.update(keys, entry.values[:, :, old], layer)
        return cache

    def _put_behind(
        self,
        prompt: TreePrompt,
        row: int,
        chunks: list[list[int]],
        alone: Any,
        homes: torch.Tensor,
        own: list[int],
    ) -> None:
        """Puts KV and positions of a row behind `chunks` in the place of those it has alone."""
        tokens = prompt.trees[row][0]
        stop = num_system = len(prompt.system)
        before: Any = DynamicCache()
        for chunk in chunks:
            one: Any = DynamicCache()
            length = num_system + len(chunk)
            self._run(prompt.system + chunk, torch.arange(length), np.tri(length, dtype=bool), one)
            new = torch.arange(num_system, length)
            first = stop == num_system
            for layer, entry in enumerate(one.layers):
                keys = turn(entry.keys[:, :, new], new, new - num_system + stop, self.inv_freq)
                values = entry.values[:, :, new]
                if first:
                    keys = torch.cat((entry.keys[:, :, :num_system], keys), 2)
                    values = torch.cat((entry.values[:, :, :num_system], values), 2)
                before.update(keys, values, layer)
            stop += len(chunk)
        at = torch.arange(stop, stop + len(tokens))
        mask = np.tri(len(tokens), stop + len(tokens), stop, dtype=bool)
        self._run(tokens, at, mask, before)
        start = num_system + sum(len(tree[0]) for tree in prompt.trees[:row])
        place = own[start : start + len(tokens)]
        homes[place] = at
        for entry, done in zip(alone.layers, before.layers, strict=True):
            entry.keys[:, :, place] = done.keys[:, :, stop:]
            entry.values[:, :, place] = done.values[:, :, stop:]

    def _run(
        self, tokens: list[int], positions: torch.Tensor, mask: np.ndarray, cache: DynamicCache
    ) -> torch.Tensor:
        return self.model(
            input_ids=torch.tensor([tokens]),
            position_ids=positions[None],
            attention_mask=_additive(mask),
            past_key_values=cache,
            use_cache=True,
        ).logits[0]


def _seen(prompt: TreePrompt, behind: Behind | None) -> np.ndarray:
    """(num_tokens, num_tokens) bool: which tokens before it each has seen as they stand here."""
    mask = prompt.mask()
    start, context = len(prompt.system), prompt.tokens[: prompt.num_context]
    for tree, entry in zip(prompt.trees, behind or [None] * len(prompt.trees), strict=True):
        stop = start + len(TreePrompt([], [tree], []).tokens)
        if entry is not None:
            is_same = entry == context[len(prompt.system) : start]
            mask[start:stop, len(prompt.system) : start] = is_same
            if not is_same:  # it has seen what is not there
                mask[start:stop, 0] = False
        start = stop
    return mask


def _additive(mask: np.ndarray) -> torch.Tensor:
    hidden = torch.from_numpy(~mask)
    additive = torch.zeros(mask.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    return additive[None, None]

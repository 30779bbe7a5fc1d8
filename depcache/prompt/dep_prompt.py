# SPDX-License-Identifier: Apache-2.0
"""DepPrompt: a prompt that knows which of its tokens depend on which.

By default the context depends on the system and the task, which is the last node, on everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from depcache.errors import PromptError
from depcache.prompt.behind import encode_behind
from depcache.prompt.chunks import CHUNK_SEPARATOR, join_chunks, list_chunks, place_behind
from depcache.prompt.dependencies import resolve_dependencies
from depcache.prompt.forest import Forest, IntArray, find_twins
from depcache.prompt.layout import Layout, read_layout, token_positions
from depcache.prompt.nodes import Content, LinearNode, PromptNode, TreeNode
from depcache.prompt.outline import Outline
from depcache.prompt.outline_context import hang, join_elements
from depcache.prompt.prefix_tree import Context, merge_sequences
from depcache.prompt.recompute import Recompute
from depcache.prompt.seen_rows import Joins
from depcache.prompt.template import Template
from depcache.prompt.tokenization import PromptTokenizer, get_prompt_tokenizer
from depcache.prompt.wire import (
    WireIds,
    forest_from_wire,
    parse_wire,
    read_input_ids,
)
from flashinfer_masks.dense import visible_ref


@dataclass(frozen=True)
class Segment:
    """One segment, to show it to a person.

    start, stop  its tokens, `[start, stop)` in pre-order
    parent       number of the parent segment; -1 is a root
    text         its tokens decoded; None without a tokenizer that decodes. A segment may begin
                 or end inside a character, which then reads as U+FFFD.
    """

    start: int
    stop: int
    parent: int
    text: str | None


@dataclass(frozen=True, eq=False, repr=False)
class DepPrompt:
    """Tokens of a prompt in pre-order and the forest that says who depends on whom.

    forest           the structure
    tokens           (num_tokens,) int64, in pre-order; read-only
    layout           position layout of the request
    num_flat_tokens  tokens of the same prompt as flat text, with every shared prefix repeated
    context_nodes    the nodes that the context came from; () when it came from the wire
    tokenizer        what `segments` decodes with; None shows no text
    recompute        which share is computed again with full view; None for none

    Made by `from_paths` (the usual three nodes), `from_nodes`, `from_outline` and `from_wire`.

    The separator that every line of the context starts with ("\\n") counts to the system, when
    a tokenizer keeps it apart, as most do: it would be the one root of all entities, and there
    would be one tree instead of one per entity. Visibility and the positions of layout `tree`
    are the same either way, since all of the context sees it.
    """

    forest: Forest
    tokens: IntArray
    layout: Layout
    num_flat_tokens: int
    context_nodes: tuple[PromptNode, ...]
    tokenizer: PromptTokenizer | None
    recompute: Recompute | None = None

    @classmethod
    def from_nodes(
        cls,
        nodes: Sequence[PromptNode],
        *,
        tokenizer: Any = None,
        layout: Layout = "tree",
        add_special_tokens: bool = False,
    ) -> DepPrompt:
        """The prompt of these nodes; the last one is the task.

        tokenizer           anything `PromptTokenizer` takes; may be left out when all is ids
        add_special_tokens  put the tokenizer's leading special tokens (BOS) before the prompt;
                            leave it off when the text comes from a chat template that writes
                            them

        The first node is the system if all the others see it; the rest keep their order, except
        that what depends on a node comes right behind it. Raises PromptError when the nodes make
        no prompt.
        """
        layout = read_layout(layout)
        if tokenizer is not None:
            tokenizer = get_prompt_tokenizer(tokenizer)
        nodes = list(nodes)
        chains = resolve_dependencies(nodes)

        system: list[int] = []
        if add_special_tokens:
            if tokenizer is None:
                raise PromptError("add_special_tokens needs a tokenizer: pass one")
            system = tokenizer.leading_special_ids()
        encoded = _encode(nodes, tokenizer)
        # The first node is the system if all the others see it.
        has_system = (
            len(nodes) > 1 and not nodes[0].is_tree and all(0 in seen for seen in chains[1:])
        )
        if has_system:
            system += _join(encoded[0])
        task = _join(encoded[-1])
        if not task:
            raise PromptError("the task has no tokens: the last node must hold at least one")

        sequences: list[list[int]] = []
        num_flat_tokens = len(system) + len(task)
        for number, seen in enumerate(chains):
            if has_system and number == 0:
                continue
            own = encoded[number]
            num_flat_tokens += sum(map(len, own))
            inner = seen[1:] if has_system else seen
            before = [token for other in inner for token in _join(encoded[other])]
            sequences += [before + sequence for sequence in own] if before else own
        leads = {node.lead for node in nodes if node.lead is not None}
        if tokenizer is not None and len(leads) == 1:
            system, sequences = _cut_lead(system, sequences, tokenizer, leads.pop())

        return cls._join(
            system,
            merge_sequences(sequences),
            task,
            layout=layout,
            num_flat_tokens=num_flat_tokens,
            context_nodes=tuple(node for node in nodes if node.is_tree),
            tokenizer=tokenizer,
        )

    @classmethod
    def from_paths(
        cls,
        paths: Iterable[Any],
        *,
        tokenizer: Any,
        system: Content = "",
        task: Content = "",
        template: str | Template = "path",
        layout: Layout = "tree",
        add_special_tokens: bool = False,
    ) -> DepPrompt:
        """system | context | task, the context being `paths`; see `from_nodes` and `read_paths`.

        An empty `system` and an empty list of paths are allowed; the task needs a token.
        """
        nodes = [
            LinearNode("system", system),
            TreeNode("context", paths, template),
            LinearNode("task", task),
        ]
        return cls.from_nodes(
            nodes, tokenizer=tokenizer, layout=layout, add_special_tokens=add_special_tokens
        )

    @classmethod
    def from_outline(
        cls,
        text: str,
        outline: Outline,
        *,
        tokenizer: Any,
        layout: Layout = "tree",
        add_special_tokens: bool = False,
        closing: Sequence[int] = (),
    ) -> DepPrompt:
        """The prompt of `text`, as it is after the chat template.

        outline  its context; what stands before is the system, what stands behind is the task
        closing  tokens that go behind each row of one element

        The other arguments are those of `from_nodes`. Special tokens count in system and task
        alone. Raises PromptError when the outline does not fit the text, an element has no token,
        or the task has none.
        """
        tokenizer = get_prompt_tokenizer(tokenizer)
        layout = read_layout(layout)
        pieces = outline.pieces(text)
        lead = outline.lead_of(pieces) if outline.merge and outline.lead else ""
        before, behind = text[: outline.start], text[outline.stop :]
        system = tokenizer.encode_text(before, first=True)
        rows = join_elements(tokenizer.encode_elements(pieces), outline.rows, closing)
        task = tokenizer.encode_text(behind)
        if not task:
            raise PromptError("the task has no tokens: let some text follow the facts")
        if add_special_tokens:
            system = tokenizer.leading_special_ids() + system
        num_flat_tokens = len(system) + sum(map(len, rows)) + len(task)
        if outline.merge:
            system, rows = _cut_lead(system, rows, tokenizer, lead)
        context, joins = hang(rows, outline)
        return cls._join(
            system,
            context,
            task,
            joins,
            layout=layout,
            num_flat_tokens=num_flat_tokens,
            context_nodes=(),
            tokenizer=tokenizer,
        )

    @classmethod
    def from_chunks(
        cls,
        chunks: Iterable[str],
        *,
        tokenizer: Any,
        system: str = "",
        task: str = "",
        separator: str = CHUNK_SEPARATOR,
        recompute: float | Recompute | None = None,
        behind: Iterable[str | Sequence[str] | None] | None = None,
        layout: Layout = "tree",
        add_special_tokens: bool = False,
    ) -> DepPrompt:
        """system | chunks | task: pieces of text that do not see each other.

        chunks     text, in order; of equal ones the first. Each is encoded with `separator` before
                   it, so its tokens depend on no neighbour
        recompute  None reuses them as they are; a share computes so many tokens again with full
                   view, and the layout is `sequential`
        behind     what each chunk stands behind, as for `depcache.render_chunks`

        The other arguments are those of `from_nodes`. Raises PromptError for an empty chunk.
        """
        chunks = list_chunks(chunks)
        context, lens = join_chunks(chunks, separator)
        if behind is not None:
            ids = encode_behind(place_behind(chunks, behind, separator), tokenizer)
            recompute = Recompute.stand(recompute, ids)
        prompt = cls.from_outline(
            system + context + task,
            Outline(len(system), lens, (1,) * len(lens)),
            tokenizer=tokenizer,
            layout=Recompute.layout(layout, recompute),
            add_special_tokens=add_special_tokens,
        )
        return prompt if recompute is None else replace(prompt, recompute=Recompute.read(recompute))

    @classmethod
    def _join(
        cls,
        system: list[int],
        context: Context,
        task: list[int],
        joins: Joins | None = None,
        **fields: Any,
    ) -> DepPrompt:
        """The prompt of its three parts."""
        own, lens, parents = context
        tokens = np.array(system + own + task, np.int64)
        tokens.flags.writeable = False
        forest = Forest.make(len(tokens), len(system), lens, parents, joins)
        return cls(forest=forest, tokens=tokens, **fields)

    @classmethod
    def from_wire(
        cls, input_ids: Any, custom_params: Mapping[str, Any], *, tokenizer: Any = None
    ) -> DepPrompt:
        """The prompt that `to_wire` wrote; `tokenizer` is only for the text of `segments`.

        Raises PromptError when the parameters are malformed, are no ids form or do not fit
        the ids. Its `num_flat_tokens` counts the ways to the leaves.
        """
        wire = parse_wire(custom_params)
        if not isinstance(wire, WireIds):
            form = "no depcache_ keys" if wire is None else "data beside a text"
            raise PromptError(f"custom_params has {form}: DepPrompt.from_wire reads the ids form")
        tokens = read_input_ids(input_ids)
        forest = forest_from_wire(tokens, wire)
        tokens.flags.writeable = False
        leaves = np.setdiff1d(np.arange(forest.num_segments), forest.parents)
        depths = forest.depths - forest.depths[forest.structure.roots[forest.trees]]  # in its tree
        path_lens = (depths + forest.lens)[leaves]
        return cls(
            forest=forest,
            tokens=tokens,
            layout=wire.layout,
            num_flat_tokens=forest.num_tokens - forest.context_len + int(path_lens.sum()),
            context_nodes=(),
            tokenizer=None if tokenizer is None else get_prompt_tokenizer(tokenizer),
            recompute=wire.recompute,
        )

    def to_wire(self) -> tuple[list[int], dict[str, Any]]:
        """`input_ids` and `custom_params` of a request: the ids form.

        Version 1, unless segments with one parent begin alike, roots see other segments, or some
        tokens are recomputed.
        """
        joins = self.forest.structure.joins
        is_first = self.recompute is None and find_twins(self.tokens, self.forest) is None
        wire = WireIds(
            depcache_version=1 if is_first and not joins else 2,
            depcache_layout=self.layout,
            depcache_system_len=self.forest.system_len,
            depcache_segment_lens=self.forest.lens.tolist(),
            depcache_segment_parents=self.forest.parents.tolist(),
            depcache_segment_joins=[[root, *seen] for root, seen in joins],
        )
        fused = {} if self.recompute is None else self.recompute.to_params()
        return self.tokens.tolist(), {**wire.to_params(), **fused}

    @property
    def num_tokens(self) -> int:
        return self.forest.num_tokens

    @cached_property
    def positions(self) -> IntArray:
        """(num_tokens,) int64: RoPE position of each token in this prompt's layout; read-only."""
        positions = token_positions(self.forest, self.layout)
        positions.flags.writeable = False
        return positions

    @cached_property
    def flat_text(self) -> str:
        """The context as plain text, prefixes repeated; "" when the prompt came from the wire."""
        return "".join(node.flat_text for node in self.context_nodes)

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments in pre-order, with their text."""
        forest = self.forest
        spans = zip(
            forest.starts.tolist(), forest.stops.tolist(), forest.parents.tolist(), strict=True
        )
        decode = self.tokenizer.decode if self.tokenizer else lambda ids: None
        return [
            Segment(start, stop, parent, decode(self.tokens[start:stop].tolist()))
            for start, stop, parent in spans
        ]

    def compute_attention_mask(self) -> NDArray[np.bool_]:
        """(num_tokens, num_tokens) bool: the dense mask, quadratic; to look at and to test with."""
        return visible_ref(self.forest.structure)

    def __repr__(self) -> str:
        forest = self.forest
        return (
            f"DepPrompt(system={forest.system_len}, context={forest.context_len} in "
            f"{forest.num_segments} segments and {forest.num_trees} trees, "
            f"task={forest.task_len}, layout={self.layout!r})"
        )


def _encode(
    nodes: Sequence[PromptNode], tokenizer: PromptTokenizer | None
) -> list[list[list[int]]]:
    """Returns the sequences of each node."""
    encoded: list[list[list[int]]] = []
    for node in nodes:
        is_first = not any(map(_join, encoded))
        encoded.append(node.encode(tokenizer, first=is_first))
    return encoded


def _join(sequences: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(sequences))


def _cut_lead(
    system: list[int], sequences: list[list[int]], tokenizer: PromptTokenizer, lead: str
) -> tuple[list[int], list[list[int]]]:
    """Move the separator that starts every line to the system, if it has tokens of its own."""
    ids = list(tokenizer.encode_lead(lead)) if lead else []
    num_ids = len(ids)
    if ids and all(len(s) > num_ids and s[:num_ids] == ids for s in sequences):
        return system + ids, [sequence[num_ids:] for sequence in sequences]
    return system, sequences

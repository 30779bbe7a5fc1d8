# SPDX-License-Identifier: Apache-2.0
"""DepPrompt: from paths and nodes to tokens and a forest, and there and back over the wire."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.errors import PromptError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.layout import LAYOUTS, token_positions
from depcache.prompt.nodes import LinearNode, TreeNode
from depcache.prompt.paths import read_paths
from depcache.prompt.template import get_template
from depcache.prompt.tokenization import PromptTokenizer
from flashinfer_masks import visible_ref
from tests.depcache.prompt.make import (
    byte_tokenizer,
    make_bpe,
    make_huggingface,
    make_sentencepiece_like,
    merge_sequences_ref,
    read_segments,
)

PATHS = [
    ("Elon Musk", "founded", "SpaceX", "located in", "Hawthorne"),
    ("Ada Lovelace", "wrote about", "Analytical Engine"),
    ("Elon Musk", "founded", "SpaceX", "launched", "Falcon 9"),
    ("Elon Musk", "founded", "SpaceX"),
    ("Ada Lovelace", "wrote about", "Analytical Engine"),
]
SYSTEM, TASK = "Answer.", "\n\nQuestion: who?"

NAMES = st.sampled_from(["a", "ab", "abc", "b", "{e}", "é", "\n", "</s>x", "- >", "🚀"])
ANY_PATHS = st.lists(st.lists(NAMES.filter(str.strip), min_size=1, max_size=5), max_size=10)
TEMPLATE_NAMES = st.sampled_from(["path", "triple"])


def test_system_context_and_task_lie_in_pre_order_and_prefixes_are_shared():
    prompt = DepPrompt.from_paths(PATHS, tokenizer=make_bpe(), system=SYSTEM, task=TASK)
    texts = [segment.text for segment in prompt.segments]
    parents = [segment.parent for segment in prompt.segments]
    # Each entity is the root of one tree: the newline before it counts to the system.
    roots = [text for text, parent in zip(texts, parents, strict=True) if parent == -1]
    assert len(roots) == prompt.forest.num_trees == 2
    assert roots[0] == "Elon Musk -> founded -> SpaceX ->"
    assert roots[1] == "Ada Lovelace -> wrote about -> Analytical Engine"
    whole = PromptTokenizer(make_bpe()).decode(prompt.tokens.tolist())
    assert whole is not None
    assert whole.startswith(SYSTEM + "\nElon Musk")
    assert whole.endswith("Analytical Engine" + TASK)
    assert whole.count("SpaceX") == 1
    assert prompt.tokens.dtype == np.int64


@given(ANY_PATHS, TEMPLATE_NAMES, st.text(max_size=3))
def test_the_context_is_the_token_trie_of_the_paths(paths, name, system):
    prompt = DepPrompt.from_paths(
        paths, tokenizer=byte_tokenizer, system=system, task="t", template=name
    )
    template = get_template(name)
    lines = template.lines(read_paths(paths))
    sequences = [list(template.flatten([line]).encode()) for line in lines]
    num_lead = 1 if sequences else 0  # "\n" counts to the system
    expected = merge_sequences_ref([sequence[num_lead:] for sequence in sequences])
    tokens = prompt.tokens.tolist()
    assert read_segments(prompt.forest, tokens) == expected
    assert bytes(tokens[: prompt.forest.system_len]).decode() == system + "\n" * num_lead
    assert tokens[prompt.forest.task_start :] == [ord("t")]
    assert prompt.num_flat_tokens == len(system.encode()) + sum(map(len, sequences)) + 1
    assert prompt.flat_text == template.flatten(read_paths(paths))


@given(ANY_PATHS, TEMPLATE_NAMES, st.randoms(use_true_random=False))
def test_the_set_of_segments_does_not_depend_on_order_or_duplicates(paths, name, random):
    def build(some: list[list[str]]) -> DepPrompt:
        return DepPrompt.from_paths(some, tokenizer=make_bpe(), system="s", task="t", template=name)

    shuffled = paths + paths[:2]
    random.shuffle(shuffled)
    one, other = build(paths), build(shuffled)
    assert one.num_tokens == other.num_tokens
    assert set(read_segments(one.forest, one.tokens.tolist())) == set(
        read_segments(other.forest, other.tokens.tolist())
    )


@given(ANY_PATHS)
def test_every_path_can_be_read_back_from_the_forest(paths):
    prompt_tokenizer = PromptTokenizer(make_bpe())
    prompt = DepPrompt.from_paths(paths, tokenizer=prompt_tokenizer, system="s", task="t")
    forest, tokens = prompt.forest, prompt.tokens.tolist()
    lead = tokens[1 : forest.system_len]
    ways = [
        prompt_tokenizer.decode([*lead, *before, *run])
        for before, run in read_segments(forest, tokens)
    ]
    template = get_template("path")
    for path in paths:
        line = template.flatten([tuple(path)])
        assert any(way is not None and way.startswith(line) for way in ways)


@given(ANY_PATHS, st.sampled_from(LAYOUTS))
def test_the_wire_brings_the_same_prompt_back(paths, layout):
    prompt = DepPrompt.from_paths(paths, tokenizer=make_bpe(), system="s", task="t", layout=layout)
    input_ids, params = json.loads(json.dumps(prompt.to_wire()))
    back = DepPrompt.from_wire(input_ids, {**params, "other": object()})
    assert back.layout == layout
    assert np.array_equal(back.tokens, prompt.tokens)
    assert np.array_equal(back.positions, prompt.positions)
    for name in ("num_tokens", "system_len"):
        assert getattr(back.forest, name) == getattr(prompt.forest, name)
    for name in ("lens", "parents", "starts", "subtree_stops", "depths", "trees"):
        assert np.array_equal(getattr(back.forest, name), getattr(prompt.forest, name))


def test_mask_and_positions_are_those_of_the_forest():
    prompt = DepPrompt.from_paths(PATHS, tokenizer=make_bpe(), task=TASK, layout="staggered")
    assert np.array_equal(prompt.compute_attention_mask(), visible_ref(prompt.forest.structure))
    assert np.array_equal(prompt.positions, token_positions(prompt.forest, "staggered"))


def test_no_paths_and_no_system_leave_the_task():
    prompt = DepPrompt.from_paths([], tokenizer=make_bpe(), task="Elon")
    assert (prompt.forest.system_len, prompt.forest.num_segments) == (0, 0)
    assert prompt.tokens.tolist() == make_bpe().encode("Elon", add_special_tokens=False).ids
    assert (prompt.num_flat_tokens, prompt.flat_text) == (prompt.num_tokens, "")
    input_ids, params = prompt.to_wire()
    assert DepPrompt.from_wire(input_ids, params).forest.num_segments == 0


@pytest.mark.parametrize("task", ["", [], np.array([], np.int64)])
def test_an_empty_task_is_refused(task):
    with pytest.raises(PromptError, match="task has no tokens"):
        DepPrompt.from_paths(PATHS, tokenizer=make_bpe(), system="s", task=task)


def test_system_and_task_may_be_ids():
    prompt = DepPrompt.from_paths(
        [("a",)], tokenizer=byte_tokenizer, system=np.array([7, 8]), task=[9]
    )
    assert prompt.tokens.tolist() == [7, 8, ord("\n"), ord("a"), 9]
    assert prompt.forest.system_len == 3


@pytest.mark.parametrize("ids", [[1.0], [True], ["a"], [-1], [2**31], np.array([1.5]), [[1]]])
def test_what_are_no_token_ids_is_refused(ids):
    with pytest.raises(PromptError, match="ids of node 'system'"):
        DepPrompt.from_paths([], tokenizer=make_bpe(), system=ids, task="t")


@pytest.mark.parametrize("make", [make_bpe, make_huggingface])
def test_the_system_honours_special_tokens_and_the_context_does_not(make):
    prompt = DepPrompt.from_paths(
        [("<s>", "</s>", "<|im_start|>")],
        tokenizer=make(),
        system="<|im_start|>",
        task="<|im_end|>",
    )
    assert prompt.tokens[0] == 2
    assert prompt.tokens[-1] == 3
    assert not set(prompt.tokens[1:-1].tolist()) & {0, 1, 2, 3}


def test_add_special_tokens_puts_only_the_leading_ones_before_the_prompt():
    for system in ("", "Answer."):
        prompt = DepPrompt.from_paths(
            PATHS, tokenizer=make_bpe(), system=system, task="t", add_special_tokens=True
        )
        plain = DepPrompt.from_paths(PATHS, tokenizer=make_bpe(), system=system, task="t")
        assert prompt.tokens.tolist() == [0, *plain.tokens.tolist()]
        assert prompt.forest.system_len == plain.forest.system_len + 1
        assert prompt.num_flat_tokens == plain.num_flat_tokens + 1


def test_only_the_first_text_of_a_prompt_gets_the_space_of_sentencepiece():
    tokenizer = make_sentencepiece_like("prepend")
    starts = []
    for system in ("", "Answer."):
        prompt = DepPrompt.from_paths([], tokenizer=tokenizer, system=system, task="Question")
        text = "".join(map(tokenizer.id_to_token, prompt.tokens.tolist()))
        starts.append((text[0], text.count("▁")))
    assert starts == [("▁", 1), ("▁", 1)]


def test_an_instance_does_not_change():
    prompt = DepPrompt.from_paths(PATHS, tokenizer=make_bpe(), task=TASK)
    for array in (prompt.tokens, prompt.positions, prompt.forest.lens):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        prompt.layout = "tree"  # pyright: ignore[reportAttributeAccessIssue]


def test_from_wire_reads_the_ids_form_only():
    text = {"depcache_version": 1, "depcache_paths": '[["a"]]'}
    for params, message in [({}, "no depcache_ keys"), (text, "data beside a text")]:
        with pytest.raises(PromptError, match=message):
            DepPrompt.from_wire([1], params)


def test_segments_have_text_only_with_a_tokenizer_that_decodes():
    paths = [("a", "r", "b")]
    assert DepPrompt.from_paths(paths, tokenizer=byte_tokenizer, task="t").segments[0].text is None
    built = DepPrompt.from_paths(paths, tokenizer=make_bpe(), task="t")
    input_ids, params = built.to_wire()
    assert DepPrompt.from_wire(input_ids, params).segments[0].text is None
    read = DepPrompt.from_wire(input_ids, params, tokenizer=make_bpe())
    assert read.segments == built.segments
    assert built.segments[0].text == "a -> r -> b"


# Nodes with other dependencies


def tree(name: str = "context", **options) -> TreeNode:
    return TreeNode(name, [("a", "r", "b"), ("a", "s", "c")], **options)


def seen_by(prompt: DepPrompt, index: int) -> str:
    """The text that one token sees, with the byte tokenizer."""
    row = prompt.compute_attention_mask()[index]
    return bytes(prompt.tokens[row].tolist()).decode()


def build(*nodes: LinearNode | TreeNode) -> DepPrompt:
    return DepPrompt.from_nodes(nodes, tokenizer=byte_tokenizer)


def last_index(prompt: DepPrompt, text: str) -> int:
    return bytes(prompt.tokens.tolist()).rindex(text.encode()) + len(text.encode()) - 1


def test_a_context_may_depend_on_an_earlier_chain_of_linear_nodes():
    prompt = build(
        LinearNode("system", "S"),
        LinearNode("notes", "NN"),
        LinearNode("other", "OO"),
        LinearNode("more", "MM", depends_on="notes"),
        tree(depends_on=["notes", "more", "system"]),
        LinearNode("task", "T"),
    )
    assert seen_by(prompt, last_index(prompt, "c")) == "SNNMM\na -> s -> c"
    assert seen_by(prompt, last_index(prompt, "OO")) == "SOO"
    assert prompt.forest.num_trees == 2
    assert prompt.forest.system_len == 1
    # What depends on a node comes right behind it, so that pre-order holds.
    assert bytes(prompt.tokens.tolist()).startswith(b"SNNMM\na ->")
    assert prompt.num_flat_tokens == len("SNNOOMM\na -> r -> b\na -> s -> cT")


def test_nodes_that_depend_on_nothing_do_not_see_the_first_node():
    prompt = build(
        LinearNode("system", "S"),
        tree("context", depends_on="system"),
        tree("free", depends_on=()),
        LinearNode("task", "T"),
    )
    assert prompt.forest.system_len == 0
    assert prompt.forest.num_trees == 2
    assert bytes(prompt.tokens.tolist()) == b"S\na -> r -> bs -> c\na -> r -> bs -> cT"
    assert seen_by(prompt, last_index(prompt, "c")) == "\na -> s -> c"


def test_two_trees_merge_what_they_share():
    prompt = build(LinearNode("system", "S"), tree("one"), tree("two"), LinearNode("task", "T"))
    assert bytes(prompt.tokens.tolist()) == b"S\na -> r -> bs -> cT"


def test_a_prompt_may_begin_with_its_context_or_be_a_task_alone():
    prompt = build(tree(), LinearNode("task", "T", depends_on="context"))
    assert bytes(prompt.tokens[: prompt.forest.system_len].tolist()) == b"\n"
    assert build(LinearNode("task", "T")).tokens.tolist() == [ord("T")]


def test_ids_need_no_tokenizer_and_text_does():
    prompt = DepPrompt.from_nodes([LinearNode("system", [1]), LinearNode("task", (2, 3))])
    assert prompt.tokens.tolist() == [1, 2, 3]
    for nodes in ([LinearNode("task", "T")], [tree(), LinearNode("task", [1])]):
        with pytest.raises(PromptError, match="tokenizer is needed"):
            DepPrompt.from_nodes(nodes)


def test_the_separator_stays_in_the_tree_when_not_all_of_the_context_starts_with_it():
    prompt = build(
        LinearNode("system", "S"), LinearNode("notes", "NN"), tree(), LinearNode("task", "T")
    )
    assert prompt.forest.system_len == 1
    assert bytes(prompt.tokens.tolist()) == b"SNN\na -> r -> bs -> cT"
    assert prompt.forest.parents.tolist() == [-1, -1, 1, 1]

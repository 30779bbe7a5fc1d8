# SPDX-License-Identifier: Apache-2.0
"""A new kind of context is one class: what makes prompts of nodes knows no kind."""

from __future__ import annotations

from dataclasses import dataclass

from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.nodes import LinearNode
from depcache.prompt.tokenization import PromptTokenizer
from tests.depcache.prompt.make import make_bpe


@dataclass(frozen=True)
class TableNode:
    """The new kind: rows that see the header of their table and no other row."""

    name: str
    header: str
    rows: tuple[str, ...]
    depends_on: tuple[str, ...] | None = None
    is_tree: bool = True
    lead: str | None = None

    @property
    def flat_text(self) -> str:
        return "".join((self.header, *self.rows))

    def encode(self, tokenizer: PromptTokenizer | None, *, first: bool) -> list[list[int]]:
        assert tokenizer is not None
        header, *rows = tokenizer.encode_elements([self.header, *self.rows])
        return [[*header, *row] for row in rows]


def test_rows_of_a_table_hang_below_its_header() -> None:
    table = TableNode("table", "\nname | born in", ("\nAda | London", "\nGrace | New York"))
    prompt = DepPrompt.from_nodes(
        [LinearNode("system", "Answer."), table, LinearNode("task", "\nWho was born in London?")],
        tokenizer=make_bpe(),
    )
    assert [(each.text, each.parent) for each in prompt.segments] == [
        ("\nname | born in\n", -1),
        ("Ada | London", 0),
        ("Grace | New York", 0),
    ]
    assert prompt.flat_text == table.flat_text
    header, ada, grace = ((each.start, each.stop) for each in prompt.segments)
    sees = prompt.compute_attention_mask()
    assert sees[grace[0] : grace[1], slice(*header)].all()
    assert not sees[grace[0] : grace[1], slice(*ada)].any()
    assert prompt.positions[ada[0]] == prompt.positions[grace[0]]


def test_the_prompt_of_a_new_kind_travels_like_any_other() -> None:
    nodes = [TableNode("table", "a | b", ("1 | 2", "3 | 4")), LinearNode("task", "?")]
    prompt = DepPrompt.from_nodes(nodes, tokenizer=make_bpe())
    again = DepPrompt.from_wire(*prompt.to_wire())
    assert again.forest.parents.tolist() == prompt.forest.parents.tolist()
    assert again.tokens.tolist() == prompt.tokens.tolist()

# SPDX-License-Identifier: Apache-2.0
"""The tokens that servers said they computed of a stream of tables, beside those that are counted.

The stream is made again from the report of an `eval serve` run, prompt by prompt, and counted with
the tokenizer of the served model in two ways: by whole tables, with the rules of
`eval.tables.simulate`, and token by token. These differ in what begins alike: tables begin with
CREATE TABLE, and many names and questions do too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from depcache.prompt.chunks import CHUNK_SEPARATOR
from depcache.serving.random_model import SIZES
from depcache.serving.tiny import TINY_NAME, resolve_model
from depcache.tables.catalog import Catalog
from depcache.tables.table import Table
from eval.serve.measure import PRECOMPUTED, STREAM, WARM, split
from eval.serve.systems import System, Writer, get_system
from eval.serve.workloads import Request, ServeSpec, entities_of, make
from eval.sets import SetError
from eval.tables.simulate import count_prefix, count_sets
from eval.workloads.graphs import Graphs

PHASES = (STREAM, WARM, PRECOMPUTED)
"""Those that ask one request after the other, so that what is cached is known."""

AHEAD = "ahead"

_BLOCK_TOKENS = {"vllm": 16}
"""vLLM keeps whole blocks; SGLang and DepCache keep every token."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request in tokens.

    head    what stands before the tables
    tables  by their names, in the order of the request
    task    what stands behind them
    """

    request: Request
    head: Tokens
    tables: dict[str, Tokens]
    task: Tokens

    @property
    def num_tokens(self) -> int:
        """All of it."""
        return len(self.head) + sum(map(len, self.tables.values())) + len(self.task)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a set, and each in tokens."""

    catalog: Catalog
    tokens: Mapping[str, Tokens]


def compare_served(report: dict[str, Any], data: Path) -> list[dict[str, Any]]:
    """A row for each system and phase of a report of `eval serve`, in tokens a question.

    computed   of the tables, by whole tables
    context    of the tables that the prompts hold
    prefill    `computed`, with the question and what the chat template writes
    by_token   the same as `prefill`, counted token by token
    served     what the server said
    off        by how much `served` is above `by_token`, as a part of it

    Computing ahead is a row of the phase `ahead`, of all tables together, with the system message
    once and without questions.

    Left out are systems whose answers were not all counted, and those that are not counted here:
    rows that are computed again, and layouts in which reused rows move.

    data  the folder of the schemas

    Raises SetError where the stream that the data gives is not the one that was asked, or the
    tokenizer is not known.
    """
    manifest = report["manifest"]
    settings = manifest["settings"]
    name = manifest["model"]["name"]
    if name not in (*SIZES, TINY_NAME):
        raise SetError(
            f"the tokenizer of {name!r} is not known here, only that of {TINY_NAME}, "
            f"{', '.join(SIZES)}"
        )
    reader = Reader(TINY_NAME)  # random weights have its tokenizer
    rows: list[dict[str, Any]] = []
    for workload, digest in manifest["workloads"].items():
        counts = settings["counts"]
        spec = ServeSpec(
            workload,
            sum(counts.values()),
            num_paths=settings["paths"],
            num_hops=settings["hops"],
            seed=settings["seed"],
        )
        made = make(spec, Graphs(data))
        if made.digest() != digest:
            raise SetError(
                f"the requests of {workload!r} have the digest {digest}, and the data gives "
                f"{made.digest()}: name the data and use the code that the report was made with"
            )
        parts = split(made.requests, counts)
        prompts = {phase: [reader.prompt(each) for each in parts[phase]] for phase in PHASES}
        assert made.catalog is not None
        tokens = {table.name: reader.table(table) for table in made.catalog}
        all_tables = Tables(made.catalog, tokens)
        for row in report["rows"]:
            system = get_system(row["system"])
            is_counted = system.recompute is None and system.layout == "tree"
            if row["workload"] != workload or row["phase"] not in PHASES or not is_counted:
                continue
            if row["failed"] or system.prompt in ("none", "deduplicated"):
                continue
            rows.append(_make_row(row, system, all_tables, prompts))
        wanted = entities_of([each.request for each in prompts[PRECOMPUTED]])
        for said in report["precomputed"].get(workload, [])[:1]:
            num_head = len(prompts[PRECOMPUTED][0].head)
            rows.append(_make_ahead_row(workload, said, all_tables, wanted, num_head))
    return rows


class Reader:
    """Reads requests in tokens, as a server of this model does."""

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(resolve_model(model))
        self._writer = Writer(self._tokenizer, "path")
        # Each text by itself, as rows are: what is known of one is known of all like it.
        self._tokens = cache(self._tokenize)

    def table(self, table: Table) -> Tokens:
        """A table of a prompt, with the blank line before it."""
        return self._tokens(CHUNK_SEPARATOR + table.text)

    def prompt(self, request: Request) -> Prompt:
        """All of a request about tables."""
        messages = self._writer.write(get_system("sglang"), request).fields["messages"]
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        tables = "".join(CHUNK_SEPARATOR + table.text for table in request.tables)
        head, _, task = text.partition(tables)
        read = {table.name: self.table(table) for table in request.tables}
        return Prompt(request, self._tokens(head), read, self._tokens(task))

    def _tokenize(self, text: str) -> Tokens:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _make_row(
    row: dict[str, Any], system: System, tables: Tables, prompts: dict[str, list[Prompt]]
) -> dict[str, Any]:
    phase = row["phase"]
    before = prompts[STREAM] if phase == WARM else []
    asked = prompts[phase]
    wanted = entities_of([each.request for each in asked]) if phase == PRECOMPUTED else []
    ahead = tables.catalog.references.closure(wanted)
    num = len(asked)
    computed = count_tables(system, tables, before, asked, ahead)
    task = sum(len(each.task) for each in asked)
    if phase == STREAM:
        task += len(asked[0].head)  # the system message is cached from then on
    by_token = count_tokens(system, tables, before, asked, ahead)
    return {
        "set": row["workload"],
        "system": row["system"],
        "phase": phase,
        "questions": num,
        "computed": round(computed / num, 1),
        "context": round(sum(len(t) for each in asked for t in each.tables.values()) / num, 1),
        "prefill": round((computed + task) / num, 1),
        "by_token": round(by_token / num, 1),
        "served": round(row["computed_tokens"] / num, 1),
        "off": round(row["computed_tokens"] / by_token - 1, 4),
    }


def _make_ahead_row(
    workload: str, said: dict[str, Any], tables: Tables, wanted: Sequence[str], num_head: int
) -> dict[str, Any]:
    ahead = tables.catalog.references.closure(wanted)
    lens = {name: len(tokens) for name, tokens in tables.tokens.items()}
    computed = count_sets(tables.catalog, [tuple(ahead)], lens)["references"]
    by_token = num_head + _compute_ahead(_Known(), tables, ahead)
    return {
        "set": workload,
        "system": said["system"],
        "phase": AHEAD,
        "questions": 0,
        "computed": computed,
        "context": sum(lens[name] for name in ahead),
        "prefill": num_head + computed,
        "by_token": by_token,
        "served": said["tokens"],
        "off": round(said["tokens"] / by_token - 1, 4),
    }


def _compute_ahead(known: _Known, tables: Tables, ahead: Sequence[str]) -> int:
    """Tokens that tables take, each with all it refers to, if each finds all before it."""
    new = 0
    for name in ahead:
        root, tokens = _seen_by(tables.catalog, name, ahead), tables.tokens[name]
        new += known.count_new(root, tokens)
        known.add(root, tokens)
    return new


def count_tables(
    system: System,
    tables: Tables,
    before: Sequence[Prompt],
    asked: Sequence[Prompt],
    ahead: Sequence[str] = (),
) -> int:
    """Tokens of tables that `asked` computes behind `before`, by whole tables.

    ahead  tables that were computed before, each with all it refers to
    """
    lens = {name: len(tokens) for name, tokens in tables.tokens.items()}
    known = [tuple(each.tables) for each in before] + [tuple(ahead)]
    both = [*known, *(tuple(each.tables) for each in asked)]
    if system.prompt == "dependency":
        counts = [count_sets(tables.catalog, each, lens)["references"] for each in (both, known)]
    else:
        orders = {tuple(each.tables): _order(system, each) for each in (*before, *asked)}
        orders[()] = []
        counts = [count_prefix(each, lens, orders.__getitem__) for each in (both, known)]
    return counts[0] - counts[1]


def _order(system: System, prompt: Prompt) -> list[str]:
    """The names of its tables, in the order in which the system has them."""
    names = {table.text: table.name for table in prompt.request.tables}
    texts = {"declared": prompt.request.declared, "sorted": prompt.request.by_heat}
    return [names[text] for text in texts.get(system.prompt, list(names))]


class _Known:
    """Sequences of tokens, each below a root."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, dict[int, Any]] = {}

    def add(self, root: Hashable, tokens: Iterable[int]) -> None:
        node = self._roots.setdefault(root, {})
        for token in tokens:
            node = node.setdefault(token, {})

    def count_new(self, root: Hashable, tokens: Tokens) -> int:
        """Tokens behind the longest known beginning."""
        node = self._roots.get(root, {})
        for number, token in enumerate(tokens):
            if token not in node:
                return len(tokens) - number
            node = node[token]
        return 0


def count_tokens(
    system: System,
    tables: Tables,
    before: Sequence[Prompt],
    asked: Sequence[Prompt],
    ahead: Sequence[str] = (),
) -> int:
    """Tokens that `asked` computes behind `before`, all of each prompt, token by token."""
    known = _Known()
    if system.prompt != "dependency":
        block = _BLOCK_TOKENS.get(system.engine, 1)
        new = [_ask_prefix(known, system, each, block) for each in (*before, *asked)]
        return sum(new[len(before) :])
    if ahead:
        _compute_ahead(known, tables, ahead)
        known.add("head", asked[0].head)
    new = [_ask_sets(known, each) for each in (*before, *asked)]
    return sum(new[len(before) :])


def _ask_prefix(known: _Known, system: System, prompt: Prompt, block: int) -> int:
    order = _order(system, prompt)
    tables = [token for name in order for token in prompt.tables[name]]
    tokens = (*prompt.head, *tables, *prompt.task)
    found = len(tokens) - known.count_new("", tokens)
    known.add("", tokens)
    # The last token is computed in any case: the answer comes from it.
    return len(tokens) - min(found, len(tokens) - 1) // block * block


def _ask_sets(known: _Known, prompt: Prompt) -> int:
    # The request knows its own tables only, so what they see is what those of a client see.
    catalog = Catalog(prompt.request.tables)
    rows = [
        (_seen_by(catalog, name, prompt.tables), tokens) for name, tokens in prompt.tables.items()
    ]
    context = ("task", frozenset(rows))
    new = known.count_new("head", prompt.head)
    # Rows that are new in one prompt are computed whole, whatever they begin with.
    new += sum(known.count_new(seen, tokens) for seen, tokens in rows)
    new += max(1, known.count_new(context, prompt.task))
    for root, tokens in (("head", prompt.head), *rows, (context, prompt.task)):
        known.add(root, tokens)
    return new


def _seen_by(catalog: Catalog, name: str, here: Iterable[str]) -> frozenset[str]:
    """The texts of the tables of a prompt that one of them sees."""
    seen = set(catalog.references.closure([name])) & set(here)
    return frozenset(catalog[each].text for each in seen) - {catalog[name].text}

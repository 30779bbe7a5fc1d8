# SPDX-License-Identifier: Apache-2.0
"""What is compared: which server, with which flags, and how a prompt is written for it.

    depcache        trees; reuse in any order. Others of its kind by their options:
                    depcache-staggered, depcache-sequential, depcache-lru, ...
    sglang          the text of all paths; SGLang's prefix cache
    sglang-lpm      the same, requests of the longest cached prefix first
    depcache-fused-15  passages or whole paths as rows, of which 15 % are computed again with full
                    view; of 0, 5, 10, 30 and 100 % too
    depcache-fused-mixed-15  the same by another selector; mixed-5, and 15 of each other
    depcache-stored  passages as past prompts left them, as much computed again as their CFO says
                    (Cache-Craft)
    sglang-declared  tables in the order of their schemas, which any client can give them; the
                    others have them as they come. vllm-declared too
    sglang-sorted   passages or tables sorted by how often the whole workload has them, which nobody
                    knows beforehand: what sorting can gain a prefix cache
    sglang-dedup    the tokens of the trees in pre-order, every token seeing all before it: what
                    merging paths alone gains
    vllm            the text of all paths; vLLM's prefix cache, in an environment of its own
    norag           the question alone

On a CPU all SGLang servers compute attention in the same way, for the rows that are new only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, Literal

from depcache.errors import ConfigError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.forest import Forest
from depcache.prompt.layout import Layout, token_positions
from depcache.prompt.recompute import Recompute, Select
from depcache.prompt.render import (
    DEFAULT_TABLE_SYSTEM,
    RenderedPrompt,
    render,
    render_chunks,
    render_rows,
)
from depcache.serving.launch import Launch, find_gpu, make_launch
from depcache.serving.random_model import load_flags
from depcache.tables.catalog import Catalog
from depcache.tables.render import HEADING, render_tables
from depcache.training.examples import Example
from depcache.training.samples import Encoder
from eval.serve.drive import Call
from eval.serve.workloads import Request

MODEL_NAME = "bench"


@dataclass(frozen=True, slots=True)
class System:
    """One server and one way to write prompts.

    prompt    trees, the text of all paths, the same with its passages or tables sorted, with its
              tables in declared order, the tokens of the trees, or no facts
    engine    whose server
    recompute  the share that is computed again; None: nothing, and rows see themselves alone
    settings  of DepCache, by name
    args      flags of the server
    """

    name: str
    prompt: Literal["dependency", "flat", "sorted", "declared", "deduplicated", "none"]
    engine: Literal["depcache", "sglang", "vllm"] = "sglang"
    layout: Layout = "tree"
    settings: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    recompute: float | Recompute | None = None

    @property
    def title(self) -> str:
        """What people call it, as in the docs."""
        return TITLES.get(self.name, self.name)


TITLES = {
    "depcache": "DepCache",
    "sglang": "SGLang",
    "sglang-dedup": "SGLang, text of the merged trees",
    "vllm": "vLLM, prefix caching",
    "norag": "SGLang, no facts",
}

SELECTED: tuple[tuple[Select, int], ...] = (
    ("mixed", 5),
    ("mixed", 15),
    ("query", 15),
    ("query-context", 15),
    ("deviation", 15),
    ("random", 15),
)
"""Ways to choose what is computed again, and percent of the context; besides `first`."""

KNOWN: dict[str, System] = {
    each.name: each
    for each in (
        System("depcache", "dependency", "depcache"),
        System("depcache-staggered", "dependency", "depcache", "staggered"),
        System("depcache-sequential", "dependency", "depcache", "sequential"),
        System("depcache-lru", "dependency", "depcache", args=("--radix-eviction-policy", "lru")),
        System("depcache-lsp", "dependency", "depcache", settings={"queue_order": "lsp"}),
        System("depcache-xor", "dependency", "depcache", settings={"queue_order": "xor"}),
        System(
            "depcache-cascade", "dependency", "depcache", settings={"attention_plan": "cascade"}
        ),
        System(
            "depcache-segments", "dependency", "depcache", settings={"attention_plan": "segments"}
        ),
        System("depcache-no-tails", "dependency", "depcache", settings={"cache_tails": "false"}),
        System("depcache-host", "dependency", "depcache", settings={"host_ratio": "2"}),
        *(
            System(
                f"depcache-fused-{share}",
                "dependency",
                "depcache",
                settings={"fused_shadow_share": "0"},
                recompute=share / 100,
            )
            for share in (0, 5, 10, 15, 30, 100)
        ),
        *(
            System(
                f"depcache-fused-{select}-{share}",
                "dependency",
                "depcache",
                settings={"fused_shadow_share": "0"},
                recompute=Recompute(share / 100, select),
            )
            for select, share in SELECTED
        ),
        System(
            "depcache-stored",
            "dependency",
            "depcache",
            settings={"fused_shadow_share": "0"},
            recompute=Recompute(select="stored"),
        ),
        System("sglang", "flat"),
        System("sglang-sorted", "sorted"),
        System("sglang-declared", "declared"),
        System("sglang-lpm", "flat", args=("--schedule-policy", "lpm")),
        System("sglang-dedup", "deduplicated"),
        System("vllm", "flat", "vllm"),
        System("vllm-declared", "declared", "vllm"),
        System("norag", "none"),
    )
}


def get_system(name: str) -> System:
    """Returns the system of that name; ConfigError with the names there are."""
    if name not in KNOWN:
        raise ConfigError(f"{name!r} is no system: use {', '.join(KNOWN)}")
    return KNOWN[name]


def make_server(
    system: System,
    model: str,
    port: int,
    *,
    pool_tokens: int,
    vllm_python: File | None,
    server_args: Sequence[str] = (),
) -> Launch:
    """The launch of its server.

    pool_tokens  slots for KV, the same for all
    vllm_python  the interpreter of an environment that has vLLM
    server_args  flags of SGLang's, besides
    """
    address = ["--host", "127.0.0.1", "--port", str(port), *load_flags(model)]
    named = ["--served-model-name", MODEL_NAME]
    if system.engine == "vllm":
        assert vllm_python is not None
        return _launch_vllm(model, vllm_python, [*address, *named], pool_tokens)
    args = [*address, *named, "--log-level", "warning", "--skip-server-warmup"]
    args += ["--max-total-tokens", str(pool_tokens), *system.args, *server_args]
    return make_launch(
        args,
        model=model,
        stock=system.engine == "sglang",
        has_gpu=find_gpu(),
        settings=dict(system.settings),
    )


def _launch_vllm(model: str, python: File, args: Sequence[str], pool_tokens: int) -> Launch:
    # As small as is fast, since a block is reused whole or not at all; vLLM's own is 128 on a CPU.
    block = 16 if find_gpu() else 32
    flags = ["--model", model, "--enable-prefix-caching", "--enable-prompt-tokens-details"]
    flags += [
        "--num-gpu-blocks-override",
        str(-(-pool_tokens // block)),
        "--block-size",
        str(block),
    ]
    env = {"VLLM_LOGGING_LEVEL": "WARNING"}
    if not find_gpu():
        flags += ["--dtype", "float32"]
        # The default binds threads by NUMA node, which containers often do not show.
        env |= {"VLLM_CPU_KVCACHE_SPACE": "8", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server", *args, *flags]
    return Launch(argv, env)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The cost of one prompt, all of it computed: tokens, and pairs of a token and one it sees.

    flat     as the text of all paths, causal attention
    merged   as the tokens of the trees: causal attention, or `dependency_pairs`
    """

    flat_tokens: int
    merged_tokens: int
    flat_pairs: int
    merged_pairs: int
    dependency_pairs: int


class Writer:
    """Writes requests for a system. `template` is how paths become text: `path` or `triple`."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer, "deduplicated", template=template)

    def write(self, system: System, request: Request) -> Call:
        """What is sent."""
        if system.prompt == "deduplicated":
            tokens = self.merge(request).tokens.tolist()
            return Call("completions", {"model": MODEL_NAME, "prompt": tokens})
        rendered = self._render(system, request)
        fields: dict[str, Any] = {"model": MODEL_NAME, "messages": rendered.messages}
        if system.prompt == "dependency":
            fields["extra_body"] = rendered.extra_body
        return Call("chat", fields)

    def _render(self, system: System, request: Request) -> RenderedPrompt:
        if request.tables and system.prompt != "none":
            return self._render_tables(system, request)
        if request.passages and system.prompt != "none":
            return render_chunks(
                request.by_heat if system.prompt == "sorted" else request.passages,
                request.question,
                layout=system.layout,
                recompute=system.recompute,
            )
        return render(
            () if system.prompt == "none" else request.paths,
            request.question,
            template=self._template,
            layout=system.layout,
            recompute=system.recompute if request.paths else None,
        )

    def _render_tables(self, system: System, request: Request) -> RenderedPrompt:
        message = DEFAULT_TABLE_SYSTEM if request.system is None else request.system
        if system.prompt == "dependency" and system.recompute is None:
            return render_tables(
                Catalog(request.tables),
                None,
                request.question,
                system=message,
                close=False,
                layout=system.layout,
            )
        texts = {
            "declared": request.declared,
            "sorted": request.by_heat,
        }.get(system.prompt, [table.text for table in request.tables])
        return render_rows(
            texts,
            request.question,
            heading=HEADING,
            system=message,
            recompute=system.recompute,
        )

    def save_tokenizer(self, folder: File) -> None:
        """Write the tokenizer, chat template included, as `AutoTokenizer` reads it."""
        self._tokenizer.save_pretrained(folder)

    def num_flat_tokens(self, request: Request) -> int:
        """The tokens of the prompt as the text of all paths."""
        return self.merge(request).num_flat_tokens

    def sizes(self, request: Request) -> Sizes:
        """What merging and the mask save of a prompt when nothing is cached."""
        prompt = self.merge(request)
        flat, merged = prompt.num_flat_tokens, len(prompt.tokens)
        return Sizes(
            flat_tokens=flat,
            merged_tokens=merged,
            flat_pairs=_causal_pairs(flat),
            merged_pairs=_causal_pairs(merged),
            dependency_pairs=_dependency_pairs(prompt.forest),
        )

    def merge(self, request: Request) -> DepPrompt:
        """The prompt as trees. Raises ConfigError for passages and tables, which are none."""
        if not request.has_paths:
            what, name = ("passages", "chunks") if request.passages else ("tables", "tables")
            raise ConfigError(f"{what} are no trees: leave sglang-dedup out of {name} workloads")
        return self._encoder.prompt(Example(request.question, request.paths, "-"), "tree")


def _causal_pairs(num_tokens: int) -> int:
    return num_tokens * (num_tokens + 1) // 2


def _dependency_pairs(forest: Forest) -> int:
    # In the layout `tree` a context token sits behind as many as it sees.
    seen = token_positions(forest, "tree") + 1
    num_task = forest.num_tokens - forest.task_start
    task = forest.task_start * num_task + _causal_pairs(num_task)
    return int(seen[: forest.task_start].sum()) + task

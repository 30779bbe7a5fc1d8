# SPDX-License-Identifier: Apache-2.0
"""What we use of SGLang's own objects, field by field, and what each means to us.

SGLang promises none of it. Our code is checked against these protocols by the type checker, and
`missing_of_release` checks them against the installed one: `python -m sglang_patches.verify`
names what is not there. A port to another release begins here, in `compat` and in `hooks/`.

    Request       one request of the scheduler                        `Req`
    RadixKey      the tokens that a plain request may match
    Batch         requests that run together                          `ScheduleBatch`
    ForwardBatch  the same, as tensors for the model
    AdapterManager  the LoRA adapters that are loaded                  `LoRAManager`
    Scheduler     the process's loop, its queue and its cache
    CacheParams   what a cache is made from                           `CacheInitParams`
    RowPool       the row of slots of every running request           `ReqToTokenPool`
    SlotPool      which slots are free                 `BaseTokenToKVPoolAllocator`
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class SamplingParams(Protocol):
    """How the answer is drawn. We read two of its fields.

    max_new_tokens  longest answer
    custom_params   the client's free dictionary: our wire data come in it
    """

    max_new_tokens: int
    custom_params: dict[str, Any] | None


class ExtendRange(Protocol):
    """Rows [start, end) of a request that the last extend computed."""

    @property
    def end(self) -> int: ...


class Request(Protocol):
    """One request in the scheduler, from its arrival to its end.

    rid                        its id, which may be used again after an abort
    extra_key                  whose KV it may use; ends in the adapter's id
    lora_id                    the adapter's id
    sampling_params            see SamplingParams
    session, input_embeds      what cannot be combined with dependency data
    return_logprob, logprob_start_len  from which token on logprobs are wanted

    origin_input_ids           the prompt; in the order of the plan once it was matched
    full_untruncated_fill_ids  prompt and output: what an extend takes its tokens from
    output_ids                 the answer so far
    last_node                  what `match_prefix` gave it: our Handle

    to_finish                  why it is to end at its next step; None: it goes on
    customized_info            lists that go out with the answer, by name
    """

    rid: str
    extra_key: str | None
    lora_id: str | None
    sampling_params: SamplingParams
    session: Any
    input_embeds: Any
    return_logprob: bool
    logprob_start_len: int
    origin_input_ids: array[int]
    full_untruncated_fill_ids: array[int]
    output_ids: array[int]
    last_node: Any
    to_finish: Any
    customized_info: dict[str, list[Any]] | None

    def get_fill_ids(self) -> array[int]:
        """Tokens whose rows are computed after the extend that runs."""
        ...

    def set_finish_with_abort(self, error_msg: str) -> None:
        """End it alone: it runs one token more and is answered with this reason."""
        ...


class EarlierRequest(Protocol):
    """What `compat` uses of a request in 0.5.17, beside `Request`.

    req_pool_idx         its row in the RowPool; None before it runs
    prefix_indices       slots of its cached rows: the next extend starts behind them
    cache_protected_len  leading rows whose slots SGLang must not free
    extend_range         rows of the last extend
    """

    req_pool_idx: int | None
    prefix_indices: torch.Tensor
    cache_protected_len: int

    @property
    def extend_range(self) -> ExtendRange: ...


class HeldKV(Protocol):
    """What a request holds on the device in 0.5.23; the same fields were the request's before."""

    req_pool_idx: int | None
    cache_protected_len: int


class LaterRequest(Protocol):
    """What `compat` uses of a request in 0.5.23, beside `Request`.

    kv           see HeldKV
    lock         what it keeps from eviction; None: nothing
    prefix_len   its cached rows: the next extend starts behind them
    extend_end   rows that are computed after the extend that runs
    cache_salt   None: `tenants.sealed` has put it into the extra key
    """

    kv: HeldKV
    lock: Any
    prefix_len: int
    extend_end: int
    cache_salt: str | None


class RadixKey(Protocol):
    """Tokens that a plain request may match: the first `limit` of `token_ids`, all for None."""

    token_ids: array[int] | list[int]
    limit: int | None


class MatchParams(Protocol):
    """What a cache is asked with when a request is matched."""

    req: Request | None
    key: RadixKey


class LoadBackParams(Protocol):
    """What a cache is asked with when hits that must be moved are to get their slots."""

    req: Request
    best_match_node: Any


class RowPool(Protocol):
    """(max_running, context_len) int32 `req_to_token`: the slot of every row of every request."""

    req_to_token: torch.Tensor

    def write(self, indices: Any, values: torch.Tensor) -> None:
        """Set slots at (row of the pool, slice)."""
        ...


class SlotPool(Protocol):
    """Which KV slots are free. `size` is their number in all, `device` where they are.

    free_pages, release_pages, free_group  slots that are free, in three heaps
    """

    size: int
    device: Any
    free_pages: torch.Tensor
    release_pages: torch.Tensor
    free_group: list[torch.Tensor] | None

    def available_size(self) -> int: ...

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """(need_size,) int64 slots; None when there are not so many."""
        ...

    def free(self, free_index: torch.Tensor) -> None: ...

    def get_kvcache(self) -> Any: ...


class CacheParams(Protocol):
    """What SGLang hands to a new cache. `tp_cache_group` is of all ranks, on the CPU."""

    tp_cache_group: Any
    req_to_token_pool: RowPool
    token_to_kv_pool_allocator: SlotPool
    enable_metrics: bool
    pp_rank: int


class ForwardMode(Protocol):
    """What a forward pass does; `is_extend` is true of mixed ones too."""

    def is_extend(self) -> bool: ...
    def is_decode(self) -> bool: ...
    def is_idle(self) -> bool: ...


class ForwardBatch(Protocol):
    """A batch as tensors. The requests stand in the order of `Batch.reqs`.

    positions               (num_tokens,) of every token that is computed; replaced, never written
    rids                    ids of the requests; what goes with them to the attention backend
    extend_prefix_lens_cpu, extend_seq_lens_cpu  per request, rows that are there and new ones
    """

    forward_mode: ForwardMode
    positions: torch.Tensor
    rids: list[str]
    extend_prefix_lens_cpu: list[int]
    extend_seq_lens_cpu: list[int]


class Batch(Protocol):
    """Requests of one forward pass, and the cache they use."""

    reqs: list[Request]
    tree_cache: Any


class RunningBatch(Protocol):
    """The batch that decodes."""

    def is_empty(self) -> bool: ...


class AdapterLayer(Protocol):
    """What a LoRA adapter has for one layer of the model: tensors by name."""

    weights: dict[str, torch.Tensor]


class AdapterConfig(Protocol):
    """The adapter's own settings; `r` is its rank."""

    r: int


class Adapter(Protocol):
    """A LoRA adapter in the memory of the host.

    scaling                  what its product is multiplied by
    layers                   one AdapterLayer for each layer of the model
    embedding_layers         tensors for the embeddings and the head, by name
    added_tokens_embeddings  tensors for tokens that the model did not have, by name
    """

    scaling: float
    config: AdapterConfig
    layers: Iterable[AdapterLayer]
    embedding_layers: dict[str, torch.Tensor]
    added_tokens_embeddings: dict[str, torch.Tensor]


class AdapterManager(Protocol):
    """All adapters of a server.

    loras           id -> Adapter, of those that are loaded
    target_modules  which parts of the model an adapter may change
    """

    loras: dict[str, Adapter]
    target_modules: set[str]


class Scheduler(Protocol):
    """The loop of one rank.

    tree_cache              ours, or a stock one: `is_depcache` tells
    waiting_queue           requests that wait; changed in place
    running_batch           the batch that decodes
    last_batch              the batch of the last pass; None: nothing ran
    chunked_req             a request in the middle of its prefill
    enable_hicache_storage  True: the cache is asked before a request is admitted
    """

    tree_cache: Any
    waiting_queue: list[Request]
    running_batch: RunningBatch
    last_batch: Any
    chunked_req: Any
    enable_hicache_storage: bool
    _engine_paused: bool

    def is_fully_idle(self) -> bool: ...


CONTRACTS: dict[str, type] = {
    "sglang.srt.sampling.sampling_params.SamplingParams": SamplingParams,
    "sglang.srt.managers.schedule_batch.Req": Request,
    "sglang.srt.managers.schedule_batch.ScheduleBatch": Batch,
    "sglang.srt.mem_cache.radix_cache.RadixKey": RadixKey,
    "sglang.srt.mem_cache.base_prefix_cache.MatchPrefixParams": MatchParams,
    "sglang.srt.mem_cache.base_prefix_cache.InitLoadBackParams": LoadBackParams,
    "sglang.srt.mem_cache.cache_init_params.CacheInitParams": CacheParams,
    "sglang.srt.mem_cache.memory_pool.ReqToTokenPool": RowPool,
    "sglang.srt.mem_cache.allocator.BaseTokenToKVPoolAllocator": SlotPool,
    "sglang.srt.model_executor.forward_batch_info.ForwardMode": ForwardMode,
    "sglang.srt.model_executor.forward_batch_info.ForwardBatch": ForwardBatch,
    "sglang.srt.lora.lora_config.LoRAConfig": AdapterConfig,
    "sglang.srt.lora.lora.LoRALayer": AdapterLayer,
    "sglang.srt.lora.lora.LoRAAdapter": Adapter,
    "sglang.srt.lora.lora_manager.LoRAManager": AdapterManager,
    "sglang.srt.managers.scheduler.Scheduler": Scheduler,
}
"""SGLang's class -> what we use of it, in every release."""

_REQUEST = "sglang.srt.managers.schedule_batch.Req"
RELEASES: dict[str, dict[str, type]] = {
    "0.5.17": {_REQUEST: EarlierRequest},
    "0.5.23": {
        _REQUEST: LaterRequest,
        "sglang.srt.managers.schedule_batch.ReqKvInfo": HeldKV,
    },
}
"""Release -> the same for what it alone has."""


def fields_of(contract: type) -> list[str]:
    """Names that a protocol asks for, sorted."""
    methods = {name for name, value in vars(contract).items() if _is_member(name, value)}
    return sorted(methods | set(inspect.get_annotations(contract)))


def missing_fields(contracts: dict[str, type] = CONTRACTS) -> list[str]:
    """`path.Class.field` of all that the installed SGLang does not have.

    Fields that a class gives its objects count: the source of the class, and of those it is made
    from, is read for them. That takes part of a second.
    """
    missing: list[str] = []
    for path, contract in contracts.items():
        module, name = path.rsplit(".", 1)
        cls = getattr(importlib.import_module(module), name, None)
        known = set() if cls is None else set(_names_of(cls))
        missing += [f"{path}.{field}" for field in fields_of(contract) if field not in known]
    return missing


def missing_of_release(release: str | None) -> list[str]:
    """The same for all that we use of one release. One that we do not know is read as the last."""
    own = RELEASES.get(release or "", list(RELEASES.values())[-1])
    return missing_fields() + missing_fields(own)


def _is_member(name: str, value: Any) -> bool:
    is_ours = not name.startswith("__") and not name.startswith("_abc")
    return is_ours and (callable(value) or isinstance(value, property))


def _names_of(cls: type) -> Iterator[str]:
    yield from dir(cls)
    for base in cls.__mro__[:-1]:
        yield from vars(base)  # an Enum's `dir` lists no methods
        yield from inspect.get_annotations(base)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # no Python source
            continue
        yield from _assigned(ast.walk(tree))


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names in `self.name = ...`, `self.a, self.b = ...` and `self.name: type = ...`."""
    for node in nodes:
        targets: Sequence[ast.AST] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = (node.target,)
        for target in targets:
            for part in ast.walk(target):
                if (
                    isinstance(part, ast.Attribute)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == "self"
                ):
                    yield part.attr

# SPDX-License-Identifier: Apache-2.0
"""Tokenize a prompt piece by piece: trusted text with special tokens, elements without.

Two kinds of text meet in one prompt. System and task are trusted (a rendered chat template):
the special tokens in them are meant. Elements come from a graph that anyone may have written:
"</s>" in an entity's name must stay four characters. They go through a private view of the
tokenizer that has the same model but no added tokens at all ("<think>" is often added without
being special), and puts no space before its input, so that the ids of an element are those it
would have in the middle of a text, whatever its neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice
from threading import Lock
from typing import Any, cast

from cachetools import LRUCache

from depcache.errors import PromptError, shorten

Ids = tuple[int, ...]
EncodeBatch = Callable[[list[str]], list[list[int]]]

MAX_CACHED_TOKENS = 2**19
"""Bound of the element cache, in tokens; about 60 MB of Python objects for short names."""

_MAX_TOKENIZERS = 8

_UNASSIGNED = "\U000effff"
"""A code point that will never be a character, so that no vocabulary knows it."""


class PromptTokenizer:
    """Ids for the parts of a prompt, from any tokenizer.

    tokenizer  a HuggingFace tokenizer (fast, or slow by its call), a `tokenizers.Tokenizer`,
               or a callable `list[str] -> list[list[int]]`. A callable gets all text alike
               and must itself see to special tokens.

    The tokenizer is copied or only called, never changed; tokens added to it later are not
    seen. Elements are remembered, at most `max_cached_tokens` in all; safe to use from
    several threads. Raises PromptError when `tokenizer` is none of these.
    """

    def __init__(self, tokenizer: Any, *, max_cached_tokens: int = MAX_CACHED_TOKENS) -> None:
        self._cache: dict[str, Ids] = {}
        self._leads: dict[str, Ids] = {}  # one per template
        self._max_cached_tokens = max_cached_tokens
        self._num_cached_tokens = 0
        self._lock = Lock()
        self._special_ids: frozenset[int] = frozenset()
        self._encode_elements: EncodeBatch
        self._encode_first: EncodeBatch  # trusted text at the start of a prompt
        self._encode_later: EncodeBatch  # trusted text behind other text
        self._decode: Callable[[list[int]], str] | None = None
        self._encode_special: EncodeBatch | None = None

        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if hasattr(backend, "to_str") and hasattr(backend, "encode_batch"):
            self._use_fast(tokenizer, backend)
        elif hasattr(tokenizer, "all_special_ids") and callable(tokenizer):
            self._use_slow(tokenizer)
        elif callable(tokenizer):
            encode = cast(EncodeBatch, tokenizer)
            self._encode_elements = self._encode_first = self._encode_later = encode
        else:
            raise PromptError(
                f"{shorten(tokenizer)} is no tokenizer: use a HuggingFace tokenizer, a "
                "tokenizers.Tokenizer or a callable from list[str] to list[list[int]]"
            )

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the elements that are remembered."""
        return self._num_cached_tokens

    def encode_text(self, text: str, *, first: bool = False) -> list[int]:
        """Ids of trusted text; special tokens count. `first`: nothing stands before it."""
        if not text:
            return []
        [ids] = _call(self._encode_first if first else self._encode_later, [text])
        return list(ids)

    def leading_special_ids(self) -> list[int]:
        """What the tokenizer puts before a text (BOS, if anything); not what it puts behind."""
        if self._encode_special is None:
            raise PromptError(
                "add_special_tokens needs a HuggingFace tokenizer or a tokenizers.Tokenizer: "
                "put the ids into the system instead"
            )
        [with_special] = self._encode_special(["a"])
        [plain] = _call(self._encode_first, ["a"])
        for i in range(len(with_special) - len(plain) + 1):
            if with_special[i : i + len(plain)] == list(plain):
                return list(with_special[:i])
        return []

    def encode_elements(self, pieces: Sequence[str]) -> list[Ids]:
        """Ids of each piece, in order. Unknown pieces are encoded together, in one call.

        Raises PromptError when a piece becomes no token at all or a special one.
        """
        ids = list(map(self._cache.get, pieces))
        if None in ids:
            missing = [piece for piece, known in zip(pieces, ids, strict=True) if known is None]
            missing = list(dict.fromkeys(missing))
            found = dict(zip(missing, self._encode_missing(missing), strict=True))
            self._remember(found)
            return [known or found[piece] for piece, known in zip(pieces, ids, strict=True)]
        return cast(list[Ids], ids)

    def encode_lead(self, lead: str) -> Ids:
        """Ids of a separator alone; () when it has none of its own."""
        ids = self._leads.get(lead)
        if ids is None:
            [found] = _call(self._encode_elements, [lead])
            ids = self._leads[lead] = tuple(found)
        return ids

    def decode(self, ids: Sequence[int]) -> str | None:
        """Text of some ids, to show it to a person; None when the tokenizer cannot decode."""
        return None if self._decode is None else self._decode(list(ids))

    def _encode_missing(self, pieces: list[str]) -> list[Ids]:
        result = [tuple(ids) for ids in _call(self._encode_elements, pieces)]
        for i, ids in enumerate(result):
            if not self._special_ids.isdisjoint(ids):
                # A model whose vocabulary lists "</s>" as a word (Unigram) finds it in text.
                # One character at a time it cannot.
                split = _call(self._encode_elements, list(pieces[i]))
                result[i] = ids = tuple(token for part in split for token in part)
            if not ids or not self._special_ids.isdisjoint(ids):
                what = "a special token" if ids else "no token"
                raise PromptError(
                    f"the element {shorten(pieces[i])} becomes {what} in this tokenizer: "
                    "leave the path out"
                )
        return result

    def _remember(self, found: dict[str, Ids]) -> None:
        with self._lock:
            for piece, ids in found.items():
                if self._cache.setdefault(piece, ids) is ids:
                    self._num_cached_tokens += len(ids)
            while self._num_cached_tokens > self._max_cached_tokens and self._cache:
                # The older half goes: O(1) per piece, and no work at all on a hit.
                half = (len(self._cache) + 1) // 2
                for piece in list(islice(self._cache, half)):
                    self._num_cached_tokens -= len(self._cache.pop(piece))

    def _use_fast(self, tokenizer: Any, backend: Any) -> None:
        elements = _make_view(backend, added_tokens=False)
        self._encode_elements = _batch_encoder(elements)
        if backend is not tokenizer:
            # HuggingFace sets truncation, padding and special tokens of the shared backend anew
            # with every call, so its own call is the only one to trust.
            self._use_calls(tokenizer)
        else:
            whole = _make_view(backend, prefix_space=True)
            self._encode_first = self._encode_later = _batch_encoder(whole)
            self._encode_special = _batch_encoder(whole, add_special_tokens=True)
            self._decode = lambda ids: whole.decode(ids, skip_special_tokens=False)
        if _has_prefix_space(backend):
            self._encode_later = _batch_encoder(_make_view(backend))
        added_tokens = backend.get_added_tokens_decoder().items()
        special_ids = {token_id for token_id, token in added_tokens if token.special}
        # The unknown token is special as well, but any text may become it.
        [unknown] = self._encode_elements([_UNASSIGNED])
        self._special_ids = frozenset(special_ids.difference(unknown))

    def _use_slow(self, tokenizer: Any) -> None:
        self._use_calls(tokenizer)
        self._encode_elements = lambda texts: tokenizer(
            texts, add_special_tokens=False, split_special_tokens=True
        )["input_ids"]
        self._special_ids = frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id}

    def _use_calls(self, tokenizer: Any) -> None:
        def encode(texts: list[str], *, add_special_tokens: bool = False) -> list[list[int]]:
            return tokenizer(
                texts,
                add_special_tokens=add_special_tokens,
                padding=False,
                truncation=False,
                split_special_tokens=False,
                verbose=False,
            )["input_ids"]

        self._encode_first = self._encode_later = encode
        self._encode_special = lambda texts: encode(texts, add_special_tokens=True)
        self._decode = tokenizer.decode


_known: LRUCache[int, tuple[Any, PromptTokenizer]] = LRUCache(_MAX_TOKENIZERS)
_known_lock = Lock()


def get_prompt_tokenizer(tokenizer: Any) -> PromptTokenizer:
    """The `PromptTokenizer` of `tokenizer`, made once and kept with its cache.

    The last few tokenizers are held, by identity. A `PromptTokenizer` is returned as it is.
    """
    if isinstance(tokenizer, PromptTokenizer):
        return tokenizer
    with _known_lock:
        held, prompt_tokenizer = _known.get(id(tokenizer), (None, None))
        if prompt_tokenizer is None or held is not tokenizer:
            prompt_tokenizer = PromptTokenizer(tokenizer)
            _known[id(tokenizer)] = (tokenizer, prompt_tokenizer)
    return prompt_tokenizer


def _call(encode: EncodeBatch, texts: list[str]) -> list[list[int]]:
    ids = encode(texts)
    if len(ids) != len(texts):
        raise PromptError(
            f"the tokenizer answered {len(ids)} lists for {len(texts)} texts: "
            "a callable must return one list of ids for each text"
        )
    return ids


def _batch_encoder(backend: Any, *, add_special_tokens: bool = False) -> EncodeBatch:
    # The fast call leaves out the offsets, which nobody here reads.
    encode_batch = getattr(backend, "encode_batch_fast", backend.encode_batch)

    def encode(texts: list[str]) -> list[list[int]]:
        encodings = encode_batch(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    return encode


def _read_state(component: Any) -> Any:
    """A normalizer or pre-tokenizer as JSON data; None for none."""
    return None if component is None else json.loads(component.__getstate__())


def _has_prefix_space(backend: Any) -> bool:
    """Whether the tokenizer puts a space before every text, as SentencePiece models do."""
    states = _read_state(backend.normalizer), _read_state(backend.pre_tokenizer)
    return any(_drop_prefix_space(state) != state for state in states)


def _drop_prefix_space(state: Any) -> Any:
    """The same component without the step that puts a space before every text."""
    if not isinstance(state, dict):
        return state
    state = dict(state)
    for key in ("normalizers", "pretokenizers"):  # the parts of a sequence
        if key in state:
            parts = map(_drop_prefix_space, state[key])
            state[key] = [part for part in parts if part is not None]
    if state.get("type") == "Prepend":
        return None
    if state.get("type") == "Metaspace":
        state["prepend_scheme"] = "never"
    if state.get("add_prefix_space"):
        state["add_prefix_space"] = False
    return state


def _make_view(backend: Any, *, added_tokens: bool = True, prefix_space: bool = False) -> Any:
    """A `tokenizers.Tokenizer` of its own, without truncation and padding.

    Without added tokens it shares the model (the vocabulary) and costs nothing; with them
    their ids have to be kept, so it is a copy.
    """
    # As JSON, because the components themselves are shared with the tokenizer.
    data: dict[str, Any]
    if added_tokens:
        data = json.loads(backend.to_str())
    else:
        data = {"version": "1.0", "added_tokens": [], "post_processor": None, "decoder": None}
        data["normalizer"] = _read_state(backend.normalizer)
        data["pre_tokenizer"] = _read_state(backend.pre_tokenizer)
        data["model"] = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    data["truncation"] = data["padding"] = None
    if not prefix_space:
        data["normalizer"] = _drop_prefix_space(data["normalizer"])
        data["pre_tokenizer"] = _drop_prefix_space(data["pre_tokenizer"])
    view = type(backend).from_str(json.dumps(data))
    if not added_tokens:
        view.model = backend.model
    return view

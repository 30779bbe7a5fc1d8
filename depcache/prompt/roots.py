# SPDX-License-Identifier: Apache-2.0
"""What the rows of a request begin with, as its JSON says it: for those who never see a token.

A router or a client has a request's text and no tokenizer, a server has its tokens. Both can say
which *roots* a request has, an entity, a table or a passage as a whole, and call them by the same
key: a digest of the root and of all that its KV depends on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import accumulate, islice
from typing import Any, NamedTuple

from depcache.errors import shorten
from depcache.prompt.outline import PREFIX

KEY_BYTES = 8

MAX_ROOTS = 1024
"""Roots of one request that have keys: the first ones."""

TOPIC = b"depcache-roots"
"""The topic of the messages that say which roots a server holds."""

MARK = "\x1f"
"""What a tenant with a salt begins with."""


class Roots(NamedTuple):
    """Those of one request.

    texts   each once, in the order of the rows: the root as text, or its token ids as text
    rows    the first row that begins so
    before  what stands before all rows: the messages before and the text before, or token ids
    """

    texts: list[str]
    rows: list[int]
    before: list[Any]


_NONE = Roots([], [], [])


def read_roots(body: Any) -> Roots:
    """The roots of a request.

    body  JSON of a chat, a completion or `/generate`. What is not as the wire has it gives no
          roots: the server says what is wrong with it.
    """
    try:
        return _read(body)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return _NONE


def roots_of(body: Any) -> list[str]:
    """What the rows of a request begin with; [] as for `read_roots`."""
    return read_roots(body).texts


def root_keys(body: Any) -> dict[str, int]:
    """The keys of a request's roots, each with the first row that begins so.

    {} as for `read_roots`.
    """
    shared, tenant = shared_keys(body)
    return _of_tenant(shared, tenant)


def shared_keys(body: Any) -> tuple[dict[str, int], str | None]:
    """The same for no tenant, and who the tenant is: `of_tenant` makes a tenant's keys of them."""
    roots = read_roots(body)
    try:
        tenant = tenant_of(body.get("cache_salt"), body.get("extra_key"))
    except (AttributeError, TypeError):  # the server says what is wrong with it
        return {}, None
    return (_keys_of(roots, _params_of(body), adapter_of(body)) if roots.texts else {}), tenant


def of_tenant(keys: Iterable[str], tenant: str | None) -> list[str]:
    """What a tenant's roots are called, by the keys that they have for no tenant.

    tenant  what `tenant_of` returns

    Raises ValueError for what is no key.
    """
    keys = dict.fromkeys(keys, 0)
    try:
        return [*_of_tenant(keys, tenant)]
    except ValueError:
        raise ValueError(
            f"{shorten([*keys])} has what is no key: send what shared_keys has"
        ) from None


def keys_of(
    roots: Roots, params: Mapping[str, Any], tenant: str | None, adapter: str | None
) -> dict[str, int]:
    """The keys of roots that are known.

    params  `custom_params` of the request
    tenant  what `tenant_of` returns
    adapter  name of its LoRA adapter

    Equal keys are equal roots behind an equal system in the same layout, of the same tenant and
    adapter. They are digests: nobody can read an entity from one, but who knows it can find it.
    """
    return _of_tenant(_keys_of(roots, params, adapter), tenant)


def _keys_of(roots: Roots, params: Mapping[str, Any], adapter: str | None) -> dict[str, int]:
    layout = params.get(f"{PREFIX}layout") or "tree"
    if params.get(f"{PREFIX}see") == "fused":
        layout = "tree"  # rows are reused as exact requests cache them
    shared = json.dumps([adapter or None, layout, roots.before]).encode()
    base = blake2b(shared, digest_size=KEY_BYTES)
    keys: dict[str, int] = {}
    for text, row in islice(zip(roots.texts, roots.rows, strict=True), MAX_ROOTS):
        own = base.copy()
        own.update(text.encode("utf-8", "surrogatepass"))
        keys.setdefault(own.hexdigest(), row)
    return keys


def _of_tenant(keys: Mapping[str, int], tenant: str | None) -> dict[str, int]:
    base = blake2b(json.dumps(tenant).encode(), digest_size=KEY_BYTES)
    found: dict[str, int] = {}
    for key, row in keys.items():
        own = base.copy()
        own.update(bytes.fromhex(key))
        found[own.hexdigest()] = row
    return found


def tenant_of(salt: str | None, extra_key: str | None) -> str | None:
    """Whose KV a request may read, as one text that is equal only where both are; None: everyone's.

    An empty one counts as none. Raises TypeError for what is no text.
    """
    if not isinstance(salt, str | None) or not isinstance(extra_key, str | None):
        raise TypeError(f"cache_salt or extra_key is no text: {salt!r}, {extra_key!r}")
    key = extra_key or ""
    if salt:
        return f"{MARK}{len(salt)}:{salt}{key}"
    if not key:
        return None
    return MARK + key if key.startswith(MARK) else key


def owner_of(tenant: str | None) -> str:
    """Returns the salt of a tenant, or its extra key where it has no salt; "" for everyone's."""
    tenant = tenant or ""
    if not tenant.startswith(MARK) or tenant.startswith(2 * MARK):
        return tenant.removeprefix(MARK)
    length, _, rest = tenant[1:].partition(":")
    return rest[: int(length)]


def adapter_of(body: Mapping[str, Any]) -> str | None:
    """The LoRA adapter that a request names, in either of SGLang's ways."""
    model, name = body.get("model"), body.get("lora_path")
    if not name and isinstance(model, str):
        name = model.partition(":")[2]
    return name if isinstance(name, str) and name else None


def _params_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return body.get("custom_params") or body["sampling_params"]["custom_params"]


def _read(body: Mapping[str, Any]) -> Roots:
    params = _params_of(body)
    outline = params.get(f"{PREFIX}outline")
    if outline is None:
        return _read_ids(body["input_ids"], params)
    lens, rows = outline["lens"], outline["rows"]
    message = outline.get("message")
    text = _text_of(body, message)
    firsts = [0, *accumulate(rows)][: len(rows)]  # the first element of each row
    starts = list(accumulate(lens, initial=outline["start"]))
    parents = outline.get("parents") or [-1] * len(rows)
    found: dict[str, int] = {}
    for row, (first, parent) in enumerate(zip(firsts, parents, strict=True)):
        if parent == -1 and (root := text[starts[first] : starts[first + 1]].strip()):
            found.setdefault(root, row)
    above = [] if message is None else body["messages"][:message]
    before = [[each.get("role"), _content_of(each)] for each in above]
    return Roots([*found], [*found.values()], [*before, text[: outline["start"]]])


def _read_ids(ids: list[int], params: Mapping[str, Any]) -> Roots:
    lens = params[f"{PREFIX}segment_lens"]
    system_len = params.get(f"{PREFIX}system_len", 0)
    starts = accumulate(lens, initial=system_len)
    parents = params[f"{PREFIX}segment_parents"]
    found: dict[str, int] = {}
    for row, (start, length, parent) in enumerate(zip(starts, lens, parents, strict=False)):
        if parent == -1:
            found.setdefault(str(ids[start : start + length]), row)
    return Roots([*found], [*found.values()], ids[:system_len])


def _text_of(body: Mapping[str, Any], message: int | None) -> str:
    if message is None:
        return body["prompt"] if "prompt" in body else body["text"]
    return _content_of(body["messages"][message])


def _content_of(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.get("text") or "" for part in content)

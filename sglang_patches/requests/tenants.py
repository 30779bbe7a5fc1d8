# SPDX-License-Identifier: Apache-2.0
"""Whose KV it is: salt, extra key and adapter as one value that is equal only where all three are.

SGLang joins a chat's `cache_salt` and `extra_key`, and then the adapter's id, without anything in
between: a tenant "al" who may choose "ice" would read what tenant "alice" has cached. So the two
are joined here, with the length of the first in front, and the adapter is taken off again.

    salt    extra key    tenant
    -       -            None: what everybody shares
    -       k            k
    s       k or -       MARK, length of s, ":", s, k
    -       MARK...      MARK, MARK...: nobody can write a salt into an extra key
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from depcache.errors import PromptError, shorten
from depcache.prompt.layout_names import Layout
from depcache.prompt.roots import tenant_of
from depcache.prompt.wire_forms import WireIds
from sglang_patches.compat import salt_of, take_salt
from sglang_patches.contract import Request
from sglang_patches.requests.adapters import ADAPTERS


@dataclass(frozen=True, slots=True)
class Namespace:
    """What all KV below one root has in common, beside its tokens: the identity of a root.

    tenant   whose it is; None is everyone's
    layout   of the positions: with another, a token has other distances to what it sees
    adapter  a digest of the LoRA adapter's weights, None without one
    source   behind what the KV was computed: `alone` is its ancestors and nothing else
    """

    tenant: str | None
    layout: str = "tree"
    adapter: str | None = None
    source: str = "alone"

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The same as a plain tuple, which the disk tier's digests are made of.

        As in the first release, whose values are found again: what has its default and did not
        exist then is left out.
        """
        parts = (self.tenant, self.layout)
        if self.source != "alone":
            return (*parts, self.adapter, self.source)
        return parts if self.adapter is None else (*parts, self.adapter)


class TenantKey(str):
    """An `extra_key` that holds its salt. Made here, never by a client's JSON."""

    __slots__ = ()


def join(salt: Any, extra_key: Any) -> TenantKey | None:
    """The tenant of a request, None for none. Raises PromptError for what is no text.

    An empty salt or key counts as none, as in SGLang.
    """
    for name, value in (("cache_salt", salt), ("extra_key", extra_key)):
        if value is not None and not isinstance(value, str):
            raise PromptError(f"{name} is {shorten(value)}: send one text, or leave it out")
    tenant = tenant_of(salt, extra_key)
    return None if tenant is None else TenantKey(tenant)


def seal(extra_key: Any) -> str | None:
    """What goes to the scheduler for the `extra_key` of a request on its last stop before it."""
    tenant = extra_key if isinstance(extra_key, TenantKey) else join(None, extra_key)
    return None if tenant is None else str(tenant)


def sealed(obj: Any) -> str | None:
    """The same of a GenerateReqInput on its way, whose salt is then in its extra key.

    Raises PromptError for a salt or a key that is no text.
    """
    salt = take_salt(obj)
    if salt is not None:
        obj.extra_key = join(salt, obj.extra_key)
    return seal(obj.extra_key)


def kv_layout(wire: WireIds) -> Layout:
    """The layout in which the KV that a request reuses was computed.

    A fused request reads what exact ones have cached, each row alone behind the system.
    """
    return wire.layout if wire.recompute is None else "tree"


def namespace_of(req: Request, layout: str = "tree") -> Namespace:
    """Where a request's KV is cached; plain prompts with those of the layout that is exact.

    req  SGLang's Req, whose `extra_key` ends in the adapter's id
    """
    tenant = req.extra_key
    salt = salt_of(req)
    if salt:  # it came on a way around `sealed`
        tenant = str(join(salt, tenant))
    if req.lora_id is None:
        return Namespace(tenant, layout)
    tenant = (tenant or "").removesuffix(req.lora_id)
    return Namespace(tenant or None, layout, ADAPTERS.digest_of(req.lora_id))

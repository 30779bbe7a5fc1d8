# SPDX-License-Identifier: Apache-2.0
"""Salt, extra key and adapter: one tenant only where all three are the same (P4)."""

from __future__ import annotations

import inspect
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.errors import PromptError
from depcache.prompt.roots import MARK
from sglang_patches.requests.tenants import Namespace, join, namespace_of, seal, sealed

# Few letters, those of the encoding among them: whatever could run together does.
texts = st.none() | st.text(alphabet=f"a1:{MARK}", max_size=5)
adapters = st.none() | st.sampled_from(["a", "1a", MARK])
identities = st.tuples(texts, texts, adapters)


def normal(identity: tuple[str | None, str | None, str | None]) -> tuple[str, str, str | None]:
    """An empty salt or key is none, as in SGLang."""
    salt, key, adapter = identity
    return salt or "", key or "", adapter


def namespace(salt: str | None, extra_key: str | None, adapter: str | None) -> Any:
    """That of SGLang's own request object, for what comes in through the hooks."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    tokens = array("q", [1, 2])
    tenant = seal(join(salt, extra_key))
    assert tenant is None or type(tenant) is str
    return namespace_of(Req("r", "", tokens, SamplingParams(), lora_id=adapter, extra_key=tenant))


@pytest.mark.sglang
@settings(max_examples=500, deadline=None)
@given(one=identities, other=identities)
def test_two_requests_share_a_namespace_only_if_nothing_tells_them_apart(
    one: tuple[str | None, str | None, str | None],
    other: tuple[str | None, str | None, str | None],
) -> None:
    assert (namespace(*one) == namespace(*other)) == (normal(one) == normal(other))


@pytest.mark.sglang
@given(key=texts, salt=texts.filter(bool), rest=texts)
def test_no_extra_key_of_a_client_passes_for_a_salt(
    key: str | None, salt: str, rest: str | None
) -> None:
    assert seal(key) != seal(join(salt, rest))
    assert seal(str(join(salt, rest))) != seal(join(salt, rest))


@pytest.mark.sglang
def test_a_request_has_no_field_for_a_salt_that_we_do_not_read() -> None:
    # A port that does not read such a field would have tenants share their cache. Whoever ports
    # adds the field here, and to what `namespace_of` reads.
    from sglang.srt.managers.schedule_batch import Req

    names = inspect.signature(Req.__init__).parameters
    found = [name for name in names if "salt" in name or name.endswith("_key")]
    found.remove("routing_key")  # says where to, not whose
    assert found in (["extra_key"], ["extra_key", "cache_salt"])  # 0.5.17 and 0.5.23


def test_a_salt_in_a_field_of_its_own_parts_tenants_as_one_in_the_extra_key() -> None:
    obj = SimpleNamespace(cache_salt="ann", extra_key="k")
    assert sealed(obj) == sealed(obj) == seal(join("ann", "k"))
    assert obj.cache_salt is None
    assert sealed(SimpleNamespace(cache_salt=None, extra_key="k")) == "k"
    with pytest.raises(PromptError, match="cache_salt"):
        sealed(SimpleNamespace(cache_salt=["ann"], extra_key=None))


def test_a_salt_that_reaches_the_scheduler_in_its_own_field_is_read() -> None:
    req: Any = SimpleNamespace(extra_key="k", cache_salt="ann", lora_id=None)
    assert namespace_of(req).tenant == seal(join("ann", "k"))


def test_a_usual_extra_key_stays_as_it_is() -> None:
    assert seal("tenant 7") == "tenant 7"
    assert seal(None) is seal("") is None


@pytest.mark.parametrize("value", [["a"], {"a": 1}, 5, 1.5, True, b"a"])
@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
def test_what_is_no_text_is_refused(name: str, value: Any) -> None:
    with pytest.raises(PromptError, match=f"^{name} is .*send one text"):
        join(*((value, None) if name == "cache_salt" else (None, value)))


def test_the_disk_finds_a_namespace_by_what_it_was_before_it_had_names() -> None:
    assert Namespace("a").parts == ("a", "tree")
    assert Namespace(None, "sequential").parts == (None, "sequential")
    assert Namespace("a", "tree", "adapter").parts == ("a", "tree", "adapter")
    assert Namespace("a", "tree", None, "previous").parts == ("a", "tree", None, "previous")

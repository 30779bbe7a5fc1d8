# SPDX-License-Identifier: Apache-2.0
"""Salt, extra key and adapter: one tenant only where all three are the same (P4)."""

from __future__ import annotations

import inspect
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depcache.errors import PromptError
from sglang_patches.requests.tenants import MARK, Namespace, join, namespace_of, seal

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
    sealed = seal(join(salt, extra_key))
    assert sealed is None or type(sealed) is str
    return namespace_of(Req("r", "", tokens, SamplingParams(), lora_id=adapter, extra_key=sealed))


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
    # 0.5.23 has `cache_salt`: a port that does not read it in `compat.tenant_of` would have
    # tenants share. Whoever ports adds the field here, and to what is read.
    from sglang.srt.managers.schedule_batch import Req

    names = inspect.signature(Req.__init__).parameters
    found = [name for name in names if "salt" in name or name.endswith("_key")]
    assert found == ["extra_key", "routing_key"]  # the second says where to, not whose


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

# SPDX-License-Identifier: Apache-2.0
"""Keys of roots: equal for whoever reads the same request, different where the KV is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import depcache
from depcache.prompt.roots import (
    MARK,
    adapter_of,
    keys_of,
    of_tenant,
    read_roots,
    root_keys,
    roots_of,
    shared_keys,
    tenant_of,
)

PATHS = [("Ada", "knows", "Bob"), ("Ada", "lives in", "Rome"), ("Cid", "knows", "Ada")]


def chat(paths: Any = PATHS, question: str = "Who?", **options: Any) -> dict[str, Any]:
    prompt = depcache.render(paths, question, **options)
    return {"messages": prompt.messages, **prompt.extra_body}


def test_the_roots_are_what_rows_begin_with() -> None:
    assert roots_of(chat()) == ["Ada", "Cid"]
    prompt = depcache.render_chunks(["One text.", "Another."], "What?")
    body = {"messages": prompt.messages, **prompt.extra_body}
    assert roots_of(body) == ["One text.", "Another."]


def test_the_roots_of_ids_are_the_segments_that_see_the_system_alone() -> None:
    custom = {
        "depcache_system_len": 2,
        "depcache_segment_lens": [2, 1, 2],
        "depcache_segment_parents": [-1, 0, -1],
    }
    body = {"input_ids": list(range(8)), "sampling_params": {"custom_params": custom}}
    assert roots_of(body) == ["[2, 3]", "[5, 6]"]


def test_a_text_in_parts_is_one_text() -> None:
    body = chat()
    text = body["messages"][1]["content"]
    parts = [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}]
    body["messages"][1] = {"role": "user", "content": parts}
    assert roots_of(body) == ["Ada", "Cid"]


def test_each_root_has_a_key_and_its_first_row() -> None:
    keys = root_keys(chat())
    assert list(keys.values()) == [0, 2]
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)
    assert read_roots(chat()).texts == ["Ada", "Cid"]


def test_neither_question_nor_other_rows_nor_their_order_change_a_key() -> None:
    keys = set(root_keys(chat()))
    assert set(root_keys(chat(question="And who else?"))) == keys
    assert set(root_keys(chat(PATHS[::-1]))) == keys
    assert set(root_keys(chat([*PATHS, ("Dan", "knows", "Eve")]))) > keys
    # Rows of a fused request are computed as those of exact ones.
    assert set(root_keys(chat(recompute=0.15))) == keys


@pytest.mark.parametrize(
    "other",
    [
        chat(system="Other words."),
        chat(system=None),
        chat(layout="staggered"),
        {**chat(), "cache_salt": "alice"},
        {**chat(), "extra_key": "alice"},
        {**chat(), "lora_path": "adapter"},
        {**chat(), "model": "default:adapter"},
    ],
)
def test_what_the_kv_depends_on_changes_all_keys(other: dict[str, Any]) -> None:
    assert not set(root_keys(other)) & set(root_keys(chat()))
    assert len(root_keys(other)) == 2


def test_a_chat_and_the_same_as_one_text_are_different_systems() -> None:
    prompt = depcache.render(PATHS, "Who?", system=None)
    text = prompt.messages[0]["content"]
    body = {"text": text, "sampling_params": {"custom_params": prompt.params_in(text)}}
    assert read_roots(body).texts == ["Ada", "Cid"]
    assert len(root_keys(body)) == 2


def test_ids_have_keys_too() -> None:
    custom = {
        "depcache_system_len": 2,
        "depcache_segment_lens": [2, 1, 2],
        "depcache_segment_parents": [-1, 0, -1],
    }
    body = {"input_ids": list(range(8)), "sampling_params": {"custom_params": custom}}
    assert list(root_keys(body).values()) == [0, 2]


def test_tenants_are_never_joined_to_one_another() -> None:
    assert tenant_of(None, None) is None and tenant_of("", "") is None
    assert tenant_of(None, "key") == "key"
    told = [("al", "ice"), ("alice", None), (None, "alice"), (None, f"{MARK}5:alice")]
    assert len({tenant_of(*each) for each in told}) == 4
    with pytest.raises(TypeError):
        tenant_of(None, 5)  # type: ignore[arg-type]
    assert root_keys({**chat(), "extra_key": 5}) == {}


def test_an_adapter_is_named_in_two_ways() -> None:
    assert adapter_of({"lora_path": "a"}) == adapter_of({"model": "base:a"}) == "a"
    assert adapter_of({"model": "base"}) is None and adapter_of({"model": 5}) is None


def test_a_tenants_keys_are_made_of_those_that_no_tenant_has() -> None:
    for salt in (None, "t"):
        named = {} if salt is None else {"cache_salt": salt}
        body = chat() | named
        keys, tenant = shared_keys(body)
        assert keys == shared_keys(chat())[0] and tenant == tenant_of(salt, None)
        assert of_tenant(keys, tenant) == list(root_keys(body))
        assert not keys.keys() & root_keys(body).keys()
    with pytest.raises(ValueError, match="'no key'"):
        of_tenant(["no key"], None)
    assert shared_keys(None) == shared_keys({}) == ({}, None)


def test_the_same_roots_in_another_namespace_have_other_keys() -> None:
    roots = read_roots(chat())
    seen = [set(keys_of(roots, {}, *named)) for named in ((None, None), ("t", None), (None, "t"))]
    assert not seen[0] & seen[1] and not seen[1] & seen[2] and not seen[0] & seen[2]


@given(
    st.recursive(
        st.none() | st.integers(-3, 3) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["custom_params", "depcache_outline", "messages", "lens", "rows",
                             "start", "message", "content", "input_ids", "cache_salt", "model",
                             "sampling_params",
                             "depcache_segment_lens"]),
            inner,
            max_size=5,
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_no_body_is_an_error(body: Any) -> None:
    roots_of(body)
    root_keys(body)

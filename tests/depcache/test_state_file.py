# SPDX-License-Identifier: Apache-2.0
"""A state file gives back every object that was written wholly, wherever a run was killed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depcache.errors import ConfigError
from depcache.state_file import StateFile

rows = st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=6), max_size=3), max_size=6)


@given(first=rows, second=rows, cut=st.integers(0, 200))
def test_whole_lines_come_back_and_what_follows_is_not_spoilt(tmp_path_factory, first, second, cut):
    path = tmp_path_factory.mktemp("state") / "file"
    for row in first:
        StateFile(path).append(row)
    content = path.read_bytes() if path.exists() else b""
    content = content[: len(content) - cut] if cut <= len(content) else b""
    path.write_bytes(content)
    file = StateFile(path)
    kept = file.read()
    assert kept == first[: len(kept)]
    # A line whose end is lost but for the line break is whole.
    assert content.count(b"\n") <= len(kept) <= content.count(b"\n") + 1
    for row in second:
        file.append(row)
    assert StateFile(path).read() == kept + second


def test_a_file_that_is_not_there_is_empty_and_restart_empties_one(tmp_path):
    file = StateFile(tmp_path / "file")
    assert file.read() == []
    file.append({"a": 1})
    file.restart({"b": 2})
    assert file.read() == [{"b": 2}]


def test_lines_that_are_no_objects_are_left_out(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'[1]\nnull\n{"a": 1}\nx\n\xff\n')
    assert StateFile(path).read() == [{"a": 1}]


def test_a_place_that_cannot_be_used_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        StateFile(tmp_path).read()
    with pytest.raises(ConfigError, match="cannot write"):
        StateFile(tmp_path / "no" / "folder").append({})

# SPDX-License-Identifier: Apache-2.0
"""The commands as a shell calls them, in this process."""

from __future__ import annotations

import sys

import pytest

from depcache.cli import main


@pytest.fixture
def call(monkeypatch, capsys):
    """`call("schema")` runs a command; gives exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["depcache", *map(str, arguments)])
        monkeypatch.setattr(main.signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as caught:
            main.app_main()
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return run

# SPDX-License-Identifier: Apache-2.0
"""How long a test waits before it calls something hung: one place, and generous.

An end is no measurement. It is many times what a small idle machine needs, because another may
be ten times as slow and run other things beside; a test that is well ends with its event.
"""

SLOWEST_S = 1200.0
"""For anything that must happen in the end: an answer, the start of a server, the end of a child.
Below the end of a whole test, `timeout` in pyproject.toml, so that this one says what hangs."""

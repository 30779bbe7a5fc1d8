# SPDX-License-Identifier: Apache-2.0
"""Reuse of context that is only partly computed again: an oracle of all methods, and its tables."""

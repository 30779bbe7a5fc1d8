# SPDX-License-Identifier: Apache-2.0
"""Dependency prompts: the KV of a fact is computed once and reused wherever the fact appears."""

__version__ = "0.1.0"

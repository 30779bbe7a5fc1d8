# SPDX-License-Identifier: Apache-2.0
"""Prompts with dependency structure: from relation paths to flat integers."""

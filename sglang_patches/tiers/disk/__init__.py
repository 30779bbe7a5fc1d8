# SPDX-License-Identifier: Apache-2.0
"""KV on disk: what is stored and fetched when, whose it is, and how a damaged value is told."""

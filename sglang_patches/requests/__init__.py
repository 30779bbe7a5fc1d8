# SPDX-License-Identifier: Apache-2.0
"""Requests on their way in, through the cache and out again; whose KV they may read."""

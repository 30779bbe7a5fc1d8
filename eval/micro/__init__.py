# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of single pieces, without a server."""

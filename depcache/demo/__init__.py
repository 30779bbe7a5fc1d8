# SPDX-License-Identifier: Apache-2.0
"""The demo: a sample graph, a small retrieval, a small model, and the same questions twice."""

# SPDX-License-Identifier: Apache-2.0
"""Workloads, baselines, metrics and suites; speaks to servers over HTTP only."""

# SPDX-License-Identifier: Apache-2.0
"""The simulator: workloads replayed through the tree, policies and schedulers of a server."""

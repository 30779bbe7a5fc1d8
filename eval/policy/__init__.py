# SPDX-License-Identifier: Apache-2.0
"""The simulator: workloads replayed through the tree, the policies and the schedulers of a server."""

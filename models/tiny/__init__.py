# SPDX-License-Identifier: Apache-2.0
"""How depcache-tiny is made: synthetic graphs, questions about them, and the training."""

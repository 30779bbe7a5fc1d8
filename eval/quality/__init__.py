# SPDX-License-Identifier: Apache-2.0
"""Are the answers right? Questions, what is trained on, systems, scores."""

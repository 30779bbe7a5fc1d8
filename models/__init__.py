# SPDX-License-Identifier: Apache-2.0
"""Recipes of models: how they are made, and the distributions that hold them."""

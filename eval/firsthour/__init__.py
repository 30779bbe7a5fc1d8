# SPDX-License-Identifier: Apache-2.0
"""The way of a new user with a graph of his own, from a file to the first right answer."""

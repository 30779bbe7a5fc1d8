# SPDX-License-Identifier: Apache-2.0
"""Recognise the facts that a framework wrote into a prompt: a table of formats, and its reader."""

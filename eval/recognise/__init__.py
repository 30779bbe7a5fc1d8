# SPDX-License-Identifier: Apache-2.0
"""Does recognition find the facts in frameworks' prompts, and nothing in other texts?"""

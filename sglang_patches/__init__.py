# SPDX-License-Identifier: Apache-2.0
"""The SGLang side of DepCache: the only package that imports sglang."""

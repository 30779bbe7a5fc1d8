# SPDX-License-Identifier: Apache-2.0
"""Dependency-aware fine-tuning (DepCache paper, section 3.3): with the server's own masks."""

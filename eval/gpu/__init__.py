# SPDX-License-Identifier: Apache-2.0
"""What is measured on a GPU, part of `python -m eval attention`; CHECKS.md says what was."""

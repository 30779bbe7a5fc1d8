# SPDX-License-Identifier: Apache-2.0
"""How fast, against what: real servers of several systems, asked the same requests."""

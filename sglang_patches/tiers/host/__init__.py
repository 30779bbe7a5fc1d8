# SPDX-License-Identifier: Apache-2.0
"""KV in host memory: what stays there, how it is copied, the pool it lies in."""

# SPDX-License-Identifier: Apache-2.0
"""RoPE positions of cached keys. Importing `depcache.position.shift` needs torch."""

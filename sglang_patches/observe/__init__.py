# SPDX-License-Identifier: Apache-2.0
"""What the server tells about itself: metrics, counts of the cache, ages of what left it."""

# SPDX-License-Identifier: Apache-2.0
"""The slower tiers: KV rows move between device, host and disk; the tree decides which."""

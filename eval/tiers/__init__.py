# SPDX-License-Identifier: Apache-2.0
"""What host memory and disk are worth: time to first token by where the KV of a prompt lies."""

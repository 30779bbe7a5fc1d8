# SPDX-License-Identifier: Apache-2.0
"""What the tiers are called: in `Node.copies`, replies, metrics and files."""

DEVICE = "device"
HOST = "host"
DISK = "disk"

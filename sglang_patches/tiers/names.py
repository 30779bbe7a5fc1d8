# SPDX-License-Identifier: Apache-2.0
"""What the tiers are called: in `Node.copies`, replies, metrics and files."""

from typing import Final

DEVICE: Final = "device"
HOST: Final = "host"
DISK: Final = "disk"

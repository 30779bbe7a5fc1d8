# SPDX-License-Identifier: Apache-2.0
"""What a fully cached request costs on the host: its processor time, process by process."""

# SPDX-License-Identifier: Apache-2.0
"""What the demo and measurements start servers with: a command line, a process, small models."""

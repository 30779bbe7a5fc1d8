# SPDX-License-Identifier: Apache-2.0
"""The command `depcache`: start a server, look into it, check an installation, see the demo."""

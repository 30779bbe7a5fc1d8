# SPDX-License-Identifier: Apache-2.0
"""Everything at once against a real server, for as long as one likes, judged while it happens."""

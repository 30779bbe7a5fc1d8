# SPDX-License-Identifier: Apache-2.0
"""Which tokens of a cached context are computed again; numpy alone."""

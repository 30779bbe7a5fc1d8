# SPDX-License-Identifier: Apache-2.0
"""Several servers behind a router."""

# SPDX-License-Identifier: Apache-2.0
"""The routes under /depcache: from a body to a question in the scheduler, and what is refused."""

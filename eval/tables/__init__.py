# SPDX-License-Identifier: Apache-2.0
"""Text-to-SQL prompts: whose tables they hold, and the tokens they cost by what is reused."""

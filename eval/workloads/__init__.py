# SPDX-License-Identifier: Apache-2.0
"""What is asked: graphs, who is asked about, the paths that go with it, and questions."""

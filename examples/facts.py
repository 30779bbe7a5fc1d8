# SPDX-License-Identifier: Apache-2.0
"""The facts that the examples ask about; any list of paths does."""

PATHS = [
    ("Marie Curie", "born in", "Warsaw", "located in", "Poland"),
    (
        *("Marie Curie", "born in", "Warsaw", "inverse of flows through", "Vistula"),
        *("flows into", "Baltic Sea"),
    ),
    ("Marie Curie", "won", "Nobel Prize in Physics"),
    ("Marie Curie", "won", "Nobel Prize in Chemistry"),
    ("Vistula", "flows into", "Baltic Sea"),
]

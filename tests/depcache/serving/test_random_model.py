# SPDX-License-Identifier: Apache-2.0
"""The random models that things are measured with."""

from pathlib import Path
from typing import Any

import pytest

from depcache.serving.random_model import MARKER_FILE, load_flags, make_model

pytestmark = pytest.mark.sglang


def test_a_model_without_weights_can_say_whatever_it_draws(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    folder = tmp_path / "model"
    make_model(folder, "8b")
    assert load_flags(folder) == ["--load-format", "dummy"]
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == config.vocab_size == 128256
    assert all(tokenizer.batch_decode([[i] for i in range(5000, 128256, 1000)]))
    # Prompts must have as many tokens as with the small models, whose words these are.
    text = "Marie Curie -> born in -> Warsaw 1611 unused5000"
    assert max(tokenizer(text).input_ids) < 4096


def test_every_token_that_a_model_with_weights_chooses_has_text(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, LlamaForCausalLM

    folder = tmp_path / "model"
    make_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = LlamaForCausalLM.from_pretrained(folder)
    assert any("\ufffd" in text for text in tokenizer.batch_decode([[i] for i in range(300)]))
    asked = tokenizer("Marie Curie -> born in ->", return_tensors="pt")
    answer = model.generate(**asked, max_new_tokens=200, do_sample=True, top_k=50)
    for token in answer[0, asked.input_ids.shape[1] :].tolist():
        text = tokenizer.decode([token], skip_special_tokens=True)
        assert text.strip() and "\ufffd" not in text


def test_weights_that_are_there_are_loaded(tmp_path: Path) -> None:
    assert load_flags(tmp_path) == []  # somebody's model in another format
    (tmp_path / MARKER_FILE).write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert load_flags(tmp_path) == []

# SPDX-License-Identifier: Apache-2.0
"""An SGLang frontend program with a graph context, on the real server."""

from __future__ import annotations

import pytest

from depcache.errors import PromptError

pytestmark = pytest.mark.sglang

PATHS = [
    ["Frontend Corp", "founded by", "Ada"],
    ["Frontend Corp", "founded by", "Grace", "born in", "New York"],
]


@pytest.fixture(scope="module")
def endpoint(served):
    from sglang_patches.frontend import DepCacheEndpoint

    return DepCacheEndpoint(str(served.client.base_url))


def program(s, paths, question: str) -> None:
    import sglang as sgl

    from sglang_patches.frontend import graph_context

    s += "Answer from these facts:"
    s += graph_context(paths)
    s += f"\nQuestion: {question}\nAnswer:"
    s += sgl.gen("answer", max_tokens=3, temperature=0)


def test_a_program_sends_its_graph_context_and_reuses_it(endpoint) -> None:
    import sglang as sgl

    run = sgl.function(program)
    reports = [
        run.run(PATHS, question, backend=endpoint).get_meta_info("answer")["depcache"]
        for question in ("who?", "where?")
    ]
    assert reports[0]["missed"] > 0
    assert reports[1]["missed"] == 0
    assert reports[1]["shared"] == reports[1]["context_tokens"]


def test_a_forked_program_keeps_its_context(endpoint) -> None:
    import sglang as sgl

    from sglang_patches.frontend import graph_context

    reports = []

    @sgl.function
    def forked(s):
        s += "Facts:" + graph_context([["Forkland", "capital", "Forkville"]]) + "\n"
        branches = s.fork(2)
        for i, branch in enumerate(branches):
            branch += f"Question {i}:" + sgl.gen("answer", max_tokens=2, temperature=0)
        reports.extend(branch.get_meta_info("answer")["depcache"] for branch in branches)
        s += "done"

    state = forked.run(backend=endpoint)
    assert state.text().endswith("done")
    assert len(reports) == 2
    assert all(report["context_tokens"] for report in reports)


def test_a_stream_carries_the_context(endpoint) -> None:
    import sglang as sgl

    run = sgl.function(program)
    state = run.run(PATHS, "streamed?", backend=endpoint, stream=True)
    assert "".join(state.text_iter("answer"))
    assert state.get_meta_info("answer")["depcache"]["context_tokens"] > 0


def test_select_scores_choices_behind_a_context(endpoint) -> None:
    import sglang as sgl

    from sglang_patches.frontend import graph_context

    @sgl.function
    def choose(s):
        s += "Facts:" + graph_context(PATHS) + "\nWho?"
        s += sgl.select("name", choices=[" Ada", " Grace"])

    assert choose.run(backend=endpoint)["name"] in (" Ada", " Grace")


def test_a_program_without_context_is_plain(endpoint) -> None:
    import sglang as sgl

    @sgl.function
    def plain(s):
        s += "Hello" + sgl.gen("answer", max_tokens=2)

    assert "depcache" not in plain.run(backend=endpoint).get_meta_info("answer")


def test_an_empty_context_is_refused() -> None:
    from sglang_patches.frontend import graph_context

    with pytest.raises(PromptError, match="at least one path"):
        graph_context([])


def test_the_longest_context_in_a_text_is_found_and_a_doubled_one_is_not() -> None:
    from sglang_patches.frontend import find_context, graph_context

    short = graph_context([["find", "me"]])
    long = graph_context([["find", "me"], ["and", "me"]])
    found = find_context(f"a{long}b")
    assert found is not None
    assert len(found["depcache_outline"]["rows"]) == 2 and found["depcache_outline"]["start"] == 1
    assert find_context(f"{short}\nagain{short}") is None
    assert find_context("nothing") is None


def test_roles_are_written_as_depcache_tiny_knows_them(model_path) -> None:
    from sglang.lang.chat_template import get_chat_template_by_model_path
    from transformers import AutoTokenizer

    import sglang_patches.frontend  # noqa: F401  registers it
    from depcache.serving.tiny import TINY_NAME, resolve_model

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(TINY_NAME))
    written = get_chat_template_by_model_path(resolve_model(TINY_NAME)).get_prompt(messages)
    assert written == tokenizer.apply_chat_template(messages, tokenize=False)
    elsewhere = "/srv/venv/lib/depcache_tiny/model"
    assert get_chat_template_by_model_path(elsewhere).get_prompt(messages) == written
    other = get_chat_template_by_model_path(str(model_path("llama_gqa")))
    assert other.get_prompt(messages) != written

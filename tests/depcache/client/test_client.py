# SPDX-License-Identifier: Apache-2.0
"""The client sends what the contract says and turns every failure into one sentence."""

import json

import httpx
import pytest

from depcache.client import Client, ReuseReport, Usage
from depcache.errors import PromptError, ServerError
from depcache.prompt.dep_prompt import DepPrompt
from depcache.prompt.render import render
from depcache.tables import Catalog, Table, render_tables
from tests.depcache.client.fake_server import REPORT, FakeServer, chat_chunks, sse

PATHS = [("Marie Curie", "born in", "Warsaw")]
PROMPT = DepPrompt.from_paths(
    PATHS,
    tokenizer=lambda texts: [[ord(letter) for letter in text] for text in texts],
    task="?",
)


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def client(server):
    with httpx.Client(transport=server.transport) as http:
        yield Client("http://test/v1", "secret", http_client=http)


def answering(status, content=b"", **options):
    """A client whose server answers this to everything."""
    response = httpx.Response(status, content=content, **options)
    http = httpx.Client(transport=httpx.MockTransport(lambda request: response))
    return Client("http://test", http_client=http)


# asking


def test_ask_sends_the_rendered_prompt_and_reads_the_reply(client, server):
    reply = client.ask(PATHS, "Where?", layout="staggered", max_tokens=9, seed=4)
    rendered = render(PATHS, "Where?", layout="staggered")
    assert server.requests[-1][0] == "/v1/chat/completions"
    assert server.body == {
        "model": "default",
        "messages": rendered.messages,
        "max_tokens": 9,
        "temperature": 0.0,
        "seed": 4,
        **rendered.extra_body,
    }
    assert server.headers[-1]["authorization"] == "Bearer secret"
    assert reply.text == "Warsaw"
    assert reply.usage == Usage(30, 2, 15)
    assert reply.depcache == ReuseReport(**REPORT)
    assert reply.depcache.reused == 15
    assert reply.finish_reason == "stop"
    assert reply.ttft_s is None
    assert reply.total_s > 0


def test_ask_tables_sends_the_rendered_prompt(client, server):
    catalog = Catalog([Table("album", "ALBUM", ("artist",)), Table("artist", "ARTIST")])
    reply = client.ask_tables(catalog, ["album"], "How many?", max_tokens=9, cache_salt="ann")
    rendered = render_tables(catalog, ["album"], "How many?")
    assert server.body == {
        "model": "default",
        "messages": rendered.messages,
        "max_tokens": 9,
        "temperature": 0.0,
        "cache_salt": "ann",
        **rendered.extra_body,
    }
    assert reply.depcache == ReuseReport(**REPORT)
    client.ask_tables(catalog, ["album"], "How many?", sees="nothing")
    assert "sees" not in server.body["custom_params"]["depcache_outline"]
    client.ask_tables(catalog, None, "How many?", close=False, system=None, stream=True).finish()
    assert server.body["messages"] == rendered.messages[1:] and server.body["stream"]


def test_ask_as_a_stream_gives_deltas_then_the_reply(client, server):
    with client.ask(PATHS, "Where?", stream=True) as stream:
        assert list(stream) == ["War", "saw"]
    reply = stream.finish()
    assert server.body["stream_options"] == {"include_usage": True}
    assert reply.text == "Warsaw"
    assert reply.depcache == ReuseReport(**REPORT)
    assert reply.usage.cached_tokens == 15
    assert reply.finish_reason == "stop"
    assert 0 < reply.ttft_s <= reply.total_s


def test_finish_reads_what_is_left_of_a_stream(client):
    stream = client.ask(PATHS, "Where?", stream=True)
    assert next(iter(stream)) == "War"
    assert stream.finish().text == "Warsaw"


def test_generate_sends_a_dependency_prompt_as_ids(client, server):
    reply = client.generate(PROMPT, max_tokens=2, top_k=1)
    input_ids, custom_params = PROMPT.to_wire()
    assert server.requests[-1] == (
        "/generate",
        {
            "input_ids": input_ids,
            "sampling_params": {
                "max_new_tokens": 2,
                "temperature": 0.0,
                "custom_params": custom_params,
                "top_k": 1,
            },
        },
    )
    assert (reply.text, reply.token_ids, reply.finish_reason) == ("Warsaw", (1, 2), "length")
    assert reply.usage == Usage(30, 2, 15)
    assert reply.depcache == ReuseReport(**REPORT)


def test_generate_as_a_stream_gives_only_what_is_new(client):
    with client.generate("text", stream=True) as stream:
        assert list(stream) == ["War", "saw"]
        assert stream.finish().text == "Warsaw"


def test_generate_takes_text_and_ids(client, server):
    client.generate("text")
    assert server.body["text"] == "text"
    client.generate((1, 2))
    assert server.body["input_ids"] == [1, 2]


@pytest.mark.parametrize(
    ("request_", "key"),
    [(render(PATHS, "Where?"), "messages"), (PROMPT, "input_ids"), ({"text": "a"}, "text")],
)
def test_explain_takes_what_can_be_sent(client, server, request_, key):
    assert client.explain(request_)["missed"] == 5
    assert server.requests[-1][0] == "/depcache/explain"
    assert key in server.body


def test_tokens_are_counted_by_the_server(client):
    assert client.count_tokens([{"role": "user", "content": "a"}]) == 7


def test_bad_paths_never_leave_the_client(client, server):
    with pytest.raises(PromptError):
        client.ask([("",)], "Where?")
    assert server.requests == []


def test_a_value_that_is_no_json_is_a_prompt_error(client):
    with pytest.raises(PromptError, match="no JSON"):
        client.ask(PATHS, "Where?", stop={1, 2})


# reports


def test_a_report_of_a_newer_server_is_read():
    assert ReuseReport.from_dict({"shared": 3, "brand_new": 1}) == ReuseReport(shared=3)


@pytest.mark.parametrize("data", [None, [], "odd"])
def test_no_report_is_none(data):
    assert ReuseReport.from_dict(data) is None


@pytest.mark.parametrize("details", [None, {}, {"cached_tokens": None}])
def test_no_hit_counts_as_zero(details):
    assert Usage.from_dict({"prompt_tokens": 5, "prompt_tokens_details": details}) == Usage(5)


def test_a_server_without_depcache_answers_too():
    content = json.dumps({"choices": [{"index": 0, "message": {"content": "x"}}]}).encode()
    reply = answering(200, content).ask(PATHS, "Where?")
    assert reply.text == "x"
    assert reply.depcache is None


# failures


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "segment 3 is empty", "code": 400},
        {"error": {"message": "segment 3 is empty"}},
        {"error": "segment 3 is empty"},
        {"detail": "segment 3 is empty."},
    ],
)
def test_a_refused_prompt_gives_the_reason_of_the_server(body):
    with pytest.raises(PromptError, match=r"HTTP 400\): segment 3 is empty$"):
        answering(400, json.dumps(body).encode()).ask(PATHS, "Where?")


def test_a_refused_stream_gives_the_reason_too():
    with pytest.raises(PromptError, match="too long"):
        answering(400, b'{"message": "too long"}').ask(PATHS, "Where?", stream=True)


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (401, b'{"error":"Unauthorized"}', "refused the key"),
        (500, b"<html>odd</html>", "HTTP 500.*odd"),
        (503, b"", "no reason given"),
        (200, b"[]", "no JSON object"),
        (200, b"\xff", "no JSON object"),
    ],
)
def test_other_failures_are_server_errors_of_one_line(status, content, words):
    with pytest.raises(ServerError, match=words) as caught:
        answering(status, content).ask(PATHS, "Where?")
    assert "\n" not in str(caught.value)


def test_a_server_without_our_routes_is_told_apart():
    with pytest.raises(ServerError, match="depcache serve"):
        answering(404, b'{"detail":"Not Found"}').status()


def test_a_failure_keeps_the_status_of_the_answer():
    for status in (401, 404, 500, 503):
        with pytest.raises(ServerError) as caught:
            answering(status, b"oops").stats()
        assert caught.value.status == status
    with pytest.raises(ServerError) as caught, Client("http://127.0.0.1:9") as c:
        c.stats()
    assert caught.value.status is None


def test_persist_is_none_only_where_the_route_is_missing():
    assert answering(404, b'{"detail":"Not Found"}').persist() is None
    assert answering(200, b'{"tokens":7}').persist() == {"tokens": 7}
    with pytest.raises(ServerError):
        answering(500, b"oops").persist()


def test_the_model_is_told_with_the_longest_prompt():
    def answer(request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 4096}]})
        return httpx.Response(200, json={"model_path": "models/m"})

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        info = Client("http://test", http_client=http).model_info()
    assert info == {"model_path": "models/m", "max_model_len": 4096}


def test_a_server_that_is_not_there_is_a_server_error():
    with pytest.raises(ServerError, match="cannot be reached"), Client("http://127.0.0.1:9") as c:
        c.status()


def test_a_slow_server_is_a_server_error():
    def wait(request):
        raise httpx.ReadTimeout("slow", request=request)

    http = httpx.Client(transport=httpx.MockTransport(wait))
    with pytest.raises(ServerError, match="timeout_s"):
        Client("http://test", http_client=http).status()


def test_an_address_that_is_none_is_a_server_error():
    with pytest.raises(ServerError, match="cannot be reached"), Client("nowhere") as client:
        client.status()


def test_a_server_that_is_not_there_is_not_ready():
    with Client("http://127.0.0.1:9") as client:
        assert not client.is_ready()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (sse(*chat_chunks()[:2], {"error": {"message": "out of memory"}}), "out of memory"),
        (sse(*chat_chunks()[:2], done=False), "without its closing line"),
        (b"data: {odd\n\n", "no JSON"),
        (b"data: 3\n\n", "no object"),
    ],
)
def test_a_stream_that_fails_says_why(content, words):
    stream = answering(200, content).ask(PATHS, "Where?", stream=True)
    with pytest.raises(ServerError, match=words):
        stream.finish()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_ends_a_line_elsewhere_may_stand_in_an_answer(size):
    """SGLang writes characters as they are; U+2028 and U+0085 end no line of an event stream."""
    odd = "a\u2028b\x85c\u2029"
    chunks = chat_chunks()
    chunks[1]["choices"][0]["delta"]["content"] = odd
    content = sse(*chunks).replace(json.dumps(odd).encode(), f'"{odd}"'.encode())
    assert odd.encode() in content
    parts = (content[i : i + size] for i in range(0, len(content), size))
    stream = answering(200, parts).ask(PATHS, "Where?", stream=True)
    assert stream.finish().text == f"{odd}saw"


def test_a_stream_closed_early_has_no_reply(client):
    with client.ask(PATHS, "Where?", stream=True) as stream:
        next(iter(stream))
    with pytest.raises(ServerError, match="closed"):
        stream.finish()


def test_a_chat_with_facts_in_its_text_alone_says_once_that_they_are_not_read(caplog):
    fake = FakeServer()
    client = Client("http://test", http_client=httpx.Client(transport=fake.transport))
    messages = [{"role": "user", "content": "Facts:\nA -> in -> B\nB -> in -> C\n\nWhere?"}]
    client.ask([("A", "in", "B"), ("B", "in", "C")], "Where?")
    assert caplog.messages == []
    client.chat(messages)
    client.chat(messages)
    [said] = caplog.messages
    assert "'A -> in -> B'" in said and "depcache.render" in said


def test_a_client_that_sends_plain_text_on_purpose_says_nothing(caplog):
    http = httpx.Client(transport=FakeServer().transport)
    client = Client("http://test", http_client=http, warn_unread=False)
    client.chat([{"role": "user", "content": "Facts:\nA -> in -> B\nB -> in -> C\n\nWhere?"}])
    assert caplog.messages == []

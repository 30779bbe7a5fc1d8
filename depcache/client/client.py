# SPDX-License-Identifier: Apache-2.0
"""A small client of a DepCache server: ask about paths, see what was reused.

    client = Client("http://127.0.0.1:30000")
    reply = client.ask([("Marie Curie", "born in", "Warsaw")], "Where was Marie Curie born?")
    print(reply.text, reply.depcache)

Needs httpx only. A server without DepCache answers too; `reply.depcache` is then None.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import httpx

from depcache.client.address import read_address
from depcache.client.bodies import body_of, generate_body
from depcache.client.notice import UnreadNotice
from depcache.client.reply import Reply
from depcache.client.routing import Routing
from depcache.client.stream import ReplyCollector, ReplyStream
from depcache.client.wire_format import GenerateReader, ReadPiece, read_chat_piece, read_error
from depcache.errors import PromptError, ServerError, shorten
from depcache.prompt.chunks import TextBehind
from depcache.prompt.layout_names import Layout
from depcache.prompt.recompute import DEFAULT_SHARE, Recompute
from depcache.prompt.render import (
    DEFAULT_CHUNK_SYSTEM,
    DEFAULT_SYSTEM,
    DEFAULT_TABLE_SYSTEM,
    RenderedPrompt,
    render,
    render_chunks,
)
from depcache.prompt.template import Template
from depcache.prompt.unread import texts_of

if TYPE_CHECKING:
    from depcache.prompt.dep_prompt import DepPrompt
    from depcache.tables.catalog import Catalog
    from depcache.tables.seen import Sees

DEFAULT_URL = "http://127.0.0.1:30000"
DEFAULT_MAX_TOKENS = 128


class Client:
    """A connection pool to one server. Usable as a context manager; safe to share by threads.

    base_url     with or without a scheme, and a trailing "/v1"
    api_key      what the server was started with; None for none
    timeout_s    longest wait for the next bytes of an answer, seconds
    model        sent as `model` on the OpenAI routes; SGLang takes any name for its one model
    http_client  an `httpx.Client` to use instead; it stays the caller's to close
    warn_unread  whether the log says, once, that a chat held facts as plain text
    picker       address of a `depcache picker` beside a router; http://:KEY@host:port with its key

    Raises ConfigError for what is no address, PromptError when a prompt is refused (HTTP 400),
    ServerError for every other failure.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        api_key: str | None = None,
        *,
        timeout_s: float = 600.0,
        model: str = "default",
        http_client: httpx.Client | None = None,
        warn_unread: bool = True,
        picker: str | None = None,
    ) -> None:
        self.base_url = read_address(base_url)
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        advice = "use `ask`, or `depcache.render` and its `extra_body`"
        self._notice = UnreadNotice(advice) if warn_unread else None
        self._routing = Routing(picker)
        self._owns_http = http_client is None
        self._http = http_client or httpx.Client(timeout=httpx.Timeout(timeout_s, connect=10.0))

    # --- asking ---

    @overload
    def ask(
        self,
        paths: Iterable[Any],
        question: str,
        *,
        stream: Literal[False] = False,
        system: str | None = DEFAULT_SYSTEM,
        layout: Layout = "tree",
        template: str | Template = "path",
        recompute: float | Recompute | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.0,
        **fields: Any,
    ) -> Reply: ...

    @overload
    def ask(
        self,
        paths: Iterable[Any],
        question: str,
        *,
        stream: Literal[True],
        system: str | None = DEFAULT_SYSTEM,
        layout: Layout = "tree",
        template: str | Template = "path",
        recompute: float | Recompute | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.0,
        **fields: Any,
    ) -> ReplyStream: ...

    def ask(
        self,
        paths: Iterable[Any],
        question: str,
        *,
        stream: bool = False,
        system: str | None = DEFAULT_SYSTEM,
        layout: Layout = "tree",
        template: str | Template = "path",
        recompute: float | Recompute | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.0,
        **fields: Any,
    ) -> Reply | ReplyStream:
        """Ask `question` about `paths` over `/v1/chat/completions`; see `depcache.render`.

        stream       True gives a `ReplyStream` at once, False the `Reply` when it is complete
        temperature  0 is greedy
        fields       further fields of the request (`seed=1`, `cache_salt="tenant"`, ...)
        """
        prompt = render(
            paths, question, system=system, layout=layout, template=template, recompute=recompute
        )
        return self.chat(
            prompt.messages,
            stream=stream,
            max_tokens=max_tokens,
            temperature=temperature,
            **prompt.extra_body,
            **fields,
        )

    def ask_chunks(
        self,
        chunks: Iterable[str],
        question: str,
        *,
        stream: bool = False,
        system: str | None = DEFAULT_CHUNK_SYSTEM,
        recompute: float | Recompute | None = DEFAULT_SHARE,
        behind: Iterable[TextBehind] | None = None,
        **fields: Any,
    ) -> Any:
        """Ask `question` about chunks of text; see `depcache.render_chunks`. Returns as `ask`.

        fields  as for `chat`
        """
        prompt = render_chunks(chunks, question, system=system, recompute=recompute, behind=behind)
        return self.chat(prompt.messages, stream=stream, **prompt.extra_body, **fields)

    def ask_tables(
        self,
        catalog: Catalog,
        tables: Iterable[str] | None,
        question: str,
        *,
        stream: bool = False,
        system: str | None = DEFAULT_TABLE_SYSTEM,
        sees: Sees = "references",
        close: bool = True,
        **fields: Any,
    ) -> Any:
        """Ask `question` about tables; see `depcache.tables.render_tables`. Returns as `ask`.

        fields  as for `chat`
        """
        from depcache.tables.render import render_tables  # brings networkx

        prompt = render_tables(catalog, tables, question, system=system, sees=sees, close=close)
        return self.chat(prompt.messages, stream=stream, **prompt.extra_body, **fields)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stream: bool = False,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.0,
        **fields: Any,
    ) -> Any:
        """Any chat; dependency data travels in the field `custom_params`. Returns as `ask`.

        Facts in the text alone are not read: the log says so, once for each client.
        """
        if self._notice is not None and not fields.get("custom_params"):
            self._notice.look(texts_of(messages))
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            **fields,
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return self._answer("/v1/chat/completions", body, read_chat_piece, stream)

    def generate(
        self,
        prompt: DepPrompt | str | Sequence[int],
        *,
        stream: bool = False,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.0,
        **sampling_params: Any,
    ) -> Any:
        """Continue a prompt as it is over `/generate`, with no chat template. Returns as `ask`.

        prompt  a `DepPrompt` (sent as ids, so build it with the server's tokenizer), plain
                text, or plain ids
        """
        body = generate_body(prompt)
        body["sampling_params"] = {
            "max_new_tokens": max_tokens,
            "temperature": temperature,
            **body.get("sampling_params", {}),
            **sampling_params,
        }
        if stream:
            body["stream"] = True
        return self._answer("/generate", body, GenerateReader(), stream)

    # --- looking ---

    def explain(self, request: RenderedPrompt | DepPrompt | Mapping[str, Any]) -> dict[str, Any]:
        """How the server would cut and reuse a prompt, generating nothing.

        request  what `depcache.render` made, a `DepPrompt`, or the body of a request to
                 `/v1/chat/completions` or `/generate`
        """
        return self._json("POST", "/depcache/explain", body_of(request))

    def status(self) -> dict[str, Any]:
        """Versions, seams and hooks in place, cache counts and settings of the server."""
        return self._json("GET", "/depcache/status")

    def stats(self) -> dict[str, Any]:
        """What each tier of the cache holds, can hold and was of use."""
        return self._json("GET", "/depcache/stats")

    def model_info(self) -> dict[str, Any]:
        """What SGLang says of the model it serves, with `max_model_len` in tokens if it is told."""
        info = self._json("GET", "/model_info")
        models = self._json("GET", "/v1/models").get("data") or [{}]
        return {"max_model_len": models[0].get("max_model_len"), **info}

    def is_ready(self) -> bool:
        """Whether the server answers and has loaded its model."""
        try:
            # SGLang makes a token before it answers, for which it gives itself 20 seconds.
            return self._http.get(self.base_url + "/health", timeout=30.0).is_success
        except httpx.HTTPError:
            return False

    def count_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of a chat as plain text, chat template included."""
        body = {"model": self._model, "messages": list(messages)}
        return int(self._json("POST", "/v1/tokenize", body)["count"])

    # --- housekeeping ---

    def persist(self) -> dict[str, Any] | None:
        """Have the server write what is not on its disk tier yet; it goes on after the answer.

        Returns {"tokens": that wait to be written, ...}, or None from a server without this route.
        """
        try:
            return self._json("POST", "/depcache/persist")
        except ServerError as error:
            if error.status == 404:
                return None
            raise

    def invalidate(
        self, request: RenderedPrompt | DepPrompt | Mapping[str, Any], *, ends_only: bool = False
    ) -> dict[str, Any]:
        """Give up the KV of all that begins with one of the paths of `request`, in every tier.

        request    as for `explain`; what stands before its facts must be what stood there. A path
                   of one element means that entity's trees. All layouts and all tenants are meant,
                   unless it has a `cache_salt`
        ends_only  rows stay that others of the request stand behind, or see

        Returns {"tokens": {tier: given up}, "in_use": tokens that running requests read, and that
        stay so long}. See `depcache.precompute.invalidate` for a change of a graph.
        """
        path = "/depcache/invalidate" + "?ends_only=true" * ends_only
        return self._json("POST", path, body_of(request))

    def close(self) -> None:
        """Close the connections, unless the `httpx.Client` was the caller's."""
        if self._owns_http:
            self._http.close()
        self._routing.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(
        self, route: str, body: dict[str, Any], read_piece: ReadPiece, stream: bool
    ) -> Reply | ReplyStream:
        started = time.perf_counter()
        routing = self._routing.headers_of(body)
        response = self._send("POST", route, body, stream=stream, headers=routing)
        if stream:
            return ReplyStream(response, read_piece, started)
        collector = ReplyCollector(started)
        collector.add(read_piece(_read_object(response)))
        return collector.finish(streamed=False)

    def _json(
        self, method: str, route: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        return _read_object(self._send(method, route, body))

    def _send(
        self,
        method: str,
        route: str,
        body: Mapping[str, Any] | None,
        *,
        stream: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        url = self.base_url + route
        headers = {**self._headers, **(headers or {})}
        try:
            request = self._http.build_request(method, url, json=body, headers=headers)
            response = self._http.send(request, stream=stream)
            if response.is_success:
                self._routing.learn(request.headers, response.headers)
                return response
            reason = read_error(response.read())
        except (TypeError, ValueError) as error:
            raise PromptError(f"the request is no JSON ({error}): send plain values") from error
        except httpx.TimeoutException:
            raise ServerError(f"{url} did not answer in time: wait, or raise timeout_s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(
                f"{url} cannot be reached ({error}): check the address, and that the server runs"
            ) from None  # httpx and httpcore say the same in sixty lines
        raise _make_error(response.status_code, route, url, reason)


def _make_error(status: int, route: str, url: str, reason: str) -> PromptError | ServerError:
    """The error for an answer that is no success."""
    if status in (400, 413, 422):
        return PromptError(f"the server refused the request (HTTP {status}): {reason}")
    if status in (401, 403):
        sentence = f"{url} refused the key (HTTP {status}): set the server's api_key"
    elif status == 404 and route.startswith("/depcache/"):
        sentence = (
            f"{url} is not there (HTTP 404): the server runs without DepCache, start it with "
            "`depcache serve` and without --stock"
        )
    else:
        sentence = f"{url} failed (HTTP {status}): {reason}"
    error = ServerError(sentence)
    error.status = status
    return error


def _read_object(response: httpx.Response) -> dict[str, Any]:
    try:
        data = response.json()
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise ServerError(
            f"{response.request.url} answered {shorten(response.text)}, which is no JSON object: "
            "check that the address is an SGLang server"
        )
    return data

# SPDX-License-Identifier: Apache-2.0
"""An answer that is still coming: text deltas first, then the whole `Reply`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import httpx

from depcache.client.reply import Reply, ReuseReport, Usage
from depcache.client.wire_format import Piece, ReadPiece, find_reason
from depcache.errors import ServerError, shorten

_DATA = "data:"
_DONE = "[DONE]"


class ReplyCollector:
    """Adds up the pieces of one answer. `started` is `time.perf_counter()` at sending."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._texts: list[str] = []
        self._usage = Usage()
        self._report: ReuseReport | None = None
        self._finish_reason: str | None = None
        self._token_ids: tuple[int, ...] | None = None
        self._ttft_s: float | None = None

    def add(self, piece: Piece) -> None:
        if piece.has_token and self._ttft_s is None:
            self._ttft_s = time.perf_counter() - self._started
        self._texts.append(piece.text)
        self._usage = piece.usage or self._usage
        self._report = piece.report or self._report
        self._finish_reason = piece.finish_reason or self._finish_reason
        self._token_ids = piece.token_ids or self._token_ids

    def finish(self, *, streamed: bool) -> Reply:
        return Reply(
            text="".join(self._texts),
            usage=self._usage,
            depcache=self._report,
            finish_reason=self._finish_reason,
            token_ids=self._token_ids,
            # Without a stream the first token's time is not known here.
            ttft_s=self._ttft_s if streamed else None,
            total_s=time.perf_counter() - self._started,
        )


class ReplyStream:
    """Iterate over it for the text as it comes; `finish()` then gives the `Reply`.

        with client.ask(paths, question, stream=True) as stream:
            for text in stream:
                print(text, end="", flush=True)
        print(stream.finish().depcache)

    Leaving the `with` block early closes the connection, and the server stops generating.
    Raises ServerError when the server reports an error, or the stream breaks off.
    """

    def __init__(self, response: httpx.Response, read_piece: ReadPiece, started: float) -> None:
        self._response = response
        self._read_piece = read_piece
        self._collector = ReplyCollector(started)
        self._reply: Reply | None = None
        self._texts = self._read()

    def __iter__(self) -> Iterator[str]:
        return self._texts

    def finish(self) -> Reply:
        """Read what is left and return the whole answer."""
        for _ in self._texts:
            pass
        if self._reply is None:
            raise ServerError("the stream was closed before its end: there is no whole reply")
        return self._reply

    def close(self) -> None:
        """Give up the rest. Safe to call twice."""
        self._texts.close()
        self._response.close()

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> Any:
        try:
            for line in _read_lines(self._response.iter_bytes()):
                if not line.startswith(_DATA):
                    continue
                data = line.removeprefix(_DATA).strip()
                if data == _DONE:
                    self._reply = self._collector.finish(streamed=True)
                    return
                piece = self._read_piece(_parse(data))
                self._collector.add(piece)
                if piece.text:
                    yield piece.text
        except httpx.HTTPError as error:
            raise ServerError(f"the stream broke off ({error}): ask again") from None
        finally:
            self._response.close()
        raise ServerError("the stream ended without its closing line: ask again")


def _read_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of an event stream as they come.

    Not `iter_lines`, which ends a line at U+2028 and U+0085 as well: an answer may hold them.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


def _parse(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        raise ServerError(f"the stream holds {shorten(data)}, which is no JSON") from None
    if not isinstance(chunk, dict):
        raise ServerError(f"the stream holds {shorten(data)}, which is no object")
    if chunk.get("error") or chunk.get("object") == "error":
        raise ServerError(f"the server gave up on the answer: {find_reason(chunk)}")
    return chunk

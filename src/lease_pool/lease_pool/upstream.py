"""Keep-alive connections to one worker.

Built on aiohttp's own client protocol (its C parser, flow control and framing) without `ClientSession`: a proxy needs no cookies,
redirects, URL building or header merging, and those cost more than everything else in the pool's hot path (tests/bench shows both).
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import ClientError, StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError

from lease_pool.types import Endpoint

_IDLE_MAX = 512  # connections kept for a next request: more requests than this at once open new ones each time
_IDLE_S = 4.0  # servers close idle connections themselves, llama-server's after 5 s; meeting that close would cost a retry
_CONNECT_RETRY_S = 0.02
_WORKER_LINE_MAX = 65536

WORKER_ERRORS = (ClientError, OSError, HttpProcessingError, EOFError)


class Upstream:
    """The connections to one worker. A worker's end closes them; a new worker gets a new `Upstream`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        authorization = b"Authorization: Bearer %b\r\n" % endpoint.api_key.encode() if endpoint.api_key else b""
        self.head = b" HTTP/1.1\r\nHost: worker\r\n" + authorization
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[ResponseHandler, float]] = []
        self._closed = False

    async def exchange(self, request: bytes, body: bytes) -> Exchange:
        """Send a request; the caller reads the answer from the exchange and must `end` it. Raises WORKER_ERRORS."""
        connection = self._take()
        reused = connection is not None
        if connection is None:
            connection = await self._connect()
        return Exchange(self, connection, request, body, reused)

    def close(self) -> None:
        """Close what is idle; connections in use close when their exchange ends."""
        self._closed = True
        for connection, _ in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self) -> ResponseHandler | None:
        oldest = self._loop.time() - _IDLE_S
        while self._idle:
            connection, since = self._idle.pop()
            if since >= oldest and connection.is_connected() and not connection.should_close:
                return connection
            connection.close()
        return None

    def give_back(self, connection: ResponseHandler) -> None:
        """Keep a connection for the next request, if it can serve one."""
        if self._closed or connection.should_close or not connection.is_connected() or len(self._idle) >= _IDLE_MAX:
            connection.close()
        else:
            self._idle.append((connection, self._loop.time()))

    async def _connect(self) -> ResponseHandler:
        """A new connection; waits, within the caller's deadline, while the worker's backlog is full."""
        endpoint, loop = self.endpoint, self._loop
        while True:
            try:
                connection: Any
                if endpoint.socket is not None:
                    _, connection = await loop.create_unix_connection(lambda: ResponseHandler(loop), str(endpoint.socket))
                else:
                    _, connection = await loop.create_connection(lambda: ResponseHandler(loop), endpoint.host, endpoint.port)
            except BlockingIOError:
                await asyncio.sleep(_CONNECT_RETRY_S)
                continue
            connection.set_response_params(
                read_until_eof=True, auto_decompress=False, max_line_size=_WORKER_LINE_MAX, max_field_size=_WORKER_LINE_MAX
            )
            assert isinstance(connection, ResponseHandler)  # noqa: S101  the factory above made it
            return connection


class Exchange:
    """One request on one connection."""

    __slots__ = ("_answered", "_body", "_connection", "_request", "_reused", "_upstream", "body", "head")

    head: RawResponseMessage
    body: StreamReader

    def __init__(self, upstream: Upstream, connection: ResponseHandler, request: bytes, body: bytes, reused: bool) -> None:
        self._upstream = upstream
        self._connection = connection
        self._request = request
        self._body = body
        self._reused = reused
        self._answered = False
        self._send()

    async def answered(self) -> None:
        """Return when `head` and `body` can be read; interim answers are skipped.

        A kept connection that the worker closed in the meantime fails before any answer: the request is sent once more on a new one. Raises WORKER_ERRORS.
        """
        while True:
            try:
                self.head, self.body = await self._connection.read()
            except WORKER_ERRORS:
                if not self._reused:
                    raise
                self._reused = False
                self._connection.close()
                self._connection = await self._upstream._connect()
                self._send()
                continue
            if self.head.code >= 200 or self.head.code == 101:
                self._answered = True
                return
            self._reused = False

    def end(self) -> None:
        """The connection goes back for reuse after a whole answer, and is closed otherwise: that is how the worker learns that nobody listens."""
        if self._whole():
            self._upstream.give_back(self._connection)
        else:
            self._connection.close()

    def _whole(self) -> bool:
        # The connection itself does not know of a request that is not answered yet: kept, its answer would be the next request's.
        return self._answered and self.body.is_eof() and self.body.exception() is None

    def abort(self) -> None:
        """Fail the exchange now; who reads it gets an error."""
        transport = self._connection.transport
        if transport is not None:
            transport.abort()

    def _send(self) -> None:
        transport = self._connection.transport
        if transport is None:
            raise ConnectionResetError("the worker closed the connection")
        if len(self._body) < 65536:
            transport.write(self._request + self._body)
        else:
            transport.write(self._request)
            transport.write(self._body)

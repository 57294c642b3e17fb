"""aiohttp's low-level HTTP server with this pool's limits: connections, time to send a head, leaving clients, and the parser's own refusals.

`aiohttp.web.Server` has no router, no middlewares and no response objects in the way; `Connection` changes only what a proxy must decide
otherwise than a web application.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from lease_pool.envelope import envelope
from lease_pool.reply import JSON, ClientGone, Reply
from lease_pool.types import Refused

log = logging.getLogger("lease_pool.http")

LINE_MAX = 8190  # bytes of the request line and of one header
HEADERS_MAX = 100
HEAD_S = 10.0  # from the first byte of a head to its end
IDLE_S = 75.0  # a connection without a request
LINGER_S = 5.0  # how long the rest of a refused body is read, so that the answer is not lost in a reset
CONNECTIONS_MAX = 16384
_DESCRIPTORS_KEPT = 512  # for workers, locks, logs

Handler = Callable[[web.BaseRequest], Awaitable[Any]]


class Connection(web.RequestHandler):
    """One client connection. `busy` while a request of it is served."""

    def __init__(self, server: HttpServer, **settings: Any) -> None:
        super().__init__(server, **settings)
        self.busy = False
        self._server = server
        self._counted = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve, or refuse at once when there are too many connections."""
        if self._server.open_connections >= self._server.connections_max:
            refused = Refused(503, "too_many_connections", "this pool has no more connections to give", 1)
            _write_and_close(cast(asyncio.Transport, transport), 503, "Service Unavailable", refused, b"Retry-After: 1\r\n")
            self._server.answered("other", 503)
            self.force_close()
            return
        self._counted = True
        self._server.open_connections += 1
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancels the request that is being served (`handler_cancellation`): the client left."""
        if self._counted:
            self._counted = False
            self._server.open_connections -= 1
        self.head_complete()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """A half-close is leaving. Aborting, not closing: a close would wait for a client that reads no more."""
        if self.busy and self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """As aiohttp does; an unfinished head gets a deadline of its own, because the idle one is far too long for it."""
        before = self._request_count
        super().data_received(data)
        if data and not self.busy and self._request_count == before and self._head_timer is None and not self._messages:
            self._head_timer = self._loop.call_later(HEAD_S, self._head_late)

    def head_complete(self) -> None:
        """A request has begun or the connection is gone."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The parser's refusals, in the envelope. Its own message quotes the request, tokens included, so it is neither sent nor logged."""
        self.head_complete()
        if isinstance(exc, LineTooLong):
            refused = Refused(400, "head_too_long", f"a request line or header is longer than {LINE_MAX} bytes")
        elif isinstance(exc, HttpProcessingError):
            refused = Refused(400, "bad_http", "this is not a valid HTTP/1.1 request")
        elif isinstance(exc, ConnectionError):
            refused = Refused(400, "client_left", "the client left")
        else:
            refused = Refused(status, "internal_error", "the pool failed; its log says why")
            log.error("request failed: %s", type(exc).__name__, exc_info=exc)
        reply = Reply(request)
        reply.keep = False
        with contextlib.suppress(ClientGone):
            reply.refuse(refused)
        self._server.answered("other", reply.status)
        outcome: web.StreamResponse = reply.outcome
        return outcome

    def _head_late(self) -> None:
        self._head_timer = None
        if not self.busy and self.transport is not None:
            refused = Refused(408, "head_too_slow", f"the request's head was not complete after {HEAD_S:g} s")
            _write_and_close(self.transport, 408, "Request Timeout", refused)
            self._server.answered("other", 408)
            self.force_close()


class HttpServer(web.Server):
    """Makes a `Connection` for each client and counts them."""

    def __init__(self, handler: Handler, answered: Callable[[str, int], None]) -> None:
        """`answered(endpoint, status)` counts what is answered here, without the handler."""
        super().__init__(
            handler,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            tcp_keepalive=False,  # set on the listening socket, once, and inherited
            keepalive_timeout=IDLE_S,
            lingering_time=LINGER_S,
            max_line_size=LINE_MAX,
            max_field_size=LINE_MAX,
            max_headers=HEADERS_MAX,
            logger=log,
        )
        self.answered = answered
        self.open_connections = 0
        self.connections_max = min(CONNECTIONS_MAX, raise_descriptor_limit() - _DESCRIPTORS_KEPT)

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._kwargs)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """One bound socket for each address of `host`. Raises OSError (the port is taken, no such address)."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # A client whose host vanished sends no FIN: without these its lease would last until the request's own bound.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (
                (socket.TCP_KEEPIDLE, 15),
                (socket.TCP_KEEPINTVL, 5),
                (socket.TCP_KEEPCNT, 3),
                (socket.TCP_USER_TIMEOUT, 30000),
            ):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.bind(address)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def raise_descriptor_limit() -> int:
    """Allow as many open files as the hard limit does; returns the number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else CONNECTIONS_MAX + _DESCRIPTORS_KEPT


def _write_and_close(transport: asyncio.Transport, status: int, phrase: str, refused: Refused, extra: bytes = b"") -> None:
    body = envelope(refused)
    head = b"HTTP/1.1 %d %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n"
    transport.write(head % (status, phrase.encode(), JSON, len(body), extra) + body)
    transport.close()

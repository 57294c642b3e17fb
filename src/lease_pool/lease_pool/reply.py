"""Writes one answer to the client. Every method is one synchronous write: nothing can come between a head and its body, or into an event."""

from __future__ import annotations

import select
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time

from lease_pool.envelope import envelope, error_event
from lease_pool.types import Refused

JSON = b"application/json"
EVENTS = b"text/event-stream"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_PING = b": ping\n\n"
_HELD_MAX = 65536  # bytes of an unfinished event that are held back


class ClientGone(ConnectionError):
    """There is nobody to answer."""


class Written:
    """What the handler returns to aiohttp's server: the answer is on the wire already, only the connection's fate is open."""

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing left to prepare."""

    async def write_eof(self) -> None:
        """Nothing left to write."""


KEEP = Written(keep_alive=True)
CLOSE = Written(keep_alive=False)


class Reply:
    """The answer of one request: `send` (whole), or `begin`, `chunk`…, `finish`; `refuse` in every state."""

    __slots__ = ("_body_allowed", "_chunked", "_events", "_held", "_http10", "_request", "begun", "done", "keep", "status")

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._http10 = request.version < (1, 1)
        self._body_allowed = request.method != "HEAD"
        self._chunked = False
        self._events = False
        self._held = b""
        # After an upgrade that was asked for and ignored, the parser cannot tell what the following bytes are.
        self.keep = request.keep_alive and not self._http10 and not request._message.upgrade
        self.begun = False
        self.done = False
        self.status = 0  # of the answer, once it is written

    @property
    def outcome(self) -> Any:
        """For aiohttp's server; typed Any because it takes anything that has the three members it uses."""
        return KEEP if self.keep and self.done else CLOSE

    def send(self, status: int, content_type: bytes, body: bytes, extra: bytes = b"") -> None:
        """The whole answer in one write."""
        self.begun = self.done = True
        self._write(self._head(status, content_type, extra, b"Content-Length: %d\r\n" % len(body)) + (body if self._body_allowed else b""))

    def refuse(self, refused: Refused, extra: bytes = b"") -> None:
        """A refusal: an answer of its own, an error event on a stream whose 200 is out, or a cut where the body cannot say it."""
        if not self.begun:
            if refused.retry_after_s is not None or refused.status in (429, 503):
                extra += b"Retry-After: %d\r\n" % max(1, int(refused.retry_after_s or 1))
            if refused.status == 401:
                extra += b"WWW-Authenticate: Bearer\r\n"
            self.send(refused.status, JSON, envelope(refused), extra)
        elif self._events and not self.done:
            # The unfinished event is dropped: half of one, then an error, would reach the client as one broken event.
            self._held = b""
            self._body(error_event(refused))
            self.keep = False
            self.finish()
        elif not self.done:
            self.abort()

    def begin(self, content_type: bytes, extra: bytes, length: int | None, events: bool) -> None:
        """A 200 whose body follows in chunks; `length` None = unknown."""
        self.begun = True
        self._events = events
        if length is not None:
            framing = b"Content-Length: %d\r\n" % length
        elif self._http10:
            framing = b""
        else:
            framing = b"Transfer-Encoding: chunked\r\n"
            self._chunked = True
        self._write(self._head(200, content_type, extra, framing))

    def chunk(self, data: bytes) -> None:
        """Body bytes, at once; of events only whole ones, so that an error event can always follow (a rest is sent by `finish`)."""
        if self._events and (self._held or not data.endswith(b"\n\n")):
            data = self._held + data
            whole = _whole_events(data)
            if len(data) - whole > _HELD_MAX:
                whole = len(data)
            data, self._held = data[:whole], data[whole:]
        if data:
            self._body(data)

    def finish(self) -> None:
        """The proper end of the body."""
        if self._held:
            self._body(self._held)
            self._held = b""
        self.done = True
        if self._chunked:
            self._write(b"0\r\n\r\n")

    def ping(self) -> None:
        """A comment that keeps the connection busy; the first one takes the stream's 200 with it."""
        if not self.begun:
            self.begin(EVENTS, b"X-Accel-Buffering: no\r\nCache-Control: no-cache\r\n", None, events=True)
        if not self._request.protocol.writing_paused:
            self._body(_PING)

    def go_on(self) -> None:
        """`100 Continue`, for a client that waits for it before it sends the body."""
        if not self._http10:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    @property
    def blocked(self) -> bool:
        """Whether the client takes less than is written: wait for `drained` before the next write."""
        return self._request.protocol.writing_paused

    async def drained(self) -> None:
        """Return when the client has taken enough of what was written. Raises ClientGone."""
        if self._request.protocol.writing_paused:
            try:
                await self._request.writer.drain()
            except OSError as error:
                raise ClientGone(str(error)) from None

    def client_left(self) -> bool:
        """Whether the client closed its sending side. Asked of the kernel, for the times when reading is paused (a full pipeline) and no EOF is seen."""
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Cut the connection: the client must not take what it has for a whole answer."""
        self.keep = False
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    def _head(self, status: int, content_type: bytes, extra: bytes, framing: bytes) -> bytes:
        self.status = status
        return b"%bDate: %b\r\nContent-Type: %b\r\n%b%b%b\r\n" % (
            _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unassigned\r\n" % status,
            rfc822_formatted_time().encode(),
            content_type,
            extra,
            framing,
            b"" if self.keep else b"Connection: close\r\n",
        )

    def _body(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def _write(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone("the client left")
        transport.write(data)


def _whole_events(data: bytes) -> int:
    """Bytes up to the end of the last whole event; an event ends with an empty line, in any of the three line endings."""
    return max(data.rfind(end) + len(end) if end in data else 0 for end in (b"\n\n", b"\r\n\r\n", b"\r\r"))

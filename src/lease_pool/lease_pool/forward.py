"""One request on its way to a ready worker and the answer on its way back: deadlines, failures, bytes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from time import monotonic

from lease_pool.config import BoundsConfig
from lease_pool.envelope import from_worker
from lease_pool.headers import to_client
from lease_pool.reply import EVENTS, JSON, ClientGone, Reply
from lease_pool.types import Grant, Refused
from lease_pool.upstream import WORKER_ERRORS, Exchange, Upstream
from lease_pool.watch import Watch

_WHOLE_MAX = 8 * 2**20  # an answer that is no stream is sent as a whole up to this size, so that a worker's death can still be a 502
_ERROR_BODY_MAX = 2**20
_STALL_GRAIN_S = 0.25  # the stall deadline is moved at most this often
_DONE_PATHS = ("/v1/chat/completions", "/v1/completions")  # streams that end with `data: [DONE]`


@dataclass(frozen=True, slots=True)
class Call:
    """What is sent: `head` is the client's end-to-end headers, `arrived` a monotonic time."""

    path: str
    head: bytes
    body: bytes
    stream: bool
    arrived: float


class Forward:
    """Carries one call over one grant; `run` once."""

    __slots__ = ("_bounds", "_call", "_deadline", "_exchange", "_grant", "_limit", "_on_client", "_reply", "_watch")

    _exchange: Exchange
    _limit: asyncio.Timeout

    def __init__(self, call: Call, grant: Grant, reply: Reply, watch: Watch, bounds: BoundsConfig) -> None:
        self._call = call
        self._grant = grant
        self._reply = reply
        self._watch = watch
        self._bounds = bounds
        self._deadline = "first_byte_s" if call.stream else "request_s"
        self._on_client = False  # it is the client that is waited for

    async def run(self, upstream: Upstream) -> None:
        """Returns when the whole answer is written. Raises Refused for what the client must be told, ClientGone when there is nobody to tell."""
        call, bounds = self._call, self._bounds
        until = monotonic() + bounds.first_byte_s if call.stream else call.arrived + bounds.request_s
        request = b"POST %b%b%bContent-Length: %d\r\n\r\n" % (call.path.encode(), upstream.head, call.head, len(call.body))
        exchange: Exchange | None = None
        try:
            async with asyncio.timeout_at(until) as self._limit:
                exchange = self._exchange = await upstream.exchange(request, call.body)
                self._watch.worker(self._grant, exchange.abort)
                await exchange.answered()
                await self._pass_on()
        except ClientGone:
            raise
        except WORKER_ERRORS as error:
            if isinstance(error, TimeoutError) and self._limit.expired():
                raise self._late() from None
            raise self._died() from None
        finally:
            if exchange is not None:
                exchange.end()

    async def _pass_on(self) -> None:
        head, reply, stream = self._exchange.head, self._reply, self._call.stream
        if not 200 <= head.code < 300:
            await self._refused_by_worker()
        content_type = head.headers.get("Content-Type", "application/octet-stream").encode("utf-8", "surrogateescape")
        is_events = content_type.startswith(EVENTS)
        if not (stream or is_events):
            await self._whole(content_type)
            return
        readable = is_events and "Content-Encoding" not in head.headers
        if reply.begun and not readable:
            raise self._broken("the worker did not answer a stream with events")
        first = await self._exchange.body.readany()
        if readable and not first:
            raise self._died()
        self._watch.first_byte()
        self._grant.first_byte()
        if not reply.begun:
            extra = lease_headers(self._grant) + to_client(head.raw_headers) + b"X-Accel-Buffering: no\r\n"
            # Events are chunked whatever the worker did: an error event after them would not fit into a length that it gave.
            reply.begin(content_type, extra, None if readable else self._length(), events=readable)
        last = await self._stream(first)
        if readable and self._unframed() and self._call.path in _DONE_PATHS and b"[DONE]" not in last[-64:]:
            raise self._died()
        reply.finish()

    async def _stream(self, chunk: bytes) -> bytes:
        """Chunk by chunk until the worker's end; returns the last one. A stream has `stall_s` for each step, of the worker or of the client."""
        reply, readany, stalls = self._reply, self._exchange.body.readany, self._call.stream
        stall_s, moved, last = self._bounds.stall_s, 0.0, b""
        if stalls:
            self._deadline = "stall_s"
        while chunk:
            reply.chunk(chunk)
            if stalls and (now := monotonic()) - moved > _STALL_GRAIN_S:
                self._limit.reschedule(now + stall_s + _STALL_GRAIN_S)
                moved = now
            if reply.blocked:
                await self._drained()
            last = chunk
            chunk = await readany()
        return last

    async def _whole(self, content_type: bytes) -> None:
        """An answer that is no stream: written as a whole, or, when it is very large, as it comes."""
        exchange, reply = self._exchange, self._reply
        body = exchange.body
        data = body.read_nowait(-1) if body.is_eof() else await self._read_up_to(_WHOLE_MAX)
        extra = lease_headers(self._grant) + to_client(exchange.head.raw_headers)
        if body.at_eof():
            if self._unframed() and content_type.startswith(JSON) and not _is_json(data):
                raise self._died()
            self._grant.first_byte()
            reply.send(exchange.head.code, content_type, data, extra)
            return
        self._grant.first_byte()
        reply.begin(content_type, extra, self._length(), events=False)
        while data:
            reply.chunk(data)
            if reply.blocked:
                await self._drained()
            data = await body.readany()
        reply.finish()

    async def _drained(self) -> None:
        self._on_client = True
        await self._reply.drained()
        self._on_client = False

    async def _read_up_to(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0 and (piece := await self._exchange.body.readany()):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    async def _refused_by_worker(self) -> None:
        """Raises: a 4xx is the client's matter and is passed on; anything else says that this worker is broken."""
        head = self._exchange.head
        if not 400 <= head.code < 500:
            raise self._broken(f"the worker answered {head.code}")
        body = await self._read_up_to(_ERROR_BODY_MAX)
        if "Content-Encoding" in head.headers:
            body = b""
        raise from_worker(head.code, body[:_ERROR_BODY_MAX], head.headers.get("Retry-After"))

    def _length(self) -> int | None:
        length = self._exchange.head.headers.get("Content-Length")
        return int(length) if length is not None else None

    def _unframed(self) -> bool:
        """Whether only the end of the connection ends this body: then a worker's death looks like an end."""
        head = self._exchange.head
        return not head.chunked and "Content-Length" not in head.headers

    def _broken(self, why: str) -> Refused:
        self._grant.worker_failed(why)
        return Refused(502, "worker_failed", why)

    def _died(self) -> Refused:
        when = "in the middle of its answer" if self._deadline == "stall_s" else "before the first byte of its answer"
        ended = self._watch.ended_why
        return self._broken(f"the worker ended {when}" + (f" ({ended})" if ended else ""))

    def _late(self) -> Exception:
        if self._on_client:
            return ClientGone("the client took nothing within its deadline")
        self._grant.worker_failed(f"deadline {self._deadline} passed")
        return deadline_passed(self._deadline, getattr(self._bounds, self._deadline))


def lease_headers(grant: Grant) -> bytes:
    """What tells the operator where a request ran and what it waited for."""
    return b"x-gpu-fleet-card: %b\r\nx-gpu-fleet-lease: %b\r\nx-gpu-fleet-queued-ms: %d\r\nx-gpu-fleet-load-ms: %d\r\n" % (
        grant.card.uuid.encode(),
        grant.lease.encode(),
        grant.queued_s * 1000,
        grant.load_s * 1000,
    )


def deadline_passed(name: str, seconds: float) -> Refused:
    """504 that names the deadline."""
    return Refused(504, f"deadline_{name}", f"the deadline {name} ({seconds:g} s) passed")


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True

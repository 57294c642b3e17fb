"""What goes on beside a request that waits: one timer, no task until it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lease_pool.reply import Reply
from lease_pool.types import Grant

_TICK_S = 0.5


class Watch:
    """Pings a waiting stream, sees a client that left while reading was paused, and a worker that ended without closing its connections."""

    __slots__ = ("_abort", "_ended", "_grant", "_loop", "_next_ping", "_ping_s", "_reply", "_timer", "ended_why")

    def __init__(self, reply: Reply, ping_s: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._reply = reply
        self._ping_s = ping_s
        self._next_ping = self._loop.time() + ping_s if ping_s is not None else 0.0
        self._grant: Grant | None = None
        self._abort: Callable[[], None] | None = None
        self._ended: asyncio.Task[str] | None = None
        self.ended_why: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._schedule()

    def worker(self, grant: Grant, abort: Callable[[], None]) -> None:
        """From now on the worker's end calls `abort`."""
        self._grant, self._abort = grant, abort

    def first_byte(self) -> None:
        """The stream waits no more: no more pings."""
        self._ping_s = None

    def stop(self) -> None:
        """The request is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ended is not None:
            self._ended.cancel()
        self._abort = None

    def _schedule(self) -> None:
        delay = _TICK_S
        if self._ping_s is not None:
            delay = min(delay, max(0.0, self._next_ping - self._loop.time()))
        self._timer = self._loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        if self._reply.client_left():
            self._reply.abort()
            return
        if self._ping_s is not None and self._loop.time() >= self._next_ping - 0.001:
            self._reply.ping()
            self._next_ping += self._ping_s
        if self._grant is not None and self._ended is None:
            self._ended = self._loop.create_task(self._worker_gone(self._grant))
        self._schedule()

    async def _worker_gone(self, grant: Grant) -> str:
        self.ended_why = await grant.worker_gone()
        if self._abort is not None:
            self._abort()
        return self.ended_why

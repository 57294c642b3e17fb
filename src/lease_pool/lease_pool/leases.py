"""Leases, and the requests that share them. Synchronous state only: the card's owner task and the line act on it between two awaits."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lease_pool.config import CardConfig, ModelConfig
from lease_pool.scheduling import Want
from lease_pool.types import Demand, Endpoint, Occupancy, Refused


@dataclass(eq=False)
class Waiter:
    """One request or borrower, from its arrival to its end. `granted` resolves to its share of a lease (or its cards), or to a Refused."""

    id: int
    want: Want
    demand: Demand
    deadline: float
    granted: asyncio.Future[None]
    lease: Lease | None = None
    loan: list[Lease] = field(default_factory=list)
    queued_s: float = 0.0
    assigned_at: float = 0.0
    granted_at: float = 0.0
    first_byte_at: float = 0.0
    load_s: float = 0.0
    timer: asyncio.TimerHandle | None = None

    def grant(self, lease: Lease, now: float) -> None:
        self.granted_at = now
        self.load_s = now - self.assigned_at if not lease.warm_for(self) else 0.0
        if not self.granted.done():
            self.granted.set_result(None)

    def refuse(self, refused: Refused) -> None:
        if not self.granted.done():
            self.granted.set_exception(refused)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(eq=False)
class Lease:
    """The exclusive right to one card, from the moment it is claimed. `model` None: a loan to `run`."""

    card: CardConfig
    model: ModelConfig | None
    alias: str | None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    since: float = field(default_factory=time.time)
    members: list[Waiter] = field(default_factory=list)
    requests: int = 0
    ready: bool = False
    unloading: bool = False
    failed: str | None = None  # the worker takes no new request and ends when its members are done
    ended: str | None = None  # end now: operator, forced stop
    idle_since: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    outcome: str = "ok"
    occupancy: Occupancy | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    timed: bool = False  # the owner looks again by itself when the idle window may be over
    ready_at: float = 0.0
    gone: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def accepting(self) -> bool:
        return self.model is not None and not self.unloading and self.failed is None and self.ended is None

    @property
    def worker_pid(self) -> int | None:
        return self.occupancy.pid if self.occupancy is not None else None

    def begin(self, now: float) -> None:
        """The card is this lease's from now on: what its members waited until here was the queue (or the former worker's end)."""
        for waiter in self.members:
            waiter.assigned_at = now
            waiter.queued_s = now - waiter.demand.arrived

    def unwanted(self) -> bool:
        return not self.members or self.ended is not None

    def changed(self) -> None:
        self.wake.set()

    def add(self, waiter: Waiter) -> None:
        self.members.append(waiter)
        self.requests += 1
        waiter.lease = self

    def remove(self, waiter: Waiter) -> None:
        """The owner is woken for the last one only, and not on a warm worker whose window it times: waking it costs as much as the request."""
        if waiter in self.members:
            self.members.remove(waiter)
        if not self.members:
            self.idle_since = time.monotonic()
            if not self.timed:
                self.changed()

    def end_now(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
        self.changed()

    def tell_gone(self, how: str) -> None:
        if not self.gone.done():
            self.gone.set_result(how)

    def warm_for(self, waiter: Waiter) -> bool:
        """The waiter came to a worker that was ready already."""
        return 0.0 < self.ready_at <= waiter.assigned_at

    def tell_over(self) -> None:
        self.over.set()

    async def wait_over(self) -> None:
        await self.over.wait()

    def refuse_all(self, refused: Refused) -> None:
        """Answer every member that still waits; those that run learn it from `gone`."""
        for waiter in self.members:
            waiter.refuse(refused)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.wake.clear()
            await self.wake.wait()


class Share:
    """A request's share of a ready lease (`types.Grant`)."""

    def __init__(self, waiter: Waiter, lease: Lease) -> None:
        self._waiter = waiter
        self._lease = lease

    @property
    def lease(self) -> str:
        return self._lease.id

    @property
    def card(self) -> CardConfig:
        return self._lease.card

    @property
    def endpoint(self) -> Endpoint:
        assert self._lease.occupancy is not None  # noqa: S101  for the type checker: the caller has seen to it
        return self._lease.occupancy.endpoint

    @property
    def queued_s(self) -> float:
        return self._waiter.queued_s

    @property
    def load_s(self) -> float:
        return self._waiter.load_s

    def first_byte(self) -> None:
        if not self._waiter.first_byte_at:
            self._waiter.first_byte_at = time.monotonic()

    def worker_failed(self, why: str) -> None:
        if self._lease.failed is None:
            self._lease.failed = why
            if self._lease.outcome == "ok":
                self._lease.outcome = "worker_failed"
        self._lease.changed()

    async def worker_gone(self) -> str:
        return await asyncio.shield(self._lease.gone)

"""One request's way through the pool: `async with` in the request's handler takes the share and gives it back, whatever happens in between."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from lease_pool.leases import Share, Waiter
from lease_pool.line import Line
from lease_pool.state import State
from lease_pool.types import Demand, Grant, Refused


class LeaseContext:
    """See `types.Core.lease`."""

    def __init__(self, state: State, line: Line, demand: Demand) -> None:
        self._state = state
        self._line = line
        self._demand = demand
        self._waiter: Waiter | None = None

    async def __aenter__(self) -> Grant:
        try:
            self._waiter = self._line.enqueue(self._demand)
            await self._waiter.granted
        except BaseException as error:
            self._over(error)
            raise
        assert self._waiter.lease is not None  # noqa: S101  for the type checker: who is granted has one
        return Share(self._waiter, self._waiter.lease)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over(error)

    def _over(self, error: BaseException | None) -> None:
        """Synchronous: a second cancellation cannot interrupt it."""
        waiter, demand, now = self._waiter, self._demand, time.monotonic()
        outcome = self._outcome(error, now)
        seconds = {"queued": now - demand.arrived}
        lease = waiter.lease if waiter is not None else None
        if waiter is not None:
            if waiter.assigned_at and lease is not None:
                seconds["queued"] = waiter.queued_s
                seconds |= {name: lease.seconds[name] for name in ("freeing", "loading") if name in lease.seconds and waiter.load_s}
            if waiter.granted_at:
                seconds["serving"] = now - waiter.granted_at
                if waiter.first_byte_at:
                    seconds["first_byte"] = waiter.first_byte_at - waiter.granted_at
            self._line.withdraw(waiter)
        if "serving" in seconds:
            self._state.served.append(seconds["serving"])
        self._state.metrics.request_over(demand.alias, outcome, seconds)
        if lease is not None and "serving" not in seconds and outcome == "client_left":
            self._state.metrics.load_cancelled(demand.alias)
        self._state.journal.write(
            "request",
            seconds=seconds,
            card=lease.card.uuid if lease is not None else None,
            slot=lease.card.slot if lease is not None else None,
            pci=self._state.cards[lease.card.slot].pci if lease is not None else None,
            lease=lease.id if lease is not None else None,
            alias=demand.alias,
            model=demand.model,
            request=demand.request,
            principal=demand.principal or None,
            outcome=outcome,
            **{"class": demand.data_class or None},
        )

    def _outcome(self, error: BaseException | None, now: float) -> str:
        if error is None:
            return "ok"
        if isinstance(error, Refused):
            return error.code
        if isinstance(error, asyncio.CancelledError):
            # A deadline around the whole request cancels it too; only the clock tells the two apart.
            late = now - self._demand.arrived >= self._state.config.bounds.request_s
            return "deadline_request_s" if late else "client_left"
        return "client_left" if isinstance(error, ConnectionError) else "error"

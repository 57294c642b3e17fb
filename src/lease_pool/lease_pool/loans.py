"""A loan to `lease-pool run` where PID 1 keeps the idle workload's unit: the borrower holds the occupant lock itself."""

from __future__ import annotations

import asyncio

from lease_pool.config import CardConfig
from lease_pool.types import Endpoint, OccupiedElsewhere, Supervisor

POLL_S = 0.05


class Loan:
    """An `Occupancy` made of stop, lock and start (`types.Lender` says why the process supervisor has its own)."""

    def __init__(self, supervisor: Supervisor, card: CardConfig) -> None:
        self._supervisor = supervisor
        self._card = card
        self._ended = asyncio.Event()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(socket=None)

    @property
    def pid(self) -> int | None:
        return None

    async def freed(self) -> None:
        await self._supervisor.stop_idle(self._card)
        if (await self._supervisor.survey(self._card)).locked:
            raise OccupiedElsewhere(f"card {self._card.uuid} ({self._card.slot}): its occupant lock is held by another pool or by `run`")

    async def exited(self) -> str:
        await self._ended.wait()
        while (await self._supervisor.survey(self._card)).locked:  # noqa: ASYNC110  the kernel announces no release
            await asyncio.sleep(POLL_S)
        return "loan over"

    async def end(self) -> None:
        self._ended.set()
        await self.exited()

    async def returned(self) -> None:
        await self._supervisor.start_idle(self._card)

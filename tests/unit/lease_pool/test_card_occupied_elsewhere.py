"""A card whose lock someone else took while it came home waits for them; it is not a broken card."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from lease_pool.config import CardConfig, PoolConfig, parse
from lease_pool.core import PoolCore
from lease_pool.holds import Holds
from lease_pool.journal import Journal
from lease_pool.types import CardState, Demand, Endpoint, Found, IdleState, OccupiedElsewhere

from lease_pool import snapshots

CONFIG = """
supervisor: process
card_source: declared
cards: [{slot: c0, uuid: GPU-0, memory_mib: 1}]
models: {m: {backend: command, memory_mib: 1, argv: [x]}}
"""


class Loan:
    endpoint = Endpoint(socket=None)
    pid = None

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    async def freed(self) -> None:
        return

    async def exited(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    async def end(self) -> None:
        return

    async def returned(self) -> None:
        self._supervisor.locked = True
        raise OccupiedElsewhere("held by process 1")


class Supervisor:
    """Every return finds another holder of the lock."""

    def __init__(self) -> None:
        self.locked = False
        self.starts = 0

    async def survey(self, card: CardConfig) -> Found:
        return Found(card.slot, self.locked, None, IdleState(active=True, alive=None))

    async def lend(self, card: CardConfig, free_s: float) -> Loan:
        return Loan(self)

    async def hold(self, card: CardConfig, held: bool) -> None:
        return

    async def start_idle(self, card: CardConfig) -> None:
        self.starts += 1

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


async def state(core: PoolCore, wanted: CardState, *, foreign: bool = False) -> None:
    card = core.state.cards["c0"]
    async with asyncio.timeout(5):
        while (card.state, card.foreign) != (wanted, foreign):  # noqa: ASYNC110  a card announces nothing
            await asyncio.sleep(0.01)


async def test_a_lock_taken_by_another_during_the_return_is_waited_for_and_quarantines_nothing(tmp_path: Path) -> None:
    config: PoolConfig = parse(CONFIG, "pool.yml")
    supervisor: Any = Supervisor()
    journal, holds = Journal(tmp_path), Holds(tmp_path)
    journal.open()
    core = PoolCore(config, supervisor, journal, holds, None)
    await core.start()
    await state(core, CardState.MINING)
    waiter = core.line.enqueue_loan(Demand("r", "run", "", time.monotonic()), None, 1)
    await waiter.granted
    core.line.withdraw(waiter)
    await state(core, CardState.SERVING, foreign=True)
    status = snapshots.status(core.state)["cards"][0]
    assert (status["hold"], status["lease"]["id"], supervisor.starts) == (None, None, 1)
    supervisor.locked = False
    await state(core, CardState.MINING)
    assert supervisor.starts == 2
    assert holds.cards == {}
    core.begin_stop()
    await core.stop()
    await journal.close()

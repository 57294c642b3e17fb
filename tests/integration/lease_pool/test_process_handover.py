"""From one guard of a card to the next, without the pool around them: the next one trusts only what the former one really did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from lease_pool.config import PoolConfig, load
from lease_pool.specs import launch_spec
from lease_pool.supervisor_process import ProcessSupervisor
from lease_pool.types import Occupancy

from tests.support.pool_rig import Maker, PoolRig


class Alone:
    """The process supervisor of a pool's configuration, whose card's idle workload runs."""

    def __init__(self, rig: PoolRig) -> None:
        self.rig = rig
        self.config: PoolConfig = load(rig.path)
        self.supervisor = ProcessSupervisor(self.config)
        (self.card,) = self.config.cards

    async def begin(self) -> None:
        for folder in (self.config.locks_dir, self.config.state_dir, self.config.runtime_dir / "launch"):
            folder.mkdir(parents=True, exist_ok=True)
        await self.supervisor.open()
        await self.supervisor.start_idle(self.card)
        assert self.rig.idle_pid()

    async def occupy(self) -> Occupancy:
        return await self.supervisor.occupy(self.card, launch_spec(self.config, self.config.models["m"], self.card))


@pytest_asyncio.fixture
async def alone(rigs: Maker) -> AsyncIterator[Alone]:
    one = Alone(rigs(1))
    await one.begin()
    yield one
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name().startswith("guard ")))  # each ends with its guard


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("former", ["worker", "loan"])
async def test_an_occupancy_given_up_at_any_moment_hands_no_running_idle_workload_to_the_next(
    alone: Alone, pause_s: float, former: str
) -> None:
    given_up = await alone.occupy() if former == "worker" else await alone.supervisor.lend(alone.card, 5)
    await asyncio.sleep(pause_s)
    await given_up.end()
    following = await alone.occupy()
    try:
        async with asyncio.timeout(4):
            await following.freed()
        await alone.rig.until(alone.rig.workers, "a worker runs")
        assert alone.rig.idle_pid() is None
    finally:
        await following.end()
        await following.returned()
    assert alone.rig.idle_pid()
    assert not alone.rig.workers()

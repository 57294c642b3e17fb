"""A card that someone else holds is not a broken card, whenever the other one came."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path
from typing import Any

import pytest
from lease_pool.config import parse
from lease_pool.dbus_jobs import UnitState
from lease_pool.idle_drivers import Nothing
from lease_pool.systemd_occupancy import SystemdOccupancy
from lease_pool.types import LaunchSpec, OccupiedElsewhere

from lease_pool import launch
from tests.unit.lease_pool_systemd.one_card import CONFIG


class Pid1:
    """PID 1 that never finishes a start; `on_start` is what happens in the meantime."""

    def __init__(self, lock: Path, comes: str) -> None:
        self._lock, self._comes = lock, comes
        self._state = UnitState("gpu-worker@c0.service", "/")
        self.starts = 0
        if comes == "before":
            self.take()

    def take(self) -> None:
        self.held = self._lock.open("w")
        fcntl.flock(self.held, fcntl.LOCK_EX)

    def state(self, name: str) -> UnitState:
        return self._state

    async def until(self, name: str, condition: Any) -> UnitState:
        return self._state

    async def host_stops(self) -> bool:
        return False

    async def start(self, name: str) -> str:
        self.starts += 1
        if self._comes == "meanwhile":
            self.take()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("comes", ["before", "meanwhile"])
async def test_another_holder_is_told_apart_from_a_card_that_does_not_become_free(tmp_path: Path, comes: str) -> None:
    config = parse(CONFIG.format(folder=tmp_path), "pool.yml")
    lock = launch.lock_path(config.locks_dir, "c0")
    lock.parent.mkdir()
    launch.folder(tmp_path).mkdir()
    pid1: Any = Pid1(lock, comes)
    spec = LaunchSpec("c0", "GPU-0", "m", ("x",), {}, 1, free_s=0.4, stop_s=1)
    occupancy = SystemdOccupancy(config, pid1, Nothing(), config.cards[0], spec)
    with pytest.raises(OccupiedElsewhere, match="held by process"):
        await occupancy.freed()
    assert pid1.starts == (0 if comes == "before" else 1)
    assert not launch.spec_path(tmp_path, "c0").exists()
    pid1.held.close()

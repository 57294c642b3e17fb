"""One worker's time on one card under systemd, against a PID 1 that cancels, refuses, is slow, or lets a process survive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lease_pool.config import PoolConfig, parse
from lease_pool.dbus_jobs import UnitState
from lease_pool.idle_drivers import Nothing
from lease_pool.systemd_occupancy import SystemdOccupancy
from lease_pool.types import LaunchSpec, OccupiedElsewhere, SupervisorError

from lease_pool import launch, systemd_occupancy
from tests.unit.lease_pool_systemd.one_card import CONFIG


class Pid1:
    """`answers` are the results of the next starts; the last one stays. A worker that comes up takes its spec and the lock."""

    def __init__(self, folder: Path, *answers: str) -> None:
        self._folder = folder
        self._answers = list(answers)
        self.unit = UnitState("gpu-worker@c0.service", "/", {"ActiveState": "inactive"})
        self.calls: list[str] = []
        self.holder: int | None = None
        self.keys: list[str] = []
        self.stops = False
        self.begin = asyncio.Event()  # for "queued": a start that waits for the miner's stop
        self.begin.set()

    def state(self, name: str) -> UnitState:
        assert name == self.unit.name
        return self.unit

    async def refresh(self, name: str) -> UnitState:
        await asyncio.sleep(0)
        return self.unit

    async def until(self, name: str, condition: Callable[[UnitState], bool]) -> UnitState:
        while not condition(self.unit):  # noqa: ASYNC110  the real one is woken by signals
            await asyncio.sleep(0.005)
        return self.unit

    async def host_stops(self) -> bool:
        return self.stops

    async def start(self, name: str) -> str:
        self.calls.append(f"start {self.unit.active}")
        self.keys.append(launch.key_path(self._folder, "c0").read_text())
        answer = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        await self.begin.wait()
        if answer != "done":
            if answer != "canceled":
                self.unit.properties |= {"ActiveState": "failed", "StatusText": answer}
            return answer if answer == "canceled" else "failed"
        if launch.consume(str(self._folder), "c0") is None:
            return "done"  # exec-worker found no spec and ended well
        self.unit.properties |= {"ActiveState": "active", "MainPID": 42}
        self.holder = 42
        return "done"

    async def stop(self, name: str, *, mode: str = "replace") -> str:
        self.calls.append(f"stop {mode}")
        self.unit.properties |= {"ActiveState": "inactive", "MainPID": 0, "ExecMainCode": 2, "ExecMainStatus": 15}
        self.holder = None
        return "done"


@pytest.fixture
def config(tmp_path: Path) -> PoolConfig:
    config = parse(CONFIG.format(folder=tmp_path), "pool.yml")
    launch.folder(tmp_path).mkdir()
    return config


def occupy(monkeypatch: pytest.MonkeyPatch, config: PoolConfig, pid1: Any, free_s: float = 3.0) -> SystemdOccupancy:
    monkeypatch.setattr(systemd_occupancy, "holder", lambda path: pid1.holder)
    return SystemdOccupancy(
        config, pid1, Nothing(), config.cards[0], LaunchSpec("c0", "GPU-0", "m", ("x",), {}, 1, free_s=free_s, stop_s=1)
    )


async def test_a_canceled_start_is_tried_again_with_a_spec_of_its_own(monkeypatch: pytest.MonkeyPatch, config: PoolConfig) -> None:
    pid1 = Pid1(config.runtime_dir, "canceled", "done")
    occupancy = occupy(monkeypatch, config, pid1)
    await occupancy.freed()
    assert pid1.calls == ["start inactive"] * 2
    assert len(set(pid1.keys)) == 1
    assert pid1.keys[0].strip() == occupancy.endpoint.api_key
    assert occupancy.pid == 42
    await occupancy.end()
    assert pid1.calls[2:] == ["stop ignore-dependencies"]
    assert (occupancy.pid, await occupancy.exited()) == (None, "signal 15")


async def test_a_start_that_is_still_queued_is_cancelled_by_its_spec_and_never_by_a_stop(
    monkeypatch: pytest.MonkeyPatch, config: PoolConfig
) -> None:
    pid1 = Pid1(config.runtime_dir, "done")
    pid1.begin.clear()
    occupancy = occupy(monkeypatch, config, pid1)
    while not pid1.calls:  # noqa: ASYNC110  the event loop itself is what is waited for
        await asyncio.sleep(0)
    ending = asyncio.create_task(occupancy.end())
    await asyncio.sleep(0.05)
    assert not launch.spec_path(config.runtime_dir, "c0").exists()
    assert not ending.done(), "the unit's start is not over yet"
    pid1.begin.set()
    async with asyncio.timeout(1):
        await ending
    assert pid1.calls == ["start inactive"]
    with pytest.raises(SupervisorError, match="cancelled"):
        await occupancy.freed()


async def test_no_start_before_the_former_worker_is_seen_down(monkeypatch: pytest.MonkeyPatch, config: PoolConfig) -> None:
    pid1 = Pid1(config.runtime_dir, "done")
    pid1.unit.properties["ActiveState"] = "deactivating"
    occupancy = occupy(monkeypatch, config, pid1)
    await asyncio.sleep(0.1)
    assert pid1.calls == []
    pid1.unit.properties["ActiveState"] = "failed"
    await occupancy.freed()
    assert pid1.calls == ["start failed"]


async def test_a_card_that_is_not_free_within_the_bound_says_why_and_leaves_no_spec(
    monkeypatch: pytest.MonkeyPatch, config: PoolConfig
) -> None:
    pid1 = Pid1(config.runtime_dir, "slot c0, card GPU-0: not free after 0.4 s: compute process 7 is still on the card")
    occupancy = occupy(monkeypatch, config, pid1, free_s=0.5)
    with pytest.raises(SupervisorError, match=r"card GPU-0: not free in 0.5 s: .*compute process 7") as error:
        await occupancy.freed()
    assert not isinstance(error.value, OccupiedElsewhere)
    assert len(pid1.calls) > 1
    assert not launch.spec_path(config.runtime_dir, "c0").exists()


async def test_a_worker_is_gone_when_its_lock_is_free_whatever_the_unit_says(monkeypatch: pytest.MonkeyPatch, config: PoolConfig) -> None:
    pid1 = Pid1(config.runtime_dir, "done")
    occupancy = occupy(monkeypatch, config, pid1)
    await occupancy.freed()
    exited = asyncio.create_task(occupancy.exited())
    pid1.unit.properties |= {"ActiveState": "failed", "MainPID": 0, "ExecMainCode": 2, "ExecMainStatus": 9}
    await asyncio.sleep(0.1)
    assert not exited.done(), "a process of it still holds the card"
    pid1.holder = None
    async with asyncio.timeout(1):
        assert await exited == "signal 9"
    await occupancy.end()
    assert not [call for call in pid1.calls if call.startswith("stop")]


async def test_a_host_that_shuts_down_is_nobody_s_fault(monkeypatch: pytest.MonkeyPatch, config: PoolConfig) -> None:
    pid1 = Pid1(config.runtime_dir, "canceled")
    pid1.stops = True
    with pytest.raises(OccupiedElsewhere, match="shutting down"):
        await occupy(monkeypatch, config, pid1).freed()

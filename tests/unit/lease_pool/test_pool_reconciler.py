"""The one reconciler: by itself every minute, cards' presence more often, never two runs at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lease_pool.reconcile import EVERY_S, PRESENCE_S, Reconciler

from lease_pool import reconcile


class Core:
    """Counts what it is asked for; `nvml` is whatever is not None."""

    def __init__(self, nvml: object) -> None:
        self.nvml = nvml
        self.asked: list[str] = []
        self.running = 0

    async def reconcile(self) -> list[str]:
        await self._note("all")
        return ["c0: something"]

    async def check_presence(self) -> list[str]:
        await self._note("presence")
        return []

    async def _note(self, what: str) -> None:
        self.asked.append(what)
        self.running += 1
        assert self.running == 1, "two at a time"
        await asyncio.sleep(0.005)
        self.running -= 1


@pytest.mark.parametrize(("nvml", "expected"), [("yes", [*["presence"] * 5, "all"] * 2), (None, ["all"] * 2)])
async def test_everything_once_a_minute_and_the_cards_presence_in_between(
    monkeypatch: pytest.MonkeyPatch, nvml: Any, expected: list[str]
) -> None:
    assert (EVERY_S, PRESENCE_S) == (60, 10)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def no_pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    core: Any = Core(nvml)
    reconciler = Reconciler(core)
    monkeypatch.setattr(reconcile.asyncio, "sleep", no_pause)
    task = asyncio.create_task(reconciler.forever())
    while len(core.asked) < len(expected):
        await sleep(0)
    task.cancel()
    assert core.asked[: len(expected)] == expected
    assert {seconds for seconds in pauses if seconds >= 1} == {10.0 if nvml else 60.0}


async def test_requests_at_the_same_time_run_one_after_another_and_are_told_what_was_wrong() -> None:
    core: Any = Core("yes")
    reconciler = Reconciler(core)
    assert await asyncio.gather(*(reconciler.run() for _ in range(3))) == [["c0: something"]] * 3
    assert core.asked == ["all"] * 3

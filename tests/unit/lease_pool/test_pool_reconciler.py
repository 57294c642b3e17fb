"""The one reconciler: by itself every minute, cards' presence more often, never two runs at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lease_pool.reconcile import EVERY_S, PRESENCE_S, Reconciler
from lease_pool.reports import Reports
from lease_pool.state import State

from lease_pool import reconcile

ALL = ["presence", "surveys"]


class Noting(Reconciler):
    """Notes what it looks at; `nvml` is whatever is not None."""

    def __init__(self, nvml: object) -> None:
        super().__init__(cast("State", SimpleNamespace(nvml=nvml)), cast("Reports", None))
        self.looked: list[str] = []
        self.running = 0

    async def _presence(self) -> list[str]:
        await self._note("presence")
        return []

    async def _surveys(self) -> list[str]:
        await self._note("surveys")
        return ["c0: something"]

    async def _note(self, what: str) -> None:
        self.looked.append(what)
        self.running += 1
        assert self.running == 1, "two at a time"
        await asyncio.sleep(0.005)
        self.running -= 1


@pytest.mark.parametrize(("nvml", "expected"), [("yes", [*["presence"] * 5, *ALL] * 2), (None, ALL * 2)])
async def test_everything_once_a_minute_and_the_cards_presence_in_between(
    monkeypatch: pytest.MonkeyPatch, nvml: Any, expected: list[str]
) -> None:
    assert (EVERY_S, PRESENCE_S) == (60, 10)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def no_pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    reconciler = Noting(nvml)
    monkeypatch.setattr(reconcile.asyncio, "sleep", no_pause)
    task = asyncio.create_task(reconciler.forever())
    while len(reconciler.looked) < len(expected):
        await sleep(0)
    task.cancel()
    assert reconciler.looked[: len(expected)] == expected
    assert {seconds for seconds in pauses if seconds >= 1} == {10.0 if nvml else 60.0}


async def test_requests_at_the_same_time_run_one_after_another_and_are_told_what_was_wrong() -> None:
    reconciler = Noting("yes")
    assert await asyncio.gather(*(reconciler.run() for _ in range(3))) == [["c0: something"]] * 3
    assert reconciler.looked == ALL * 3

"""The one reconciler: at start (every owner settles its card), every minute, and on request; never two runs at a time."""

from __future__ import annotations

import asyncio
import logging

from lease_pool.reports import Reports
from lease_pool.state import State
from lease_pool.types import CardState, IdleState, SupervisorError

log = logging.getLogger(__name__)

EVERY_S = 60.0
PRESENCE_S = 10.0
IDLE_DEATHS = 5  # in a row, as found here: a card whose idle workload is started for ever is broken


class Reconciler:
    def __init__(self, state: State, reports: Reports) -> None:
        self._state = state
        self._reports = reports
        self._lock = asyncio.Lock()

    async def run(self) -> list[str]:
        """What was wrong; the cards' owners put it right."""
        async with self._lock:
            findings = [*await self._presence(), *await self._surveys()]
        for finding in findings:
            log.warning("reconcile: %s", finding)
        return findings

    async def forever(self) -> None:
        """Cards can fall off at any time: the driver is asked more often than the processes are looked at."""
        elapsed = 0.0
        pause = PRESENCE_S if self._state.nvml is not None else EVERY_S
        while True:
            await asyncio.sleep(pause)
            elapsed += pause
            if elapsed >= EVERY_S:
                elapsed = 0.0
                await self.run()
            else:
                async with self._lock:
                    await self._presence()

    async def _presence(self) -> list[str]:
        """Notice cards that the driver lost or has again."""
        findings = []
        for card in self._state.cards.values():
            was_missing = card.missing is not None
            if await self._reports.is_missing(card) != was_missing:
                findings.append(f"{card.slot}: {card.missing or 'the card is back'}")
                card.settle()
        return findings

    async def _surveys(self) -> list[str]:
        """Compare what should run on each card that has no lease with what does."""
        findings = []
        supervisor = self._state.supervisor
        for card in self._state.cards.values():
            if card.lease is not None or card.foreign or card.state not in (CardState.MINING, CardState.DRAINED, CardState.QUARANTINED):
                continue
            try:
                found = await supervisor.survey(card.config)
            except (SupervisorError, OSError) as error:
                findings.append(f"{card.slot}: {error}")
                continue
            if card.lease is not None:
                continue
            card.idle = found.idle
            if found.worker_pid is not None and not found.locked:
                findings.append(f"{card.slot}: worker {found.worker_pid} without a lease")
                await supervisor.stop_worker(card.config)
            dead = not found.locked and card.state is CardState.MINING and self._dead(found.idle)
            card.idle_deaths = card.idle_deaths + 1 if dead else 0
            if found.locked or dead:
                findings.append(f"{card.slot}: " + ("someone else holds the card" if found.locked else "its idle workload does not work"))
                card.settle()
            if card.idle_deaths >= IDLE_DEATHS:
                card.idle_deaths = 0
                self._reports.quarantine(card, f"its idle workload stopped working {IDLE_DEATHS} times in a row")
        return findings

    def _dead(self, idle: IdleState) -> bool:
        return self._state.config.idle_workload.driver != "none" and (not idle.active or idle.alive is False)

"""The pool's core, put together: the state, the line, what cards report, and the verbs. Here are its start, its stop and a change of its configuration."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

from lease_pool import scrape, snapshots
from lease_pool.card import Card
from lease_pool.config import ModelConfig, PoolConfig
from lease_pool.holds import Holds
from lease_pool.journal import Journal
from lease_pool.lease_context import LeaseContext
from lease_pool.line import Line
from lease_pool.nvml import Nvml
from lease_pool.reports import Reports
from lease_pool.state import State
from lease_pool.types import CardState, Demand, Grant, Supervisor
from lease_pool.verbs import Verbs

log = logging.getLogger(__name__)


class PoolCore:
    """Implements `types.Core` for the data plane; the admin socket uses its parts."""

    def __init__(self, config: PoolConfig, supervisor: Supervisor, journal: Journal, holds: Holds, nvml: Nvml | None) -> None:
        self.state = State(config, supervisor, journal, holds, nvml)
        self.line = Line(self.state)
        self.reports = Reports(self.state, self.line)
        self.verbs = Verbs(self.state, self.line)
        self.state.cards = {card.slot: Card(card, self.state, self.line, self.reports) for card in config.cards}
        self.state.by_uuid = {card.uuid: card for card in self.state.cards.values()}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # --- life ---

    async def start(self) -> None:
        """Begin every card's owner; they settle in the background."""
        for card in self.state.cards.values():
            card.hold = self.state.holds.cards.get(card.uuid)
        await asyncio.gather(*map(self.reports.is_missing, self.state.cards.values()))  # a driver that hangs costs its bound once
        for card in self.state.cards.values():
            task = asyncio.create_task(card.run(), name=f"card {card.slot}")
            task.add_done_callback(self._owner_ended)
            self._tasks[card.slot] = task

    def _owner_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            # A card without an owner would hang its requests for ever; the service ends and its supervisor starts it again.
            log.critical("%s failed", task.get_name(), exc_info=task.exception())
            asyncio.get_running_loop().call_exception_handler({"message": "a card's owner failed", "fatal": True})

    def begin_stop(self) -> None:
        """New requests and queued ones are refused from now on."""
        if not self.state.stopping:
            self.state.stopping = True
            self.line.close(CardState.FREEING)

    async def idle(self) -> None:
        """Return when no lease is left (loans to `run` not counted: their borrowers hold the lock themselves)."""
        while left := [lease for lease in self.state.leases.values() if lease.model is not None]:
            await asyncio.wait([asyncio.create_task(lease.wait_over()) for lease in left], return_when=asyncio.ALL_COMPLETED)

    def end_all(self, why: str) -> None:
        for lease in list(self.state.leases.values()):
            lease.end_now(why)

    async def stop(self) -> None:
        """End the owners; every card is at rest or its bound has passed."""
        for card in self.state.cards.values():
            card.stop()
        bounds = self.config.bounds
        lent = {lease.card.slot for lease in self.state.leases.values() if lease.model is None}
        waiting = [task for slot, task in self._tasks.items() if slot not in lent]
        if waiting:
            await asyncio.wait(waiting, timeout=bounds.stop_s + 2 * bounds.free_s + 5)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.line.stop()

    def reconfigure(self, config: PoolConfig) -> None:
        """Take a checked configuration that differs only in what can change while running. Running leases keep theirs."""
        self.state.config = config
        self.state.supervisor.reconfigure(config)
        self.line.models_changed()
        for lease in self.state.leases.values():
            model = config.models.get(lease.model.name) if lease.model is not None else None
            if lease.model is not None and model != lease.model and lease.failed is None:
                lease.failed = "its configuration changed"  # takes no new request; ends when its members are done
            lease.changed()  # an idle worker's window may be another now
        self.line.dispatch()

    # --- types.Core ---

    @property
    def config(self) -> PoolConfig:
        return self.state.config

    @property
    def draining(self) -> bool:
        return self.state.draining

    def resolve(self, name: str) -> ModelConfig | None:
        return self.config.resolve(name)

    def lease(self, demand: Demand) -> AbstractAsyncContextManager[Grant]:
        return LeaseContext(self.state, self.line, demand)

    def ready(self) -> dict[str, Any]:
        return snapshots.ready(self.state)

    def capacity(self) -> dict[str, Any]:
        return snapshots.capacity(self.state)

    def models(self) -> list[ModelConfig]:
        return list(self.config.models.values())

    async def metrics(self) -> bytes:
        return scrape.text(self.state)

    def answered(self, endpoint: str, status: int) -> None:
        self.state.metrics.answered(endpoint, status)

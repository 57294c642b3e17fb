"""What the pool knows at this moment, in one place: cards, leases, who waits, what operators and the watchdog want, what has failed.

The line, the cards' reports and the operators' verbs change it, each in steps without an await; snapshots only read it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from lease_pool.backoff import Backoff
from lease_pool.card import Card
from lease_pool.config import PoolConfig
from lease_pool.holds import Holds
from lease_pool.journal import Journal
from lease_pool.leases import Lease, Waiter
from lease_pool.metrics import Metrics
from lease_pool.nvml import Nvml
from lease_pool.scheduling import CardView, Want, fits
from lease_pool.types import Supervisor

LOADS_KEPT = 20
SERVED_KEPT = 100


@dataclass(eq=False)
class State:
    """`card.House` for the cards' owners."""

    config: PoolConfig
    supervisor: Supervisor
    journal: Journal
    holds: Holds
    nvml: Nvml | None
    metrics: Metrics = field(default_factory=Metrics)
    cards: dict[str, Card] = field(default_factory=dict)  # by slot
    by_uuid: dict[str, Card] = field(default_factory=dict)
    queue: list[Waiter] = field(default_factory=list)  # in order of arrival; only the line changes it
    leases: dict[str, Lease] = field(default_factory=dict)  # alive, by id
    backoff: Backoff = field(default_factory=Backoff)
    loads: dict[str, deque[float]] = field(default_factory=dict)  # seconds of each model's latest loads
    served: deque[float] = field(default_factory=lambda: deque(maxlen=SERVED_KEPT))  # seconds from the grant to the end, any model
    stopping: bool = False
    intent: tuple[str, float] | None = None  # the watchdog's word about a reboot, and until when it counts

    @property
    def draining(self) -> bool:
        """No new lease: an operator drains the pool, or it stops."""
        return self.holds.draining or self.stopping

    @property
    def rebooting(self) -> str | None:
        if self.intent is None or time.time() >= self.intent[1]:
            return None
        return self.intent[0]

    @property
    def views(self) -> list[CardView]:
        return [card.view for card in self.cards.values()]

    @property
    def usable(self) -> list[CardView]:
        """The cards that are neither drained, quarantined nor missing."""
        return [card.view for card in self.cards.values() if card.usable]

    def fitting(self, want: Want) -> list[CardView]:
        return [view for view in self.usable if fits(view, want)]

    def loaded(self, model: str, seconds: float) -> None:
        self.loads.setdefault(model, deque(maxlen=LOADS_KEPT)).append(seconds)

"""Whether a request may enter at all: a pure decision on a snapshot, taken before any byte is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lease_pool.deadlines import retry_after_s
from lease_pool.scheduling import Backing, CardView, Want, fits, may_use
from lease_pool.types import Refused

DRAIN_RETRY_S = 10
NO_CARD_RETRY_S = 30


@dataclass(frozen=True, slots=True)
class Gate:
    """The pool as a new request finds it. `usable` are the cards that are neither drained, quarantined nor missing."""

    stopping: bool
    draining: bool
    usable: Sequence[CardView]
    backing: Backing
    waiting: int
    queue: int
    wait_hint_s: float


def refusal(gate: Gate, want: Want, *, at_once: bool, max_wait_s: float | None = None) -> Refused | None:
    """None: come in. `at_once` says whether the scheduler would grant a card now; such a request never counts as a waiter."""
    name = want.model or "run"
    if gate.stopping:
        return Refused(503, "stopping", "the pool is stopping", DRAIN_RETRY_S)
    if gate.draining:
        return Refused(503, "draining", "the pool is draining and takes no new requests", DRAIN_RETRY_S)
    fitting = [card for card in gate.usable if fits(card, want)]
    if len(fitting) < want.cards:
        return Refused(503, "no_usable_card", f"no usable card fits {name}", NO_CARD_RETRY_S)
    if not any(may_use(card, want, gate.backing) for card in fitting):
        return Refused(502, "worker_failed", f"{name} fails to start on every card that fits it and backs off")
    if at_once:
        return None
    if max_wait_s is not None and max_wait_s <= 0:
        return Refused(429, "no_free_card", f"no card is free for {name} and the request does not wait", retry_after_s(gate.wait_hint_s))
    if gate.waiting >= gate.queue:
        return Refused(429, "queue_full", f"{gate.waiting} requests wait already (bounds.queue)", retry_after_s(gate.wait_hint_s))
    return None

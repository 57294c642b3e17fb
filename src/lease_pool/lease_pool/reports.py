"""What the cards' owners report, and what it means for the pool: the journal, the counters, back-off, quarantine, who is granted."""

from __future__ import annotations

import logging
import time

from lease_pool.card import Card
from lease_pool.leases import Lease
from lease_pool.line import Line
from lease_pool.nvml import CardMissing, NvmlError
from lease_pool.state import State
from lease_pool.types import CardState, Refused

log = logging.getLogger(__name__)


class Reports:
    """`card.Reports`."""

    def __init__(self, state: State, line: Line) -> None:
        self._state = state
        self._line = line

    def state_changed(self, card: Card, state: CardState, reason: str | None) -> None:
        lease = card.lease
        log.info("%s: %s%s", card.label, state, f": {reason}" if reason else "")
        self._state.journal.write(
            "state",
            card=card.uuid,
            slot=card.slot,
            pci=card.pci,
            lease=lease.id if lease is not None else None,
            alias=lease.alias if lease is not None else None,
            model=lease.model.name if lease is not None and lease.model is not None else None,
            outcome=str(state),
            reason=reason,
        )

    def lease_ready(self, lease: Lease) -> None:
        now = time.monotonic()
        if lease.model is not None:
            self._state.backoff.succeeded(lease.model.name, lease.card.slot)
            self._state.loaded(lease.model.name, lease.seconds.get("freeing", 0.0) + lease.seconds.get("loading", 0.0))
            self._blame()
        lease.ready_at = now
        for waiter in list(lease.members):
            if lease.model is not None or all(other.ready for other in waiter.loan):
                waiter.grant(lease, now)

    def lease_failed(self, lease: Lease, why: str, refused: Refused) -> None:
        assert lease.model is not None  # noqa: S101  for the type checker: the caller has seen to it
        lease.failed = why
        lease.outcome = "failed_to_start"
        log.error("%s: %s", self._state.cards[lease.card.slot].label, why)
        self._state.backoff.failed(lease.model.name, lease.card.slot, time.monotonic())
        for waiter in lease.members:
            waiter.refuse(Refused(refused.status, refused.code, refused.message, refused.retry_after_s))
        self._blame()
        self._line.dispatch()

    def _blame(self) -> None:
        for slot, models in self._state.backoff.to_blame().items():
            card = self._state.cards[slot]
            if card.hold is None:
                self.quarantine(card, f"{' and '.join(models)} fail to start here and run on other cards")

    def lease_over(self, lease: Lease) -> None:
        if self._state.leases.pop(lease.id, None) is None:
            return
        lease.tell_over()
        self._state.metrics.lease_over(lease)
        self._state.journal.write(
            "lease",
            seconds=lease.seconds,
            card=lease.card.uuid,
            slot=lease.card.slot,
            pci=self._state.cards[lease.card.slot].pci,
            lease=lease.id,
            alias=lease.alias,
            model=lease.model.name if lease.model is not None else None,
            outcome=lease.outcome,
            requests=lease.requests,
            reason=lease.failed or lease.ended,
        )

    def lease_dropped(self, lease: Lease) -> None:
        if self._state.leases.pop(lease.id, None) is not None:
            lease.tell_over()

    def quarantine(self, card: Card, reason: str) -> None:
        log.error("%s is quarantined: %s", card.label, reason)
        try:
            card.hold = self._state.holds.hold_card(card.uuid, "quarantined", reason)
        except OSError as error:  # a full disk must not keep a broken card in use
            log.error("%s: the quarantine is not on disk: %s", card.label, error)
            card.hold = self._state.holds.cards[card.uuid]
        self._state.journal.write("quarantine", card=card.uuid, slot=card.slot, pci=card.pci, outcome="quarantined", reason=reason)
        card.settle()
        self._line.dispatch()

    async def is_missing(self, card: Card) -> bool:
        """Ask the driver whether the card is there; an error that is not "no such card" changes nothing."""
        if self._state.nvml is None:
            return False
        try:
            facts = await self._state.nvml.card(card.uuid)
        except CardMissing as error:
            card.missing = f"slot {card.slot}: the driver does not list {card.uuid} ({error}){await self._unknown_cards()}"
        except NvmlError as error:
            log.warning("%s", error)
        else:
            card.missing = None
            card.pci = facts.pci
            card.memory_mib = facts.total_mib
        return card.missing is not None

    async def _unknown_cards(self) -> str:
        """A swapped card: the operator needs the new UUID (truenas#19499)."""
        assert self._state.nvml is not None  # noqa: S101  for the type checker: the caller has seen to it
        try:
            unknown = [uuid for uuid in await self._state.nvml.uuids() if uuid not in self._state.by_uuid]
        except NvmlError:
            return ""
        return f"; it lists {', '.join(unknown)}, which no slot has" if unknown else ""

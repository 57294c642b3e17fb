"""What operators, and the watchdog, ask of the pool through the admin socket."""

from __future__ import annotations

from lease_pool.journal import utc
from lease_pool.line import Line
from lease_pool.state import State


class Verbs:
    """Cards are named by their UUIDs, which must be known. What is to survive a restart is on disk when a verb returns."""

    def __init__(self, state: State, line: Line) -> None:
        self._state = state
        self._line = line

    def drain(self, uuid: str | None, reason: str | None) -> None:
        """Take a card, or with None the pool, out of service."""
        state = self._state
        if uuid is None:
            state.holds.drain_pool(reason)
            self._line.close()
            state.journal.write("drain", outcome="pool", reason=reason)
            return
        card = state.by_uuid[uuid]
        if card.hold is None or card.hold.kind != "quarantined":
            card.hold = state.holds.hold_card(uuid, "drained", reason)
        state.journal.write("drain", card=uuid, slot=card.slot, pci=card.pci, outcome="card", reason=reason)
        card.settle()
        self._line.dispatch()

    def resume(self, uuid: str | None) -> None:
        """Put it back into service; lifts a card's quarantine."""
        state = self._state
        if uuid is None:
            state.holds.resume_pool()
            state.journal.write("resume", outcome="pool")
        else:
            card = state.by_uuid[uuid]
            state.holds.resume_card(uuid)
            state.backoff.forget_card(card.slot)
            card.hold = None
            state.journal.write("resume", card=uuid, slot=card.slot, pci=card.pci, outcome="card")
            card.settle()
        self._line.dispatch()

    def release(self, uuid: str) -> bool:
        """End the card's lease now. False: it has none."""
        card = self._state.by_uuid[uuid]
        lease = card.lease
        if lease is None:
            return False
        lease.outcome = "released"
        lease.end_now("released by an operator")
        self._state.journal.write("release", card=uuid, slot=card.slot, pci=card.pci, lease=lease.id, outcome="released")
        return True

    def set_intent(self, reboot: str | None, until: float) -> None:
        """The watchdog intends to reboot the host, or no longer does; `until` is when its word ends (seconds since 1970)."""
        self._state.intent = None if reboot is None else (reboot, until)
        self._state.journal.write("intent", outcome=reboot, reason=None if reboot is None else utc(until))

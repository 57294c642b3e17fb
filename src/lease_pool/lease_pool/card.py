"""One card's owner: the only code that moves the card between its states. Others send it messages; the line claims it.

A claim is synchronous (the line's dispatch runs between two awaits, so what it saw still holds); everything that takes time happens in `run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lease_pool.config import CardConfig, PoolConfig
from lease_pool.holds import Hold
from lease_pool.leases import Lease, Waiter
from lease_pool.racing import first
from lease_pool.readiness import WrongDimensions, until_ready
from lease_pool.scheduling import CardView, Room
from lease_pool.specs import launch_spec
from lease_pool.types import CardState, IdleState, Lender, Occupancy, OccupiedElsewhere, Refused, Supervisor, SupervisorError

if TYPE_CHECKING:
    from lease_pool.loans import Loan

log = logging.getLogger(__name__)

LOCK_POLL_S = 0.1
SURVEY_RETRY_S = 1.0
FOREIGN_SERVING_S = 1.0
MARGIN_S = 1.0  # a supervisor keeps the bound itself and says why it was missed; this only covers one that does not answer


class Message(enum.Enum):
    BEGIN = "begin"  # a lease was claimed
    SETTLE = "settle"  # make an unleased card what it should be now
    STOP = "stop"


class House(Protocol):
    """What a card's owner reads of the pool."""

    @property
    def config(self) -> PoolConfig: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def stopping(self) -> bool: ...

    @property
    def draining(self) -> bool:
        """Draining or stopping: no worker is kept for a next request."""


class Line(Protocol):
    """Who waits. Synchronous."""

    def dispatch(self) -> None: ...

    def put_back(self, lease: Lease) -> None:
        """The lease's waiting members return to the head of their queues."""


class Reports(Protocol):
    """What a card's owner tells the pool. All synchronous but `is_missing`."""

    def state_changed(self, card: Card, state: CardState, reason: str | None) -> None: ...

    def lease_ready(self, lease: Lease) -> None: ...

    def lease_failed(self, lease: Lease, why: str, refused: Refused) -> None: ...

    def lease_over(self, lease: Lease) -> None: ...

    def lease_dropped(self, lease: Lease) -> None:
        """It was next in line and never began."""

    def quarantine(self, card: Card, reason: str) -> None: ...

    async def is_missing(self, card: Card) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Next:
    """Where a card goes after a lease."""

    lease: Lease | None = None


class Card:
    """See the module's docstring. Public attributes are for snapshots; only this class writes them."""

    def __init__(self, config: CardConfig, house: House, line: Line, reports: Reports) -> None:
        self.config = config
        self.slot = config.slot
        self.uuid = config.uuid
        self.state = CardState.RETURNING
        self._state_reason: str | None = None
        self.hold: Hold | None = None
        self.missing: str | None = None
        self.foreign = False
        self.lease: Lease | None = None
        self.next: Lease | None = None
        self.pci: str | None = None
        self.memory_mib = config.memory_mib or 0
        self.idle = IdleState(active=False, alive=None)
        self.idle_deaths = 0
        self.off_since: float | None = None
        self.off_total = 0.0
        self._house = house
        self._line = line
        self._reports = reports
        self._mailbox: asyncio.Queue[Message] = asyncio.Queue()

    # --- snapshots and claims: synchronous ---

    @property
    def label(self) -> str:
        """How every log line names the card: UUID, slot, PCI address where it is known."""
        return f"card {self.uuid} ({self.slot}{f', {self.pci}' if self.pci else ''})"

    @property
    def usable(self) -> bool:
        """In service: neither drained, quarantined nor missing."""
        return self.hold is None and self.missing is None

    @property
    def reason(self) -> str | None:
        if self.missing is not None:
            return self.missing
        # Until its owner has moved it, a card that was just resumed, or found again and drained, is what it was for the reason that it had.
        return (self.hold.reason if self.hold is not None else None) or self._state_reason

    @property
    def view(self) -> CardView:
        """The card as the scheduler sees it."""
        room, lease = Room.BUSY, self._pending_next or self.lease
        if self.usable and not self.foreign:
            if self._pending_next is not None:
                room = Room.WORKER
            elif self.lease is None:
                room = Room.FREE if self.state is CardState.MINING else Room.BUSY
            elif self.state is CardState.UNLOADING:
                room = Room.LEAVING
            elif self.lease.accepting:
                room = Room.WORKER
        return CardView(
            slot=self.slot,
            memory_mib=self.memory_mib,
            labels=frozenset(self.config.labels),
            room=room,
            model=lease.model.name if lease is not None and lease.model is not None else None,
            shares=len(lease.members) if lease is not None else 0,
            accepting=lease is not None and lease.accepting,
            idle=lease is not None and lease.ready and not lease.members,
        )

    @property
    def _pending_next(self) -> Lease | None:
        return self.next if self.next is not None and self.next.members else None

    def claim(self, lease: Lease) -> None:
        """The line gives this card's next lease. The card must be free, leaving with nobody next in line, or have an idle worker, which ends now."""
        if self.lease is None:
            self.lease = lease
            self._set(CardState.FREEING)
            self._send(Message.BEGIN)
            return
        self._line_up(lease)
        if not self.lease.unloading:
            self.lease.end_now("gave way to another request")
            self.lease.outcome = "ok"

    def _line_up(self, lease: Lease) -> None:
        """Who is next here. Whoever was before has left, or went back to the queue: its lease never began."""
        if self.next is not None:
            self._reports.lease_dropped(self.next)
        self.next = lease

    def drop_next(self) -> list[Waiter]:
        """Nobody is next here any more; who was."""
        if self.next is None:
            return []
        dropped, self.next = self.next, None
        self._reports.lease_dropped(dropped)
        members, dropped.members = dropped.members, []
        return members

    def settle(self) -> None:
        """Something outside a lease changed: hold, resume, missing, idle workload dead."""
        if self.lease is not None:
            self.lease.changed()
        self._send(Message.SETTLE)

    def stop(self) -> None:
        self._send(Message.STOP)

    def _send(self, message: Message) -> None:
        self._mailbox.put_nowait(message)

    def _set(self, state: CardState, reason: str | None = None) -> None:
        if state is not self.state:
            self.state = state
            self._state_reason = reason
            self._reports.state_changed(self, state, reason)

    # --- the owner task ---

    async def run(self) -> None:
        await self._settle()
        while True:
            message = await self._mailbox.get()
            if message is Message.STOP:
                return
            if message is Message.BEGIN:
                await self._lease()
            elif self.lease is None:
                await self._settle()

    async def _settle(self, *, after_lease: bool = False) -> None:
        """Bring an unleased card to `mining`, `drained`, `quarantined` or `missing`, whichever it should be by now.

        `after_lease`: what holds the lock is our own occupancy that has ended; stopping the idle workload makes it let go.
        """
        while True:
            if not after_lease and not await self._unlocked():
                return
            after_lease = False
            hold = self.hold
            if self.missing is not None:
                self._set(CardState.MISSING, self.missing)
                self._begin_off()
                with contextlib.suppress(OccupiedElsewhere):
                    await self._stop_idle(hold=False)
            elif hold is not None:
                if not await self._keep_down(hold):
                    continue
            elif not await self._bring_home():
                continue
            if self.hold == hold:
                self._line.dispatch()
                return

    async def _unlocked(self) -> bool:
        """Wait, without bound, while someone else holds the card. False: the pool stops first, or the card was claimed: its lease finds out."""
        began = time.monotonic()
        while not self._house.stopping and self.lease is None:
            try:
                found = await self._house.supervisor.survey(self.config)
            except (SupervisorError, OSError) as error:
                log.error("%s: cannot be looked at: %s", self.label, error)
                await first(SURVEY_RETRY_S, self._stop_wanted())
                continue
            if self.lease is not None:
                break
            self.idle = found.idle
            if not found.locked:
                self.foreign = False
                return True
            self.foreign = True
            late = time.monotonic() - began >= FOREIGN_SERVING_S
            if self.hold is None:
                self._set(CardState.SERVING if late else CardState.RETURNING)
            await first(LOCK_POLL_S, self._stop_wanted())
        return False

    async def _stop_wanted(self) -> None:
        while not self._house.stopping:  # noqa: ASYNC110  raced against the lock, which has no event either
            await asyncio.sleep(LOCK_POLL_S)

    async def _keep_down(self, hold: Hold) -> bool:
        """Drained or quarantined: the idle workload stays off, over reboots too. False: look again.

        A card to be drained whose idle workload will not go is broken, and said to be; where it is known to be broken this is best effort.
        """
        if hold.kind == "quarantined":
            self._set(CardState.QUARANTINED, hold.reason)
        elif self.state is not CardState.DRAINED:
            self._set(CardState.FREEING)
        self._begin_off()
        try:
            failure = await self._stop_idle(hold=True)
        except OccupiedElsewhere:
            return False
        if self.hold is not hold:
            return True
        if failure and hold.kind == "drained":
            self._reports.quarantine(self, f"freeing: {failure}")
            return False
        self._set(CardState.DRAINED if hold.kind == "drained" else CardState.QUARANTINED, hold.reason)
        return True

    async def _stop_idle(self, *, hold: bool) -> str:
        """Idle workload off, with `hold` over reboots too: '' or why it could not be done. Raises OccupiedElsewhere."""
        try:
            if hold:
                await self._house.supervisor.hold(self.config, True)
            async with asyncio.timeout(self._house.config.bounds.free_s + MARGIN_S):
                await self._house.supervisor.stop_idle(self.config)
        except OccupiedElsewhere:
            raise
        except (SupervisorError, OSError) as error:  # TimeoutError is one
            failure = str(error) or "the idle workload did not stop within free_s"
            log.error("%s: its idle workload could not be stopped: %s", self.label, failure)
            return failure
        self.idle = IdleState(active=False, alive=None if self.idle.alive is None else False)
        return ""

    async def _bring_home(self) -> bool:
        """Idle workload on. False: look again (someone took the lock, or the card was just quarantined)."""
        supervisor = self._house.supervisor
        self._set(CardState.RETURNING)
        try:
            await supervisor.hold(self.config, False)
            async with asyncio.timeout(self._house.config.bounds.free_s + MARGIN_S):
                await supervisor.start_idle(self.config)
        except OccupiedElsewhere:
            return False
        except (SupervisorError, OSError) as error:  # TimeoutError is one
            if await self._reports.is_missing(self):
                return False
            self._reports.quarantine(self, f"returning: {str(error) or 'the idle workload did not start within free_s'}")
            return False
        self._home()
        return True

    def _home(self) -> None:
        # It came home: started, and working where there is a way to know.
        idle = self._house.config.idle_workload
        self.idle = IdleState(active=idle.driver != "none", alive=True if idle.alive else None)
        self._end_off()
        self._set(CardState.MINING)

    def off_seconds(self) -> float:
        """Seconds without the idle workload since the pool began."""
        return self.off_total + (time.monotonic() - self.off_since if self.off_since is not None else 0.0)

    def _begin_off(self) -> None:
        if self.off_since is None:
            self.off_since = time.monotonic()

    def _end_off(self) -> None:
        if self.off_since is not None:
            self.off_total += time.monotonic() - self.off_since
            self.off_since = None

    # --- a lease, and those in line behind it ---

    async def _lease(self) -> None:
        while (lease := self.lease) is not None:
            after = await self._one_lease(lease)
            if after is None:  # another owner, a hold, or a lost card
                self.lease = None
                await self._settle(after_lease=not self.foreign)
                return
            self.lease = after.lease
            if self.lease is None and self.state is not CardState.MINING:
                await self._settle()
                return
        self._line.dispatch()
        if not self.usable:
            await self._settle()

    async def _one_lease(self, lease: Lease) -> _Next | None:
        off_before = self.off_since
        lease.begin(time.monotonic())
        self._set(CardState.FREEING)
        self._begin_off()
        began = time.monotonic()
        try:
            occupancy = await self._freed(lease)
        except OccupiedElsewhere:
            self.off_since = off_before
            self.foreign = True
            lease.outcome = "occupied_elsewhere"
            lease.unloading = True
            self._line.put_back(lease)
            self._reports.lease_over(lease)
            return None
        except (SupervisorError, OSError) as error:  # TimeoutError is one
            lease.seconds["freeing"] = time.monotonic() - began
            await self._missed_freeing(lease, str(error) or "the card was not free within free_s")
            return None
        lease.seconds["freeing"] = time.monotonic() - began
        if lease.members and lease.ended is None:
            await self._load(lease, occupancy)
        if lease.ready:
            await self._serve(lease, occupancy)
        return await self._leave(lease, occupancy)

    async def _freed(self, lease: Lease) -> Occupancy:
        """The idle workload is off and the card free (or nobody wants it any more). Raises SupervisorError or OSError (TimeoutError)."""
        bounds = self._house.config.bounds
        async with asyncio.timeout(bounds.free_s + MARGIN_S):
            if lease.model is not None:
                spec = launch_spec(self._house.config, lease.model, self.config)
                occupancy = await self._house.supervisor.occupy(self.config, spec)
            else:
                occupancy = await self._lend(bounds.free_s)
        lease.occupancy = occupancy
        async with asyncio.timeout(bounds.free_s + MARGIN_S):
            while await first(None, occupancy.freed(), lease.until(lease.unwanted)) == 1:
                if lease.unwanted():  # else someone joined in the same instant
                    break
        return occupancy

    async def _lend(self, free_s: float) -> Occupancy:
        supervisor = self._house.supervisor
        if isinstance(supervisor, Lender):
            return await supervisor.lend(self.config, free_s)
        from lease_pool.loans import Loan  # noqa: PLC0415  only the systemd supervisor needs it

        loan: Loan = Loan(supervisor, self.config)
        return loan

    async def _missed_freeing(self, lease: Lease, why: str) -> None:
        lease.outcome = "not_freed"
        lease.unloading = True
        missing = await self._reports.is_missing(self)
        self._line.put_back(lease)
        if not missing:
            self._reports.quarantine(self, f"freeing: {why}")
        self._reports.lease_over(lease)
        self._drop_next()
        if lease.occupancy is not None:
            with contextlib.suppress(SupervisorError, OSError):
                async with asyncio.timeout(self._house.config.bounds.stop_s + self._house.config.bounds.free_s):
                    await lease.occupancy.end()
        self._line.dispatch()

    async def _load(self, lease: Lease, occupancy: Occupancy) -> None:
        self._set(CardState.LOADING if lease.model is not None else CardState.SERVING)
        if lease.model is None:
            lease.ready = True
            self._reports.lease_ready(lease)
            return
        began = time.monotonic()
        ready_s = self._house.config.bounds.ready_s
        name = lease.model.name
        what: int | None = 2
        try:
            while what == 2:
                left_s = max(0.0, began + ready_s - time.monotonic())
                waits = until_ready(occupancy.endpoint, lease.model), occupancy.exited(), lease.until(lease.unwanted)
                what = await first(left_s, *waits)
                if what == 2 and lease.unwanted():
                    return
        except WrongDimensions as error:
            self._reports.lease_failed(lease, str(error), Refused(502, "worker_failed", str(error)))
            return
        finally:
            lease.seconds["loading"] = time.monotonic() - began
        if what == 0:
            lease.ready = True
            self._set(CardState.SERVING)
            self._reports.lease_ready(lease)
        elif what == 1:
            why = f"{name} ended before it was ready: {await occupancy.exited()}"
            self._reports.lease_failed(lease, why, Refused(502, "worker_failed", why))
        elif what is None:
            why = f"{name} was not ready within ready_s ({ready_s:g} s)"
            self._reports.lease_failed(lease, why, Refused(504, "deadline_ready_s", why))

    async def _serve(self, lease: Lease, occupancy: Occupancy) -> None:
        """Until nobody needs the worker, it dies, or it must go. Returns with `unloading` set, and no await after the decision."""
        began = time.monotonic()
        while True:
            lease.wake.clear()
            if lease.ended is not None:
                break
            timeout_s = None
            if not lease.members:
                timeout_s = self._keep_for_s(lease)
                if timeout_s <= 0:
                    break
            lease.timed = timeout_s is not None
            what = await first(timeout_s, lease.wake.wait(), occupancy.exited())
            if what == 1:
                lease.failed = f"the worker ended: {await occupancy.exited()}"
                lease.ended = lease.failed
                if lease.members and lease.model is not None:
                    lease.outcome = "worker_died"
        lease.seconds["serving"] = time.monotonic() - began

    def _keep_for_s(self, lease: Lease) -> float:
        """How long an idle worker may still wait for a next request."""
        if lease.failed is not None or not self.usable or self._house.draining or lease.model is None:
            return 0.0
        return lease.idle_since + self._house.config.window_s - time.monotonic()

    async def _leave(self, lease: Lease, occupancy: Occupancy) -> _Next | None:
        bounds = self._house.config.bounds
        lease.unloading = True
        self._set(CardState.UNLOADING)
        if lease.ended is not None:
            lease.refuse_all(Refused(502, "lease_ended", f"the lease was ended: {lease.ended}"))
        lease.tell_gone(lease.ended or "the lease is over")
        self._line.dispatch()  # the next waiter may be in line from here on
        began = time.monotonic()
        try:
            # A loan ends when the borrower's processes are gone, which no bound of ours decides.
            async with asyncio.timeout(None if lease.model is None else bounds.stop_s + bounds.free_s):
                await occupancy.end()
        except (SupervisorError, OSError) as error:  # TimeoutError is one
            lease.seconds["unloading"] = time.monotonic() - began
            lease.outcome = "not_unloaded"
            self._reports.quarantine(self, f"unloading: {str(error) or 'the worker could not be ended within stop_s + free_s'}")
            self._reports.lease_over(lease)
            self._drop_next()
            return None
        lease.seconds["unloading"] = time.monotonic() - began
        following = self._pending_next
        if following is not None and self.usable and not self._house.draining:
            self.next = None
            self._reports.lease_over(lease)
            return _Next(following)
        self._drop_next()
        if not self.usable:
            self._reports.lease_over(lease)
            return None
        return await self._return(lease, occupancy)

    async def _return(self, lease: Lease, occupancy: Occupancy) -> _Next | None:
        self._set(CardState.RETURNING)
        began = time.monotonic()
        reason = ""
        try:
            async with asyncio.timeout(self._house.config.bounds.free_s + MARGIN_S):
                await occupancy.returned()
        except OccupiedElsewhere:
            self.foreign = True  # its holder takes the card home, or we do once the lock is free
        except (SupervisorError, OSError) as error:  # TimeoutError is one
            reason = str(error) or "the idle workload did not return within free_s"
        lease.seconds["returning"] = time.monotonic() - began
        if self.off_since is not None:
            lease.seconds["idle_workload_off"] = time.monotonic() - self.off_since
        if reason and not await self._reports.is_missing(self):
            lease.outcome = "not_returned"
            self._reports.quarantine(self, f"returning: {reason}")
        self._reports.lease_over(lease)
        if reason or self.foreign:
            return None
        if self.usable:
            self.lease = None
            self._home()
        return _Next()

    def _drop_next(self) -> None:
        if self.next is not None:
            dropped, self.next = self.next, None
            self._reports.lease_dropped(dropped)
            self._line.put_back(dropped)

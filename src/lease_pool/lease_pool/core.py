"""The pool's core: the queue, the cards' owners, and what joins them. Decisions are pure (scheduling, admission, backoff); this acts on them.

Everything that claims, joins, refuses or counts is synchronous, so that nothing can change between the look and the act.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
import time
from collections import deque
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from lease_pool import admission, deadlines, scheduling
from lease_pool.backoff import Backoff
from lease_pool.card import Card
from lease_pool.config import CardConfig, ModelConfig, PoolConfig
from lease_pool.holds import Holds
from lease_pool.journal import Journal, utc
from lease_pool.lease_context import LeaseContext
from lease_pool.leases import Lease, Share, Waiter
from lease_pool.metrics import Metrics
from lease_pool.nvml import CardMissing, Nvml, NvmlError
from lease_pool.scheduling import Join, Start, Want
from lease_pool.types import CardState, Demand, Grant, Refused, Supervisor, SupervisorError

log = logging.getLogger(__name__)

LOADS_KEPT = 20
SERVED_KEPT = 100
PRESENCE_S = 10.0


class PoolCore:
    """Implements `types.Core` for the data plane and `card.Owner` for the cards; the admin socket calls its verbs."""

    def __init__(self, config: PoolConfig, supervisor: Supervisor, journal: Journal, holds: Holds, nvml: Nvml | None) -> None:
        self._config = config
        self._supervisor = supervisor
        self.journal = journal
        self.holds = holds
        self.nvml = nvml
        self.metrics_book = Metrics()
        self.cards = {card.slot: Card(card, self) for card in config.cards}
        self.by_uuid = {card.uuid: card for card in self.cards.values()}
        self._queue: list[Waiter] = []
        self._ids = itertools.count(1)
        self._backoff = Backoff()
        self._loads: dict[str, deque[float]] = {}
        self._served: deque[float] = deque(maxlen=SERVED_KEPT)  # seconds from the grant to the end, of requests to any model
        self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._intent: tuple[str, float] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leases: dict[str, Lease] = {}  # alive, by id

    # --- life ---

    async def start(self) -> None:
        """Begin every card's owner; they settle in the background."""
        for card in self.cards.values():
            card.hold = self.holds.cards.get(card.uuid)
            await self.is_missing(card)
        for card in self.cards.values():
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
        if self._stopping:
            return
        self._stopping = True
        self._refuse_queue()
        self._refuse_unstarted(CardState.FREEING)
        for lease in self._leases.values():
            lease.changed()

    async def idle(self) -> None:
        """Return when no lease is left (loans to `run` not counted: their borrowers hold the lock themselves)."""
        while any(lease.model is not None for lease in self._leases.values()):
            waits = [asyncio.create_task(lease.wait_over()) for lease in self._leases.values() if lease.model is not None]
            await asyncio.wait(waits, return_when=asyncio.ALL_COMPLETED)

    def end_all(self, why: str) -> None:
        for lease in list(self._leases.values()):
            lease.end_now(why)

    async def stop(self) -> None:
        """End the owners; every card is at rest or its bound has passed."""
        for card in self.cards.values():
            card.stop()
        bounds = self._config.bounds
        lent = {lease.card.slot for lease in self._leases.values() if lease.model is None}
        waiting = [task for slot, task in self._tasks.items() if slot not in lent]
        if waiting:
            await asyncio.wait(waiting, timeout=bounds.stop_s + 2 * bounds.free_s + 5)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    def reconfigure(self, config: PoolConfig) -> None:
        """Take a checked configuration that differs only in what can change while running. Running leases keep theirs."""
        self._config = config
        self._supervisor.reconfigure(config)
        for waiter in list(self._queue):
            model = config.models.get(waiter.demand.model)
            if waiter.want.model is None:
                continue
            if model is None:
                self._queue.remove(waiter)
                waiter.refuse(Refused(404, "model_not_found", "the model was removed from the configuration"))
            else:
                waiter.want = self._want(waiter.id, model)
        for lease in self._leases.values():
            model = config.models.get(lease.model.name) if lease.model is not None else None
            if lease.model is not None and model != lease.model and lease.failed is None:
                lease.failed = "its configuration changed"  # takes no new request; ends when its members are done
            lease.changed()  # an idle worker's window may be another now
        self.dispatch()

    # --- types.Core ---

    @property
    def config(self) -> PoolConfig:
        return self._config

    @property
    def supervisor(self) -> Supervisor:
        return self._supervisor

    @property
    def draining(self) -> bool:
        return self.holds.draining or self._stopping

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def closed(self) -> bool:
        return self.draining

    def resolve(self, name: str) -> ModelConfig | None:
        return self._config.resolve(name)

    def lease(self, demand: Demand) -> AbstractAsyncContextManager[Grant]:
        return LeaseContext(self, demand)

    def ready(self) -> dict[str, Any]:
        usable = any(card.usable for card in self.cards.values())
        return {"ready": usable and not self.draining, "draining": self.draining, "rebooting": self.rebooting}

    def capacity(self) -> dict[str, Any]:
        now = time.monotonic()
        backing = self._backoff.active(now)
        views = [card.view for card in self.cards.values() if card.usable]
        models = {}
        for name, model in self._config.models.items():
            want = self._want(0, model)
            fitting = [view for view in views if scheduling.fits(view, want)]
            able = [view for view in fitting if scheduling.may_use(view, want, backing)]
            free = sum(view.room in (scheduling.Room.FREE, scheduling.Room.LEAVING) or view.idle for view in able)
            models[name] = {
                "aliases": list(model.aliases),
                "free_cards": 0 if self.draining else free,
                "waiting": sum(waiter.want.model == name for waiter in self._queue),
                "load_s_p50": deadlines.median(self._loads.get(name, ())),
                "failing": bool(fitting) and not able,
            }
        return {"draining": self.draining, "queue": len(self._queue), "models": models}

    def models(self) -> list[ModelConfig]:
        return list(self._config.models.values())

    async def metrics(self) -> bytes:
        return self.metrics_book.text(self)

    def answered(self, endpoint: str, status: int) -> None:
        self.metrics_book.answered(endpoint, status)

    def request_over(self, demand: Demand, outcome: str, seconds: dict[str, float], *, loading: bool) -> None:
        """Counts a request that ended; `loading`: it had a card and no worker yet."""
        if "serving" in seconds:
            self._served.append(seconds["serving"])
        self.metrics_book.request_over(demand.alias, outcome, seconds)
        if loading and outcome == "client_left":
            self.metrics_book.load_cancelled(demand.alias)

    # --- the queue ---

    def enqueue(self, demand: Demand) -> Waiter:
        """Join the queue, or raise Refused. A card that is free is claimed before this returns."""
        return self._enqueue(demand, self._want(next(self._ids), self._config.models[demand.model]))

    def enqueue_loan(self, demand: Demand, memory_mib: int | None, cards: int) -> Waiter:
        return self._enqueue(demand, Want(next(self._ids), None, memory_mib or 0, cards=cards))

    def _enqueue(self, demand: Demand, want: Want) -> Waiter:
        joined = self._join_ready(demand, want)
        if joined is not None:
            return joined
        self._admit(want, demand.max_wait_s)
        deadline = deadlines.card_by(demand.arrived, self._config.bounds.queue_s, demand.max_wait_s)
        loop = asyncio.get_running_loop()
        waiter = Waiter(want.id, want, demand, deadline, loop.create_future())
        self._insert(waiter)
        self.dispatch()
        return waiter

    def _join_ready(self, demand: Demand, want: Want) -> Waiter | None:
        """The hot path: with nobody waiting and a ready worker that has room, `plan` would say Join; the queue, its timer and a second look are spared."""
        if self._queue or self.draining:
            return None
        for card in self.cards.values():
            lease = card.lease
            if (
                lease is None
                or not lease.ready
                or not scheduling.joinable(card.view, want)
                or (card.next is not None and card.next.members)
            ):
                continue
            now = time.monotonic()
            waiter = Waiter(want.id, want, demand, demand.arrived, asyncio.get_running_loop().create_future(), assigned_at=now)
            waiter.queued_s = now - demand.arrived
            lease.add(waiter)
            self._grant(waiter, lease, now)
            return waiter
        return None

    def withdraw(self, waiter: Waiter) -> None:
        """The client left, or is done: its place in the queue, or its share of a lease, is free. Synchronous, so that nothing can interrupt it."""
        self._cancel_timer(waiter)
        if waiter in self._queue:
            self._queue.remove(waiter)
        if waiter.lease is not None:
            waiter.lease.remove(waiter)
        for lease in waiter.loan:
            lease.remove(waiter)
        if waiter.granted.done() and not waiter.granted.cancelled():
            waiter.granted.exception()  # seen
        else:
            waiter.granted.cancel()
        self.dispatch()

    def put_back(self, lease: Lease) -> None:
        """Members that still wait go back to the head of their model's queue; their bound still runs."""
        for waiter in list(lease.members):
            if waiter.granted.done():
                continue
            lease.members.remove(waiter)
            waiter.lease = None
            for other in waiter.loan:
                if other is not lease:
                    other.remove(waiter)
            waiter.loan = []
            if self.draining:
                waiter.refuse(self._closing())
            else:
                self._insert(waiter)
        self.dispatch()

    def _insert(self, waiter: Waiter) -> None:
        bisect.insort(self._queue, waiter, key=lambda w: w.id)
        self._cancel_timer(waiter)
        delay = deadlines.left(waiter.deadline, time.monotonic())
        waiter.timer = asyncio.get_running_loop().call_later(delay, self._expire, waiter)

    def _cancel_timer(self, waiter: Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
            waiter.timer = None

    def _expire(self, waiter: Waiter) -> None:
        if waiter not in self._queue:
            return
        self._queue.remove(waiter)
        waited = time.monotonic() - waiter.demand.arrived
        retry = deadlines.retry_after_s(self._wait_s(waiter.want))
        waiter.refuse(Refused(429, "queue_timeout", f"no card became free within {waited:.1f} s", retry))
        self.dispatch()

    def _closing(self) -> Refused:
        if self._stopping:
            return Refused(503, "stopping", "the pool is stopping", admission.DRAIN_RETRY_S)
        return Refused(503, "draining", "the pool is draining and takes no new requests", admission.DRAIN_RETRY_S)

    def _refuse_queue(self) -> None:
        for waiter in self._queue:
            self._cancel_timer(waiter)
            waiter.refuse(self._closing())
        self._queue.clear()

    def _refuse_unstarted(self, *states: CardState) -> None:
        """Requests that are next in line on a card, or whose card is in one of these states, have no worker yet and get none any more."""
        for card in self.cards.values():
            for lease in (card.next, card.lease if card.state in states else None):
                for waiter in lease.members if lease is not None else ():
                    waiter.refuse(self._closing())

    def _want(self, number: int, model: ModelConfig) -> Want:
        return Want(number, model.name, model.memory_mib, frozenset(model.labels), model.parallel)

    def _admit(self, want: Want, max_wait_s: float | None) -> None:
        now = time.monotonic()
        backing = self._backoff.active(now)
        usable = [card.view for card in self.cards.values() if card.usable]
        gate = admission.Gate(
            stopping=self._stopping,
            draining=self.holds.draining,
            usable=usable,
            backing=backing,
            waiting=len(self._queue),
            queue=self._config.bounds.queue,
            wait_hint_s=self._wait_s(want),
        )
        views = [card.view for card in self.cards.values()]
        planned = scheduling.plan(views, [*(w.want for w in self._queue), want], backing)
        refused = admission.refusal(gate, want, at_once=any(action.waiter == want.id for action in planned), max_wait_s=max_wait_s)
        if refused is not None:
            raise refused

    def _wait_s(self, want: Want) -> float:
        """When a card will be free for this request: only who waits longer (number 0: everybody) and for the same cards is ahead of it."""
        cards = [view for card in self.cards.values() if card.usable and scheduling.fits(view := card.view, want)]
        ahead = sum(
            (not want.id or waiter.id < want.id) and any(scheduling.fits(view, waiter.want) for view in cards) for waiter in self._queue
        )
        loads = [load for samples in self._loads.values() for load in samples]
        return deadlines.wait_s(ahead, deadlines.median(loads), deadlines.median(self._served), len(cards))

    # --- dispatch: look and act in one step ---

    def dispatch(self) -> None:
        now = time.monotonic()
        if not self.draining:
            self._recall(now)
        if self._queue and not self.draining:
            self._refuse_hopeless(now)
            waiters = {waiter.id: waiter for waiter in self._queue}
            views = [card.view for card in self.cards.values()]
            for action in scheduling.plan(views, [w.want for w in self._queue], self._backoff.active(now)):
                self._act(action, waiters[action.waiter], now)
        self._rearm(now)

    def _recall(self, now: float) -> None:
        """Who is next in line on one card need not wait there when another card is free, or when theirs is taken out of service."""
        lines = [(card, card.next.members) for card in self.cards.values() if card.next is not None and card.next.members]
        if not lines:  # the rule, at the end of every request
            return
        backing = self._backoff.active(now)
        free = [card.view for card in self.cards.values() if card.view.room is scheduling.Room.FREE]
        for card, line in lines:
            if len(line[0].loan) > 1:
                continue
            if card.usable and not any(scheduling.may_use(view, line[0].want, backing) for view in free):
                continue
            for waiter in card.drop_next():
                waiter.lease, waiter.loan = None, []
                if not waiter.granted.done():
                    self._insert(waiter)

    def _act(self, action: scheduling.Action, waiter: Waiter, now: float) -> None:
        self._queue.remove(waiter)
        self._cancel_timer(waiter)
        waiter.assigned_at = now
        waiter.queued_s = now - waiter.demand.arrived
        match action:
            case Join(slot=slot):
                card = self.cards[slot]
                lease = card.next if card.next is not None and card.next.members else card.lease
                assert lease is not None  # noqa: S101  for the type checker: the caller has seen to it
                lease.add(waiter)
                if lease.ready:
                    self._grant(waiter, lease, now)
            case Start(slots=slots):
                for slot in slots:
                    self.cards[slot].claim(self._new_lease(self.cards[slot], waiter))

    def _new_lease(self, card: Card, waiter: Waiter) -> Lease:
        model = self._config.models[waiter.want.model] if waiter.want.model is not None else None
        lease = Lease(card.config, model, waiter.demand.alias if model is not None else None)
        self._leases[lease.id] = lease
        lease.add(waiter)
        if model is None:
            waiter.loan.append(lease)
        return lease

    def _grant(self, waiter: Waiter, lease: Lease, now: float) -> None:
        waiter.granted_at = now
        waiter.load_s = now - waiter.assigned_at if not lease.warm_for(waiter) else 0.0
        if not waiter.granted.done():
            waiter.granted.set_result(None)

    def _refuse_hopeless(self, now: float) -> None:
        """A queued request that no card can serve any more is answered now, not at its bound."""
        backing = self._backoff.active(now)
        usable = [card.view for card in self.cards.values() if card.usable]
        for waiter in list(self._queue):
            gate = admission.Gate(False, False, usable, backing, 0, 1, 1.0)
            refused = admission.refusal(gate, waiter.want, at_once=True)
            if refused is not None:
                self._queue.remove(waiter)
                self._cancel_timer(waiter)
                waiter.refuse(refused)

    def _rearm(self, now: float) -> None:
        """Look again when a back-off ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        until = self._backoff.next_end(now) if self._queue else None
        if until is not None:
            self._timer = asyncio.get_running_loop().call_later(until - now + 0.001, self.dispatch)

    # --- card.Owner ---

    def state_changed(self, card: Card, state: CardState, reason: str | None) -> None:
        lease = card.lease
        log.info("%s: %s%s", card.label, state, f": {reason}" if reason else "")
        self.journal.write(
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
            self._backoff.succeeded(lease.model.name, lease.card.slot)
            load_s = lease.seconds.get("freeing", 0.0) + lease.seconds.get("loading", 0.0)
            self._loads.setdefault(lease.model.name, deque(maxlen=LOADS_KEPT)).append(load_s)
            self._blame()
        lease.ready_at = now
        for waiter in list(lease.members):
            if lease.model is not None or all(other.ready for other in waiter.loan):
                self._grant(waiter, lease, now)

    def lease_failed(self, lease: Lease, why: str, refused: Refused) -> None:
        assert lease.model is not None  # noqa: S101  for the type checker: the caller has seen to it
        lease.failed = why
        lease.outcome = "failed_to_start"
        log.error("%s: %s", self.cards[lease.card.slot].label, why)
        self._backoff.failed(lease.model.name, lease.card.slot, time.monotonic())
        for waiter in lease.members:
            waiter.refuse(Refused(refused.status, refused.code, refused.message, refused.retry_after_s))
        self._blame()
        self.dispatch()

    def _blame(self) -> None:
        for slot, models in self._backoff.to_blame().items():
            card = self.cards[slot]
            if card.hold is None:
                self.quarantine(card, f"{' and '.join(models)} fail to start here and run on other cards")

    def lease_over(self, lease: Lease) -> None:
        if self._leases.pop(lease.id, None) is None:
            return
        lease.tell_over()
        self.metrics_book.lease_over(lease)
        self.journal.write(
            "lease",
            seconds=lease.seconds,
            card=lease.card.uuid,
            slot=lease.card.slot,
            lease=lease.id,
            alias=lease.alias,
            model=lease.model.name if lease.model is not None else None,
            outcome=lease.outcome,
            requests=lease.requests,
            reason=lease.failed or lease.ended,
        )

    def lease_dropped(self, lease: Lease) -> None:
        if self._leases.pop(lease.id, None) is not None:
            lease.tell_over()

    def quarantine(self, card: Card, reason: str) -> None:
        log.error("%s is quarantined: %s", card.label, reason)
        try:
            card.hold = self.holds.hold_card(card.uuid, "quarantined", reason)
        except OSError as error:  # a full disk must not keep a broken card in use
            log.error("%s: the quarantine is not on disk: %s", card.label, error)
            card.hold = self.holds.cards[card.uuid]
        self.journal.write("quarantine", card=card.uuid, slot=card.slot, pci=card.pci, outcome="quarantined", reason=reason)
        card.settle()
        self.dispatch()

    async def is_missing(self, card: Card) -> bool:
        """Ask the driver whether the card is there; an error that is not "no such card" changes nothing."""
        if self.nvml is None:
            return False
        try:
            facts = await self.nvml.card(card.uuid)
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
        assert self.nvml is not None  # noqa: S101  for the type checker: the caller has seen to it
        try:
            unknown = [uuid for uuid in await self.nvml.uuids() if uuid not in self.by_uuid]
        except NvmlError:
            return ""
        return f"; it lists {', '.join(unknown)}, which no slot has" if unknown else ""

    # --- verbs of the admin socket ---

    def drain(self, uuid: str | None, reason: str | None) -> None:
        if uuid is None:
            self.holds.drain_pool(reason)
            self._refuse_queue()
            self._refuse_unstarted()
            for lease in self._leases.values():
                lease.changed()
            self.journal.write("drain", outcome="pool", reason=reason)
            return
        card = self.by_uuid[uuid]
        if card.hold is None or card.hold.kind != "quarantined":
            card.hold = self.holds.hold_card(uuid, "drained", reason)
        self.journal.write("drain", card=uuid, slot=card.slot, outcome="card", reason=reason)
        card.settle()
        self.dispatch()

    def resume(self, uuid: str | None) -> None:
        if uuid is None:
            self.holds.resume_pool()
            self.journal.write("resume", outcome="pool")
        else:
            card = self.by_uuid[uuid]
            self.holds.resume_card(uuid)
            self._backoff.forget_card(card.slot)
            card.hold = None
            self.journal.write("resume", card=uuid, slot=card.slot, outcome="card")
            card.settle()
        self.dispatch()

    def release(self, uuid: str) -> bool:
        """End the card's lease now. False: it has none."""
        lease = self.by_uuid[uuid].lease
        if lease is None:
            return False
        lease.outcome = "released"
        lease.end_now("released by an operator")
        self.journal.write("release", card=uuid, slot=lease.card.slot, lease=lease.id, outcome="released")
        return True

    @property
    def rebooting(self) -> str | None:
        if self._intent is None or time.time() >= self._intent[1]:
            return None
        return self._intent[0]

    def set_intent(self, reboot: str | None, until: float) -> None:
        self._intent = None if reboot is None else (reboot, until)
        self.journal.write("intent", outcome=reboot, reason=None if reboot is None else utc(until))

    async def check_presence(self) -> list[str]:
        """Notice cards that the driver lost or has again."""
        findings = []
        for card in self.cards.values():
            was_missing = card.missing is not None
            if await self.is_missing(card) != was_missing:
                findings.append(f"{card.slot}: {card.missing or 'the card is back'}")
                card.settle()
        return findings

    async def reconcile(self) -> list[str]:
        """Compare what should be with what is, card by card; says what was wrong. The owner of the card puts it right."""
        findings = await self.check_presence()
        for card in self.cards.values():
            if card.lease is not None or card.foreign or card.state not in (CardState.MINING, CardState.DRAINED, CardState.QUARANTINED):
                continue
            try:
                found = await self._supervisor.survey(card.config)
            except (SupervisorError, OSError) as error:
                findings.append(f"{card.slot}: {error}")
                continue
            if card.lease is not None:
                continue
            card.idle = found.idle
            if found.worker_pid is not None and not found.locked:
                findings.append(f"{card.slot}: worker {found.worker_pid} without a lease")
                await self._supervisor.stop_worker(card.config)
            if found.locked or (card.state is CardState.MINING and self._idle_dead(found.idle.active, found.idle.alive)):
                findings.append(f"{card.slot}: " + ("someone else holds the card" if found.locked else "its idle workload does not work"))
                card.settle()
        return findings

    def _idle_dead(self, active: bool, alive: bool | None) -> bool:
        return self._config.idle_workload.driver != "none" and (not active or alive is False)

    # --- snapshots ---

    def status(self) -> dict[str, Any]:
        return {
            "draining": self.draining,
            "drain_reason": self.holds.drain_reason,
            "rebooting": self.rebooting,
            "queue": len(self._queue),
            "cards": [self.card_status(card) for card in self.cards.values()],
            "models": [{"name": m.name, "aliases": list(m.aliases), "endpoints": list(m.endpoints)} for m in self.models()],
        }

    def card_status(self, card: Card) -> dict[str, Any]:
        foreign = {"id": None, "alias": None, "model": None, "worker_pid": None, "since": None, "requests": 0}
        lease: dict[str, Any] | None = foreign if card.foreign and card.state is CardState.SERVING else None
        if card.lease is not None and not card.lease.unloading:
            lease = lease_status(card.lease)
        return {
            "slot": card.slot,
            "uuid": card.uuid,
            "pci": card.pci,
            "memory_mib": card.memory_mib,
            "labels": list(card.config.labels),
            "state": str(card.state),
            "reason": card.reason,
            "hold": card.hold.kind if card.hold else None,
            "lease": lease,
            "idle": idle_status(card),
        }

    def leases(self) -> list[dict[str, Any]]:
        return [lease_status(lease) | {"card": lease.card.uuid, "slot": lease.card.slot} for lease in self._leases.values()]

    @property
    def live_leases(self) -> list[Lease]:
        return list(self._leases.values())

    @property
    def waiting(self) -> list[Waiter]:
        return list(self._queue)

    def share(self, waiter: Waiter) -> Share:
        assert waiter.lease is not None  # noqa: S101  for the type checker: the caller has seen to it
        return Share(waiter, waiter.lease)

    def lent_cards(self, waiter: Waiter) -> list[CardConfig]:
        return [lease.card for lease in waiter.loan]


def idle_status(card: Card) -> dict[str, Any]:
    """The idle workload as last seen; only a card that mines has one that runs."""
    if card.state is CardState.MINING:
        return {"active": card.idle.active, "alive": card.idle.alive}
    return {"active": False, "alive": None if card.idle.alive is None else False}


def lease_status(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.id,
        "alias": lease.alias,
        "model": lease.model.name if lease.model is not None else None,
        "worker_pid": lease.worker_pid,
        "since": utc(lease.since),
        "requests": lease.requests,
    }


def parse_until(value: Any) -> float:
    """A time in seconds or RFC 3339 (UTC where it names no zone), within what RFC 3339 can say. Raises ValueError."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        value = (moment - datetime.fromtimestamp(0, UTC)).total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("until must be seconds or RFC 3339")
    try:
        utc(value)
    except (OverflowError, OSError) as error:
        raise ValueError(f"until is out of range: {error}") from None
    return float(value)

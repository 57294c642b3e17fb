"""The line: who waits for a card, and who gets one next. The decisions are pure (scheduling, admission, deadlines); this acts on them.

All of it is synchronous: nothing can change between the look and the act.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import time

from lease_pool import admission, deadlines, scheduling
from lease_pool.card import Card
from lease_pool.config import ModelConfig
from lease_pool.leases import Lease, Waiter
from lease_pool.scheduling import Join, Start, Want
from lease_pool.state import State
from lease_pool.types import CardState, Demand, Refused


def want_of(number: int, model: ModelConfig) -> Want:
    """What a request for this model asks of a card."""
    return Want(number, model.name, model.memory_mib, frozenset(model.labels), model.parallel)


class Line:
    """`card.Line` for the cards' owners; a request or a borrower enters and leaves here."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ids = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None

    # --- entering and leaving ---

    def enqueue(self, demand: Demand) -> Waiter:
        """Join the queue, or raise Refused. A card that is free is claimed before this returns."""
        return self._enqueue(demand, want_of(next(self._ids), self._state.config.models[demand.model]))

    def enqueue_loan(self, demand: Demand, memory_mib: int | None, cards: int) -> Waiter:
        return self._enqueue(demand, Want(next(self._ids), None, memory_mib or 0, cards=cards))

    def _enqueue(self, demand: Demand, want: Want) -> Waiter:
        joined = self._join_ready(demand, want)
        if joined is not None:
            return joined
        self._admit(want, demand.max_wait_s)
        deadline = deadlines.card_by(demand.arrived, self._state.config.bounds.queue_s, demand.max_wait_s)
        loop = asyncio.get_running_loop()
        waiter = Waiter(want.id, want, demand, deadline, loop.create_future())
        self._insert(waiter)
        self.dispatch()
        return waiter

    def _join_ready(self, demand: Demand, want: Want) -> Waiter | None:
        """The hot path: with nobody waiting and a ready worker that has room, `plan` would say Join; the queue, its timer and a second look are spared."""
        if self._state.queue or self._state.draining:
            return None
        for card in self._state.cards.values():
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
            waiter.grant(lease, now)
            return waiter
        return None

    def withdraw(self, waiter: Waiter) -> None:
        """The client left, or is done: its place in the queue, or its share of a lease, is free. Synchronous, so that nothing can interrupt it."""
        waiter.cancel_timer()
        if waiter in self._state.queue:
            self._state.queue.remove(waiter)
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
            if self._state.draining:
                waiter.refuse(self._closing())
            elif self._known(waiter):
                self._insert(waiter)
        self.dispatch()

    def close(self, *states: CardState) -> None:
        """The pool drains or stops: whoever has no worker yet is refused (in line, next on a card, or on a card in one of these states)."""
        for waiter in self._state.queue:
            waiter.cancel_timer()
            waiter.refuse(self._closing())
        self._state.queue.clear()
        for card in self._state.cards.values():
            for lease in (card.next, card.lease if card.state in states else None):
                for waiter in lease.members if lease is not None else ():
                    waiter.refuse(self._closing())
        for lease in self._state.leases.values():
            lease.changed()

    def models_changed(self) -> None:
        """The configuration is another: who waits for a model that is gone is refused, the others ask for what it needs now."""
        self._state.queue[:] = [waiter for waiter in self._state.queue if self._known(waiter)]

    def _known(self, waiter: Waiter) -> bool:
        """What it asks for is what its model needs now; one whose model is gone is refused. Who has a card may have slept through a reload."""
        if waiter.want.model is None:
            return True
        model = self._state.config.models.get(waiter.want.model)
        if model is None:
            waiter.cancel_timer()
            waiter.refuse(Refused(404, "model_not_found", "the model was removed from the configuration"))
            return False
        waiter.want = want_of(waiter.id, model)
        return True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _insert(self, waiter: Waiter) -> None:
        bisect.insort(self._state.queue, waiter, key=lambda w: w.id)
        waiter.cancel_timer()
        delay = deadlines.left(waiter.deadline, time.monotonic())
        waiter.timer = asyncio.get_running_loop().call_later(delay, self._expire, waiter)

    def _expire(self, waiter: Waiter) -> None:
        if waiter not in self._state.queue:
            return
        self._state.queue.remove(waiter)
        waited = time.monotonic() - waiter.demand.arrived
        retry = deadlines.retry_after_s(self._wait_s(waiter.want))
        waiter.refuse(Refused(429, "queue_timeout", f"no card became free within {waited:.1f} s", retry))
        self.dispatch()

    def _closing(self) -> Refused:
        if self._state.stopping:
            return Refused(503, "stopping", "the pool is stopping", admission.DRAIN_RETRY_S)
        return Refused(503, "draining", "the pool is draining and takes no new requests", admission.DRAIN_RETRY_S)

    # --- admission ---

    def _admit(self, want: Want, max_wait_s: float | None) -> None:
        backing = self._state.backoff.active(time.monotonic())
        gate = admission.Gate(
            stopping=self._state.stopping,
            draining=self._state.holds.draining,
            usable=self._state.usable,
            backing=backing,
            waiting=len(self._state.queue),
            queue=self._state.config.bounds.queue,
            wait_hint_s=self._wait_s(want),
        )
        planned = scheduling.plan(self._state.views, [*(w.want for w in self._state.queue), want], backing)
        refused = admission.refusal(gate, want, at_once=any(action.waiter == want.id for action in planned), max_wait_s=max_wait_s)
        if refused is not None:
            raise refused

    def _wait_s(self, want: Want) -> float:
        """When a card will be free for this request: only who waits longer (number 0: everybody) and for the same cards is ahead of it."""
        cards = self._state.fitting(want)
        ahead = sum(
            (not want.id or waiter.id < want.id) and any(scheduling.fits(view, waiter.want) for view in cards)
            for waiter in self._state.queue
        )
        loads = [load for samples in self._state.loads.values() for load in samples]
        return deadlines.wait_s(ahead, deadlines.median(loads), deadlines.median(self._state.served), len(cards))

    # --- dispatch: look and act in one step ---

    def dispatch(self) -> None:
        """Give every card that can be had to who is next; called whenever a card, a lease or the queue changed."""
        state, now = self._state, time.monotonic()
        if not state.draining:
            self._recall(now)
        if state.queue and not state.draining:
            self._refuse_hopeless(now)
            waiters = {waiter.id: waiter for waiter in state.queue}
            for action in scheduling.plan(state.views, [w.want for w in state.queue], state.backoff.active(now)):
                self._act(action, waiters[action.waiter], now)
        self._rearm(now)

    def _recall(self, now: float) -> None:
        """Who is next in line on one card need not wait there when another card is free, or when theirs is taken out of service."""
        lines = [(card, card.next.members) for card in self._state.cards.values() if card.next is not None and card.next.members]
        if not lines:  # the rule, at the end of every request
            return
        backing = self._state.backoff.active(now)
        free = [view for view in self._state.views if view.room is scheduling.Room.FREE]
        for card, line in lines:
            if len(line[0].loan) > 1:
                continue
            if card.usable and not any(scheduling.may_use(view, line[0].want, backing) for view in free):
                continue
            for waiter in card.drop_next():
                waiter.lease, waiter.loan = None, []
                if not waiter.granted.done() and self._known(waiter):
                    self._insert(waiter)

    def _act(self, action: scheduling.Action, waiter: Waiter, now: float) -> None:
        self._state.queue.remove(waiter)
        waiter.cancel_timer()
        waiter.assigned_at = now
        waiter.queued_s = now - waiter.demand.arrived
        match action:
            case Join(slot=slot):
                card = self._state.cards[slot]
                lease = card.next if card.next is not None and card.next.members else card.lease
                assert lease is not None  # noqa: S101  for the type checker: the caller has seen to it
                lease.add(waiter)
                if lease.ready:
                    waiter.grant(lease, now)
            case Start(slots=slots):
                for slot in slots:
                    card = self._state.cards[slot]
                    card.claim(self._new_lease(card, waiter))

    def _new_lease(self, card: Card, waiter: Waiter) -> Lease:
        model = self._state.config.models[waiter.want.model] if waiter.want.model is not None else None
        lease = Lease(card.config, model, waiter.demand.alias if model is not None else None)
        self._state.leases[lease.id] = lease
        lease.add(waiter)
        if model is None:
            waiter.loan.append(lease)
        return lease

    def _refuse_hopeless(self, now: float) -> None:
        """A queued request that no card can serve any more is answered now, not at its bound."""
        gate = admission.Gate(False, False, self._state.usable, self._state.backoff.active(now), 0, 1, 1.0)
        for waiter in list(self._state.queue):
            refused = admission.refusal(gate, waiter.want, at_once=True)
            if refused is not None:
                self._state.queue.remove(waiter)
                waiter.cancel_timer()
                waiter.refuse(refused)

    def _rearm(self, now: float) -> None:
        """Look again when a back-off ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        until = self._state.backoff.next_end(now) if self._state.queue else None
        if until is not None:
            self._timer = asyncio.get_running_loop().call_later(until - now + 0.001, self.dispatch)

"""Who gets which card next: a pure function of a snapshot. No clock, no I/O; the caller acts on the answer before anything else runs.

Rules (DESIGN.md 4.2, 4.3): work-conserving, smallest fitting card first, first in first out per model; a request joins a running worker only
while no other model's waiter that fits that card has waited longer; an idle worker of another model gives way when nothing else fits.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


class Room(enum.Enum):
    """What the scheduler may do with a card."""

    FREE = "free"  # mining: a worker can start
    LEAVING = "leaving"  # unloading, nobody next in line
    WORKER = "worker"  # a worker loads or runs
    BUSY = "busy"  # anything else


@dataclass(frozen=True, slots=True)
class CardView:
    slot: str
    memory_mib: int
    labels: frozenset[str] = frozenset()
    room: Room = Room.FREE
    model: str | None = None
    shares: int = 0
    accepting: bool = False  # the worker may take another request
    idle: bool = False  # the worker is ready and serves nobody


@dataclass(frozen=True, slots=True)
class Want:
    """One waiter. `model` None is a borrower of `cards` whole cards."""

    id: int
    model: str | None
    memory_mib: int
    labels: frozenset[str] = frozenset()
    parallel: int = 1
    cards: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a worker (or a loan) for this waiter on these cards; each is free, leaving, or has an idle worker, which gives way."""

    waiter: int
    slots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    waiter: int
    slot: str


Action = Start | Join
Backing = Collection[tuple[str, str]]  # (model, slot) pairs that back off now


def fits(card: CardView, want: Want) -> bool:
    """The card is large enough and has the labels, whatever it does now."""
    return want.memory_mib <= card.memory_mib and want.labels <= card.labels


def may_use(card: CardView, want: Want, backing: Backing) -> bool:
    return fits(card, want) and (want.model, card.slot) not in backing


def plan(cards: Sequence[CardView], waiters: Sequence[Want], backing: Backing = ()) -> list[Action]:
    """What to do now. `waiters` are in order of arrival; every card and every waiter is used at most once, a joined worker up to its slots."""
    view: dict[str, CardView] = {card.slot: card for card in cards}
    actions: list[Action] = []
    blocked: set[str | None] = set()  # first in, first out: a model whose head waits makes the rest of its queue wait
    passed: list[Want] = []  # older waiters that stay waiting
    for want in waiters:
        if want.model in blocked:
            passed.append(want)
            continue
        action = _place(view, want, passed, backing)
        if action is None:
            blocked.add(want.model)
            passed.append(want)
            if want.cards > 1:
                _reserve(view, want)
            continue
        actions.append(action)
        _apply(view, want, action)
    return actions


def _place(view: Mapping[str, CardView], want: Want, passed: Sequence[Want], backing: Backing) -> Action | None:
    if want.model is not None:
        for card in view.values():
            if joinable(card, want) and not any(o.model != want.model and may_use(card, o, backing) for o in passed):
                return Join(want.id, card.slot)
    usable = sorted((c for c in view.values() if may_use(c, want, backing)), key=lambda c: c.memory_mib)  # stable: then as declared
    to_have = [c for c in usable if c.room is Room.FREE] + [c for c in usable if c.room is Room.LEAVING]
    to_have += [c for c in usable if c.room is Room.WORKER and c.idle]
    if len(to_have) < want.cards:
        return None
    if want.model is not None and to_have[0].room is Room.WORKER and to_have[0].model == want.model:
        return Join(want.id, to_have[0].slot)  # its own worker need not end and load again
    return Start(want.id, tuple(c.slot for c in to_have[: want.cards]))


def joinable(card: CardView, want: Want) -> bool:
    """Whether the card's worker serves this model and has a free slot."""
    return card.room is Room.WORKER and card.model == want.model and card.accepting and card.shares < want.parallel and fits(card, want)


def _apply(view: dict[str, CardView], want: Want, action: Action) -> None:
    if isinstance(action, Join):
        card = view[action.slot]
        view[action.slot] = _with(card, room=Room.WORKER, model=card.model, shares=card.shares + 1, accepting=True)
        return
    for slot in action.slots:
        # A worker that starts now can be shared at once, up to its model's slots.
        view[slot] = _with(view[slot], room=Room.WORKER, model=want.model, shares=1, accepting=want.model is not None)


def _reserve(view: dict[str, CardView], want: Want) -> None:
    """A borrower of several cards keeps the free and idle ones it waits beside, or smaller requests would starve it."""
    for slot, card in view.items():
        if fits(card, want) and (card.idle or card.room in (Room.FREE, Room.LEAVING)):
            view[slot] = _with(card, room=Room.BUSY, model=None, shares=0, accepting=False)


def _with(card: CardView, *, room: Room, model: str | None, shares: int, accepting: bool) -> CardView:
    return CardView(card.slot, card.memory_mib, card.labels, room, model, shares, accepting, False)

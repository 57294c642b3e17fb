"""What the pool shows of itself: `/status` and `/leases` of the admin socket, `/ready` and `/capacity` of the data plane. Nothing here changes anything."""

from __future__ import annotations

import time
from typing import Any

from lease_pool import deadlines, scheduling
from lease_pool.card import Card
from lease_pool.journal import utc
from lease_pool.leases import Lease
from lease_pool.line import want_of
from lease_pool.state import State
from lease_pool.types import CardState


def ready(state: State) -> dict[str, Any]:
    return {"ready": bool(state.usable) and not state.draining, "draining": state.draining, "rebooting": state.rebooting}


def capacity(state: State) -> dict[str, Any]:
    backing = state.backoff.active(time.monotonic())
    views = state.usable
    models = {}
    for name, model in state.config.models.items():
        want = want_of(0, model)
        fitting = [view for view in views if scheduling.fits(view, want)]
        able = [view for view in fitting if scheduling.may_use(view, want, backing)]
        free = sum(view.room in (scheduling.Room.FREE, scheduling.Room.LEAVING) or view.idle for view in able)
        models[name] = {
            "aliases": list(model.aliases),
            "free_cards": 0 if state.draining else free,
            "waiting": sum(waiter.want.model == name for waiter in state.queue),
            "load_s_p50": deadlines.median(state.loads.get(name, ())),
            "failing": bool(fitting) and not able,
        }
    return {"draining": state.draining, "queue": len(state.queue), "models": models}


def status(state: State) -> dict[str, Any]:
    return {
        "draining": state.draining,
        "drain_reason": state.holds.drain_reason,
        "rebooting": state.rebooting,
        "queue": len(state.queue),
        "cards": [_card(card) for card in state.cards.values()],
        "models": [{"name": m.name, "aliases": list(m.aliases), "endpoints": list(m.endpoints)} for m in state.config.models.values()],
    }


def leases(state: State) -> list[dict[str, Any]]:
    return [_lease(lease) | {"card": lease.card.uuid, "slot": lease.card.slot} for lease in state.leases.values()]


def _card(card: Card) -> dict[str, Any]:
    foreign = {"id": None, "alias": None, "model": None, "worker_pid": None, "since": None, "requests": 0}
    lease: dict[str, Any] | None = foreign if card.foreign and card.state is CardState.SERVING else None
    if card.lease is not None and not card.lease.unloading:
        lease = _lease(card.lease)
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
        "idle": _idle(card),
    }


def _idle(card: Card) -> dict[str, Any]:
    """The idle workload as last seen; only a card that mines has one that runs."""
    if card.state is CardState.MINING:
        return {"active": card.idle.active, "alive": card.idle.alive}
    return {"active": False, "alive": None if card.idle.alive is None else False}


def _lease(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.id,
        "alias": lease.alias,
        "model": lease.model.name if lease.model is not None else None,
        "worker_pid": lease.worker_pid,
        "since": utc(lease.since),
        "requests": lease.requests,
    }

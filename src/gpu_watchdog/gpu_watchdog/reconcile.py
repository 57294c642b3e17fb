"""Keeping processes in order while the pool's unit is not active: pure, like the decision to reboot.

The occupant lock excludes and systemd orders (DESIGN.md section 3); this only stops a worker that no pool can own, removes what its lease
left behind, and brings an idle workload back. It does nothing while the pool runs: there is one reconciler at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_watchdog.actions import Action, Alert, Note, RemoveSpec, RestartUnit, StartUnit, StopUnit
from gpu_watchdog.decide import Decision
from gpu_watchdog.observation import PRESENT, Card, Observation, Probe, Sight, Slot
from gpu_watchdog.state import Idle, State

_RUNNING = frozenset({"active", "reloading", "refreshing"})
_OVER = frozenset({"inactive", "failed"})


@dataclass(frozen=True)
class Upkeep:
    """Bounds in seconds, and how the units of a slot are called; an empty `idle_unit` means that no idle workload is ours to start."""

    slots: tuple[tuple[str, str], ...]  # (slot, UUID)
    worker_unit: str = "gpu-worker@{slot}.service"
    idle_unit: str = "gpu-miner@{slot}.service"
    grace_s: float = 15
    act_s: float = 60
    hash_s: float = 300


def reconcile(upkeep: Upkeep, state: State, seen: Observation) -> Decision:
    """One step, after `decide` has moved the clock. Repeats what did not work every `act_s`, restarts a silent miner once."""
    if seen.pool_unit not in _OVER or seen.slots is None or seen.maintenance is not None:
        return Decision(replace(state, pool_down_since=None, idles=()), ())
    if state.pool_down_since is None:
        return Decision(replace(state, pool_down_since=state.elapsed_s), ())
    if state.elapsed_s - state.pool_down_since < upkeep.grace_s:
        return Decision(state, ())
    actions: list[Action] = []
    idles = []
    for slot, uuid in upkeep.slots:
        idle, todo = _slot(upkeep, state.idle(slot), state.elapsed_s, seen.slots.get(slot, Slot()), slot=slot, there=_there(seen, uuid))
        idles.append(idle)
        actions.extend(todo)
    return Decision(replace(state, idles=tuple(idles)), tuple(actions))


def _there(seen: Observation, uuid: str) -> bool:
    return seen.probe is Probe.OK and seen.cards.get(uuid, Sight(Card.UNKNOWN)).card in PRESENT


def _slot(upkeep: Upkeep, idle: Idle, at: float, found: Slot, *, slot: str, there: bool) -> tuple[Idle, list[Action]]:
    waits = idle.acted_at is not None and at - idle.acted_at < upkeep.act_s
    acted = replace(idle, acted_at=at)
    if found.worker not in _OVER:
        if waits or found.worker == "deactivating":
            return idle, []
        unit = upkeep.worker_unit.format(slot=slot)
        return acted, [Note(f"{slot}: {unit} runs and no pool is there to own it"), StopUnit(unit)]
    actions: list[Action] = []
    if found.spec_left:
        actions += [Note(f"{slot}: a lease was left behind and its worker is gone"), RemoveSpec(slot)]
    unit = upkeep.idle_unit.format(slot=slot)
    if not unit or found.held or found.idle == "none":
        return replace(idle, silent_since=None), actions
    if found.idle in _OVER:
        if not there or waits:
            return idle, actions
        return acted, [*actions, Note(f"{slot}: the card is idle and {unit} is {found.idle}"), StartUnit(unit)]
    if found.idle not in _RUNNING or found.hashing is not False:
        works = replace(idle, silent_since=None, restarted=False, reported=False)
        return (works if found.hashing is True else replace(idle, silent_since=None)), actions
    silent_since = at if idle.silent_since is None else idle.silent_since
    idle = replace(idle, silent_since=silent_since)
    if at - silent_since < upkeep.hash_s or idle.reported:
        return idle, actions
    if not idle.restarted:
        text = f"{slot}: {unit} runs and has not worked for {upkeep.hash_s:.0f} s, restarted once"
        return replace(idle, restarted=True, silent_since=at, acted_at=at), [*actions, Note(text), RestartUnit(unit)]
    text = f"{slot}: {unit} runs and does not work, a restart did not help"
    return replace(idle, reported=True), [*actions, Alert("miner_not_hashing", text)]

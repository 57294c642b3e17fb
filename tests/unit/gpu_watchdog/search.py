"""Breadth-first search over every distinct state that the decision can reach, under a whole alphabet of observations and time steps.

Times are compared with bounds only, so two states whose ages differ beyond every bound decide alike: `canonical` clamps each age to the
bound that looks at it, and the search ends when no new state turns up. The monitor keeps its own account of what happened (`Ghost`), so
that a decision that fools itself is caught. A kill before the state is saved is a step that did not happen, which is the longer time steps
of the alphabet; a kill after it is a step whose actions did not happen: after each order to reboot the search goes on both in the same and
in another boot.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_watchdog.actions import Reboot
from gpu_watchdog.decide import Decision, Policy, acknowledge, decide
from gpu_watchdog.observation import Card, Observation, Peer, Pool, Probe, Sight
from gpu_watchdog.state import Now, Phase, State

CARD = "GPU-1"
OTHER = "GPU-2"
POLICY = Policy(
    host="m",
    cards=(("c0", CARD),),
    interval_s=0.5,
    misses=2,
    misses_with_signal=1,
    min_uptime_s=5,  # longer than the whole ladder at one second a step, so that ignoring it shows
    cooldown_s=7,  # longer than reboot, verification and the ladder
    window_s=9,
    max_reboots=2,
    drain_s=2,
    retry_s=2,
    reboot_s=2,
    verify_s=2,
    clock_jump_s=0.5,
    clock_settle_s=2,
)
SMALL = replace(POLICY, interval_s=1, min_uptime_s=2, cooldown_s=4, window_s=7)
"""Short ages: fewer states, for a search with more letters."""
_EPOCH = 1000.0


class Violation(AssertionError):
    """An invariant does not hold; the message has the shortest trace that breaks it."""


@dataclass(frozen=True)
class Letter:
    """One step of the world: time passes, the host may have rebooted, the clock may have jumped, and this is seen."""

    name: str
    seen: Observation
    dt: float = 1
    new_boot: bool = False
    jump: float = 0
    ack: bool = False


@dataclass(frozen=True)
class Ghost:
    """The monitor's own account, on true time; ages clamped as in `canonical`."""

    uptime: float = 0
    since_reboot: float | None = None
    since_jump: float | None = None
    unverified: bool = False
    in_a_row: tuple[int, ...] = (0,)
    signals: frozenset[str] = frozenset()


def _sights(kinds: tuple[str, ...], uuids: tuple[str, ...]) -> dict[str, Any]:
    named = {"ok": Card.OK, "gone": Card.VANISHED, "gone+kernel": Card.FALLEN_OFF_BUS, "error": Card.ERROR, "replaced": Card.REPLACED}
    cards = {uuid: Sight(named[kind]) for uuid, kind in zip(uuids, kinds, strict=True)}
    return {"cards": cards, "signals": frozenset(uuid for uuid, kind in zip(uuids, kinds, strict=True) if kind.endswith("kernel"))}


ALL_CLEAR: dict[str, Any] = {"leases": 0, "packages_busy": False, "maintenance": None, "intent_announced": True, "peers": {}}
DRAINED = Pool(True, "gpu-watchdog", {})
SURROUNDINGS: dict[str, dict[str, Any]] = {
    "all clear": {},
    "pool drained": {"pool": DRAINED},
    "pool not drained": {"pool": Pool(False, "", {})},
    "a lease": {"leases": 1, "pool": DRAINED},
    "leases unknown": {"leases": None},
    "packages": {"packages_busy": True},
    "packages unknown": {"packages_busy": None},
    "maintenance": {"maintenance": "rollout"},
    "not announced": {"intent_announced": False},
    "fleet unknown": {"peers": None},
    "one rebooting": {"peers": {"z": Peer.REBOOTING}},
    "one down": {"peers": {"z": Peer.DOWN}},
    "a lower name intends": {"peers": {"a": Peer.INTENDING}},
    "a higher name intends": {"peers": {"z": Peer.INTENDING, "b": Peer.READY}},
    "the reboot failed": {"reboot_error": "no"},
}


def alphabet(
    uuids: tuple[str, ...] = (CARD,),
    kinds: tuple[str, ...] = ("ok", "gone", "gone+kernel", "error", "replaced"),
    surroundings: tuple[str, ...] = tuple(SURROUNDINGS),
    steps: tuple[float, ...] = (1, 2, 5),
    jumps: tuple[float, ...] = (100.0, -100.0),
) -> list[Letter]:
    """Everything seen × everything around × every step of time, in the same and in another boot, with and without a jump; and an ack."""
    sights: dict[str, dict[str, Any]] = {
        "+".join(combined): _sights(combined, uuids) for combined in itertools.product(kinds, repeat=len(uuids))
    }
    # Cards beside a probe that failed: even then nothing may be believed.
    sights |= {
        f"probe {probe}": {"probe": probe, **_sights(("gone",) * len(uuids), uuids)} for probe in (Probe.HUNG, Probe.DRIVER_MISMATCH)
    }
    letters = []
    for (card, sight), around, dt in itertools.product(sights.items(), surroundings, steps):
        seen = Observation(**{"probe": Probe.OK, **ALL_CLEAR, **SURROUNDINGS[around], **sight})
        for new_boot in (False, True):
            letters.append(Letter(f"{card}, {around}, {dt} s{', another boot' if new_boot else ''}", seen, dt, new_boot))
        if around in {"all clear", "a lease"}:
            letters += [Letter(f"{card}, {around}, {dt} s, clock {jump:+g} s", seen, dt, False, jump) for jump in jumps]
    letters.append(Letter("ack", Observation(Probe.OK), ack=True))
    return letters


def canonical(policy: Policy, state: State) -> State:
    """The representative of all states that decide alike. Notices only say what was told already; the cursors only what was read."""
    at = state.elapsed_s

    def aged(then: float | None, bound: float) -> float | None:
        """None where the age is past its bound and the bound only holds back until then."""
        return None if then is None or at - then >= bound else _EPOCH - (at - then)

    longest = max(policy.drain_s, policy.reboot_s, policy.verify_s)
    settled = 2 * policy.interval_s
    return replace(
        state,
        boot_id="b",
        elapsed_s=_EPOCH,
        boot_s=min(state.boot_s, policy.min_uptime_s),
        wall=min(state.boot_s, policy.min_uptime_s),
        since=_EPOCH - min(at - state.since, longest),
        jump_at=aged(state.jump_at, policy.clock_settle_s),
        last_reboot=aged(state.last_reboot, policy.cooldown_s),
        reboots=tuple(kept for kept in (aged(then, policy.window_s) for then in state.reboots) if kept is not None),
        intent_since=None if state.intent_since is None else _EPOCH - min(at - state.intent_since, settled),
        retry_at=None if state.retry_at is None or state.retry_at <= at else _EPOCH + (state.retry_at - at),
        locked_reason="",
        notices=(),
        tracks=tuple(replace(track, pci=None, index=None) for track in state.tracks),
        kernel_cursor="",
        kernel_tail="",
    )


def step(policy: Policy, state: State, letter: Letter, decider: Callable[..., Any] = decide) -> Any:
    """One decision from a canonical state."""
    boot_s = letter.dt if letter.new_boot else state.boot_s + letter.dt
    wall = state.wall + letter.dt + letter.jump
    return decider(policy, state, letter.seen, Now(wall, boot_s), "c" if letter.new_boot else "b")


def _follow(policy: Policy, ghost: Ghost, letter: Letter) -> Ghost:
    def older(age: float | None, bound: float) -> float | None:
        return None if age is None or age + letter.dt >= bound else age + letter.dt

    jumped = abs(letter.jump) > policy.clock_jump_s and not letter.new_boot
    signals = frozenset() if letter.new_boot else ghost.signals
    rows = []
    for (_slot, uuid), row in zip(policy.cards, ghost.in_a_row, strict=True):
        sight = letter.seen.cards.get(uuid)
        gone = letter.seen.probe is Probe.OK and sight is not None and sight.card in {Card.VANISHED, Card.LOST, Card.FALLEN_OFF_BUS}
        rows.append(min((0 if letter.new_boot else row) + 1, policy.misses) if gone else 0)
    return replace(
        ghost,
        uptime=min(letter.dt if letter.new_boot else ghost.uptime + letter.dt, policy.min_uptime_s),
        since_reboot=older(ghost.since_reboot, policy.cooldown_s),
        since_jump=None if letter.new_boot else 0 if jumped else older(ghost.since_jump, policy.clock_settle_s),
        in_a_row=tuple(rows),
        signals=signals | letter.seen.signals,
    )


def faults_of_a_reboot(policy: Policy, ghost: Ghost, seen: Observation) -> list[str]:
    """Everything that speaks against a reboot ordered on this observation, by the monitor's own account."""
    away = [name for name, peer in (seen.peers or {}).items() if peer in {Peer.REBOOTING, Peer.DOWN}]
    first = [name for name, peer in (seen.peers or {}).items() if peer is Peer.INTENDING and name < policy.host]
    enough = [
        row >= (policy.misses_with_signal if uuid in ghost.signals else policy.misses)
        for (_slot, uuid), row in zip(policy.cards, ghost.in_a_row, strict=True)
    ]
    unclear = [sight for sight in seen.cards.values() if sight.card in {Card.ERROR, Card.REPLACED, Card.UNKNOWN, Card.RESET_REQUIRED}]
    checks = {
        "a second reboot without a verified recovery or an ack": ghost.unverified,
        "inside the cooldown": ghost.since_reboot is not None,
        "under the minimum uptime": ghost.uptime < policy.min_uptime_s,
        "after a clock jump": ghost.since_jump is not None,
        "on an error observation": seen.probe is not Probe.OK or bool(unclear),
        "in maintenance": seen.maintenance is not None,
        "with a lease, or without knowing": seen.leases != 0,
        "while packages are installed, or without knowing": seen.packages_busy is not False,
        "with a pool that does not drain": seen.pool is not None and not seen.pool.draining,
        "without having announced it": not seen.intent_announced,
        "without having asked the fleet": seen.peers is None,
        "over the fleet's cap": len(away) + len(first) >= policy.max_down,
        "without enough misses in a row": not any(enough),
        "in a dry run": policy.dry_run,
    }
    return [name for name, broken in checks.items() if broken]


@dataclass
class Explored:
    states: int = 0
    nodes: int = 0
    decisions: int = 0
    reboots: int = 0


def _breaks(policy: Policy, state: State, ghost: Ghost, letter: Letter, decision: Decision) -> list[str]:
    """What is wrong with one decision; `ghost` already knows what this letter brought."""
    after, actions = decision
    orders = [action for action in actions if isinstance(action, Reboot)]
    found = []
    if orders:
        found = [f"a reboot {fault}" for fault in faults_of_a_reboot(policy, ghost, letter.seen)]
        if len(orders) > 1 or after.phase is not Phase.REBOOTING or actions[-1] is not orders[0]:
            found.append("a reboot that the state does not say, or that is not the last thing done")
    elif after.phase is Phase.REBOOTING and state.phase is not Phase.REBOOTING:
        found.append("the state says that a reboot was ordered, and none was")
    if state.phase is Phase.LOCKED_OUT and after.phase is not Phase.LOCKED_OUT:
        found.append("left the lock-out without an ack")
    if _verified(state, letter, after) and not _all_there(letter.seen):
        found.append("verified with a card missing")
    return found


def _verified(state: State, letter: Letter, after: State) -> bool:
    verifying = state.phase is Phase.VERIFYING or (state.phase is Phase.REBOOTING and letter.new_boot)
    return verifying and after.phase is Phase.HEALTHY


def _all_there(seen: Observation) -> bool:
    return seen.probe is Probe.OK and all(sight.card is Card.OK for sight in seen.cards.values())


def explore(
    policy: Policy,
    letters: list[Letter],
    decider: Callable[..., Any] = decide,
    acknowledger: Callable[[State], State] = acknowledge,
    stop_at: int | None = None,
) -> Explored:
    """Search to closure. Raises Violation. `stop_at` bounds the nodes, for planted faults that grow the state without end."""
    start = (State(boot_id="b"), Ghost(in_a_row=(0,) * len(policy.cards)))
    parents: dict[Any, tuple[Any, Letter] | None] = {start: None}
    queue = deque([start])
    explored = Explored()
    while queue and (stop_at is None or len(parents) < stop_at):
        node = queue.popleft()
        state, ghost = node
        for letter in letters:
            if letter.ack and state.phase is not Phase.LOCKED_OUT:
                continue
            if letter.ack:
                after, next_ghost = acknowledger(state), replace(ghost, unverified=False)
            else:
                explored.decisions += 1
                decision = step(policy, state, letter, decider)
                after, next_ghost = decision.state, _follow(policy, ghost, letter)
                broken = _breaks(policy, state, next_ghost, letter, decision)
                if broken:
                    raise Violation(f"{broken[0]}: {_trace(parents, node, letter)}")
                if _verified(state, letter, after):
                    next_ghost = replace(next_ghost, unverified=False)
                if any(isinstance(action, Reboot) for action in decision.actions):
                    explored.reboots += 1
                    next_ghost = replace(next_ghost, unverified=True, since_reboot=0)
            following = (canonical(policy, after), next_ghost)
            if following not in parents:
                parents[following] = (node, letter)
                queue.append(following)
    explored.nodes = len(parents)
    explored.states = len({state for state, _ghost in parents})
    return explored


def _trace(parents: dict[Any, tuple[Any, Letter] | None], node: Any, letter: Letter) -> str:
    names = [letter.name]
    while (parent := parents[node]) is not None:
        node, earlier = parent
        names.append(earlier.name)
    return " | ".join(reversed(names))


def reachable(policy: Policy, letters: list[Letter]) -> Iterator[State]:
    """Every distinct canonical state."""
    start = canonical(policy, State(boot_id="b"))
    known, queue = {start}, deque([start])
    while queue:
        state = queue.popleft()
        yield state
        for letter in letters:
            if letter.ack and state.phase is not Phase.LOCKED_OUT:
                continue
            after = canonical(policy, acknowledge(state) if letter.ack else step(policy, state, letter).state)
            if after not in known:
                known.add(after)
                queue.append(after)

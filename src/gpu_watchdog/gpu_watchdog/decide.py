"""The decision: `(state, observation, now, boot_id) -> (state, actions)`, pure. Every timer and counter is in the state.

The state is on disk before the actions are done, so a kill at any instruction leaves either the old state with nothing done, or the new
state with less done than it says. Both are more cautious: a reboot that is on disk and did not happen is a failed attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpu_watchdog.actions import Action, Alert, DrainPool, Intent, Note, Quarantine, Reboot, Refuse, ResumeCard, ResumePool
from gpu_watchdog.observation import GONE, PRESENT, Card, Observation, Peer, Probe, Sight
from gpu_watchdog.state import Now, Phase, State, Track

OURS = "gpu-watchdog"
"""How this watchdog signs a drain or a quarantine, so that it never lifts one of somebody else."""


@dataclass(frozen=True)
class Policy:
    """The bounds, in seconds unless named otherwise."""

    host: str
    cards: tuple[tuple[str, str], ...]  # (slot, UUID)
    interval_s: float = 15
    misses: int = 4
    misses_with_signal: int = 2
    min_uptime_s: float = 900
    cooldown_s: float = 21600
    window_s: float = 604800
    max_reboots: int = 2
    drain_s: float = 300
    retry_s: float = 600
    reboot_s: float = 300
    verify_s: float = 600
    clock_jump_s: float = 30
    clock_settle_s: float = 300
    max_down: int = 1
    dry_run: bool = False

    def slot(self, uuid: str) -> str:
        return next((slot for slot, known in self.cards if known == uuid), "?")


class Decision(NamedTuple):
    state: State
    actions: tuple[Action, ...]


def decide(policy: Policy, state: State, seen: Observation, now: Now, boot_id: str) -> Decision:
    """One step. Call it once per observation, save the state, then do the actions in order."""
    state = _advance(policy, state, now, boot_id)
    state = _count(policy, state, seen)
    state, actions = _PHASES[state.phase](policy, state, seen)
    state, told = _tell(policy, state, seen)
    state, wishes = _wish(policy, state, seen)
    reboot = tuple(action for action in actions if isinstance(action, Reboot))
    rest = tuple(action for action in actions if not isinstance(action, Reboot))
    return Decision(state, rest + told + wishes + reboot)


def confirmed(policy: Policy, state: State) -> tuple[Track, ...]:
    """The declared cards that were gone often enough in a row."""
    return tuple(track for track in state.tracks if track.misses >= (policy.misses_with_signal if track.signal else policy.misses))


def standing_holds(policy: Policy, state: State, seen: Observation) -> tuple[Refuse, ...]:
    """Everything that forbids a reboot whatever the fleet and the leases do, and anything that could not be found out."""
    holds: list[Refuse] = []
    if policy.dry_run:
        holds.append(Refuse("dry_run", "dry_run is set: nothing is ever done"))
    if seen.probe is not Probe.OK:
        holds.append(Refuse(f"probe_{seen.probe}", f"asking the driver: {seen.probe}: {seen.probe_detail or 'no detail'}"))
    unclear = [f"{policy.slot(uuid)} {sight.card}" for uuid, sight in seen.cards.items() if sight.card not in PRESENT | GONE]
    if unclear:
        holds.append(Refuse("card_unclear", f"a card is neither there nor gone: {', '.join(unclear)}"))
    if seen.maintenance is not None:
        holds.append(Refuse("maintenance", f"maintenance: {seen.maintenance}"))
    if state.boot_s < policy.min_uptime_s:
        holds.append(Refuse("min_uptime", f"up for {state.boot_s:.0f} s, at least {policy.min_uptime_s:.0f} s are needed"))
    if state.last_reboot is not None and state.elapsed_s - state.last_reboot < policy.cooldown_s:
        left = policy.cooldown_s - (state.elapsed_s - state.last_reboot)
        holds.append(Refuse("cooldown", f"the latest reboot was not long enough ago, {left:.0f} s of running time are left"))
    if state.jump_at is not None and state.elapsed_s - state.jump_at < policy.clock_settle_s:
        holds.append(Refuse("clock_jump", f"wall and monotonic clock disagreed {state.elapsed_s - state.jump_at:.0f} s ago"))
    if seen.packages_busy is not False:
        what = "packages are being installed" if seen.packages_busy else "whether packages are being installed is unknown"
        holds.append(Refuse("packages", what))
    if seen.leases is None:
        holds.append(Refuse("leases_unknown", "whether a lease is active is unknown"))
    if state.retry_at is not None and state.elapsed_s < state.retry_at:
        left = state.retry_at - state.elapsed_s
        holds.append(Refuse("drain_backoff", f"a lease outlived its drain bound, {left:.0f} s until the next try"))
    return tuple(holds)


def fleet_hold(policy: Policy, state: State, seen: Observation) -> Refuse | None:
    """What the rest of the fleet has against this host going now; None when it may go."""
    if not seen.intent_announced or state.intent_since is None:
        return Refuse("intent_not_announced", "the intent to reboot is not announced to the fleet yet")
    if state.elapsed_s - state.intent_since < 2 * policy.interval_s:
        return Refuse("intent_settling", "the intent was announced less than two intervals ago")
    if seen.peers is None:
        return Refuse("fleet_unknown", "the other hosts were not asked yet")
    away = sorted(name for name, peer in seen.peers.items() if peer in {Peer.REBOOTING, Peer.DOWN})
    first = sorted(name for name, peer in seen.peers.items() if peer is Peer.INTENDING and name < policy.host)
    if len(away) + len(first) >= policy.max_down:
        who = [f"{name} is {seen.peers[name]}" for name in (*away, *first)]
        return Refuse("fleet_cap", f"at the fleet's cap of {policy.max_down}: {', '.join(who)}")
    return None


def acknowledge(state: State) -> State:
    """A person's word that the host may be trusted again. Cooldown stays, counters start anew."""
    tracks = tuple(replace(track, misses=0, signal=False) for track in state.tracks)
    return replace(
        state,
        phase=Phase.HEALTHY,
        since=state.elapsed_s,
        locked_reason="",
        reboots=(),
        retry_at=None,
        tracks=tracks,
        notices=(),
    )


def _advance(policy: Policy, state: State, now: Now, boot_id: str) -> State:
    if state.boot_id == boot_id:
        passed = max(0.0, now.boot_s - state.boot_s)
        jumped = abs((now.wall - state.wall) - (now.boot_s - state.boot_s)) > policy.clock_jump_s
        elapsed = state.elapsed_s + passed
        return replace(
            state,
            elapsed_s=elapsed,
            boot_s=max(state.boot_s, now.boot_s),
            wall=now.wall,
            jump_at=elapsed if jumped else state.jump_at,
        )
    phase = state.phase
    if phase is Phase.REBOOTING:
        phase = Phase.VERIFYING
    elif phase in {Phase.SUSPECT, Phase.CONFIRMED, Phase.DRAINING}:
        phase = Phase.HEALTHY
    return replace(
        state,
        phase=phase,
        since=state.since if phase is state.phase else state.elapsed_s,
        boot_id=boot_id,
        elapsed_s=state.elapsed_s + now.boot_s,
        boot_s=now.boot_s,
        wall=now.wall,
        jump_at=None,
        intent_since=None,
        retry_at=None,
        tracks=tuple(replace(track, misses=0, signal=False, index=None) for track in state.tracks),
    )


def _count(policy: Policy, state: State, seen: Observation) -> State:
    tracks = []
    for _slot, uuid in policy.cards:
        track = state.track(uuid)
        sight = seen.cards.get(uuid, Sight(Card.UNKNOWN))
        gone = seen.probe is Probe.OK and sight.card in GONE
        there = seen.probe is Probe.OK and sight.card in PRESENT
        track = replace(
            track,
            misses=min(track.misses + 1, policy.misses) if gone else 0,
            signal=track.signal or uuid in seen.signals,
            pci=sight.pci if there and sight.pci else track.pci,
            index=sight.index if there and track.index is None else track.index,
        )
        tracks.append(track)
    window = tuple(at for at in state.reboots if state.elapsed_s - at < policy.window_s)
    announced = seen.intent_announced and state.intent == "intending"
    since = state.intent_since if state.intent_since is not None else state.elapsed_s
    return replace(
        state,
        tracks=tuple(tracks),
        reboots=window,
        intent_since=since if announced else None,
        kernel_cursor=seen.kernel_cursor,
        kernel_tail=seen.kernel_tail,
    )


def _enter(state: State, phase: Phase) -> State:
    return replace(state, phase=phase, since=state.elapsed_s)


def _lock(state: State, reason: str) -> Decision:
    state = replace(_enter(state, Phase.LOCKED_OUT), locked_reason=reason)
    return Decision(state, (Alert("locked_out", f"locked out until `gpu-watchdog ack`: {reason}"),))


def _names(policy: Policy, tracks: tuple[Track, ...], seen: Observation) -> str:
    return ", ".join(
        f"{policy.slot(track.uuid)} {track.uuid} at {track.pci or 'unknown address'} "
        f"({seen.cards.get(track.uuid, Sight(Card.UNKNOWN)).card}{', kernel log agrees' if track.signal else ''})"
        for track in tracks
    )


def _watching(policy: Policy, state: State, seen: Observation) -> Decision:
    """healthy and suspect."""
    gone = confirmed(policy, state)
    if gone:
        capped = _capped(policy, state)
        if capped:
            return capped
        state = _enter(state, Phase.CONFIRMED)
        return Decision(state, (Alert("card_lost", f"confirmed gone: {_names(policy, gone, seen)}"),))
    phase = _unconfirmed_phase(state, seen)
    return Decision(state if phase is state.phase else _enter(state, phase), ())


def _unconfirmed_phase(state: State, seen: Observation) -> Phase:
    """Suspect while something is missing, or was and cannot be said to be back."""
    if any(track.misses for track in state.tracks):
        return Phase.SUSPECT
    clear = seen.probe is Probe.OK and all(sight.card in PRESENT for sight in seen.cards.values())
    return Phase.HEALTHY if clear or state.phase is Phase.HEALTHY else Phase.SUSPECT


def _capped(policy: Policy, state: State) -> Decision | None:
    if len(state.reboots) < policy.max_reboots:
        return None
    return _lock(state, f"{len(state.reboots)} reboots within {policy.window_s:.0f} s of running time, and a card is gone again")


def _off_the_ladder(state: State, seen: Observation) -> Decision:
    phase = _unconfirmed_phase(state, seen)
    text = "no card is confirmed gone any more" if phase is Phase.HEALTHY else f"cannot be told any more ({seen.probe}), counting anew"
    return Decision(_enter(state, phase), (Alert("card_back", text) if phase is Phase.HEALTHY else Note(text),))


def _confirmed(policy: Policy, state: State, seen: Observation) -> Decision:
    if not confirmed(policy, state):
        return _off_the_ladder(state, seen)
    capped = _capped(policy, state)
    if capped:
        return capped
    holds = standing_holds(policy, state, seen)
    if holds:
        return Decision(state, holds)
    hold = fleet_hold(policy, state, seen)
    if hold:
        return Decision(state, (hold,))
    return Decision(_enter(state, Phase.DRAINING), (Note("draining the pool before the reboot"),))


def _draining(policy: Policy, state: State, seen: Observation) -> Decision:
    if not confirmed(policy, state):
        return _off_the_ladder(state, seen)
    holds = standing_holds(policy, state, seen)
    hold = fleet_hold(policy, state, seen)
    if holds or hold:
        return Decision(_enter(state, Phase.CONFIRMED), holds or ((hold,) if hold else ()))
    if seen.leases:
        if state.elapsed_s - state.since < policy.drain_s:
            return Decision(state, (Refuse("draining", f"{seen.leases} active, waiting for them up to {policy.drain_s:.0f} s"),))
        state = replace(_enter(state, Phase.CONFIRMED), retry_at=state.elapsed_s + policy.retry_s)
        text = f"{seen.leases} still active after the drain bound of {policy.drain_s:.0f} s: not rebooting"
        return Decision(state, (Refuse("lease_past_bound", text), Alert("reboot_refused", text)))
    if seen.pool is not None and not seen.pool.draining:
        return Decision(state, (Refuse("not_drained", "the pool does not say that it drains yet"),))
    state = replace(
        _enter(state, Phase.REBOOTING),
        reboots=(*state.reboots, state.elapsed_s),
        last_reboot=state.elapsed_s,
        intent_since=None,
    )
    return Decision(state, (Alert("rebooting", f"rebooting for {_names(policy, confirmed(policy, state), seen)}"), Reboot()))


def _rebooting(policy: Policy, state: State, seen: Observation) -> Decision:
    if seen.reboot_error is not None:
        return _lock(state, f"the reboot failed: {seen.reboot_error}")
    if state.elapsed_s - state.since >= policy.reboot_s:
        return _lock(state, f"the reboot did not happen within {policy.reboot_s:.0f} s")
    return Decision(state, (Refuse("rebooting", "a reboot is ordered already"),))


def _verifying(policy: Policy, state: State, seen: Observation) -> Decision:
    bad = [f"{slot} {seen.cards.get(uuid, Sight(Card.UNKNOWN)).card}" for slot, uuid in policy.cards if not _there(seen, uuid)]
    if not bad:
        return Decision(_enter(state, Phase.HEALTHY), (Alert("recovered", "the reboot happened and every declared card is back"),))
    if state.elapsed_s - state.since >= policy.verify_s:
        what = ", ".join(bad) if seen.probe is Probe.OK else f"the driver: {seen.probe}"
        return _lock(state, f"the reboot did not bring back everything within {policy.verify_s:.0f} s: {what}")
    return Decision(state, (Refuse("verifying", f"waiting after the reboot for {', '.join(bad)}"),))


def _locked_out(policy: Policy, state: State, seen: Observation) -> Decision:
    del policy, seen
    return Decision(state, (Refuse("locked_out", f"locked out: {state.locked_reason}"),))


_PHASES: dict[Phase, Callable[[Policy, State, Observation], Decision]] = {
    Phase.HEALTHY: _watching,
    Phase.SUSPECT: _watching,
    Phase.CONFIRMED: _confirmed,
    Phase.DRAINING: _draining,
    Phase.REBOOTING: _rebooting,
    Phase.VERIFYING: _verifying,
    Phase.LOCKED_OUT: _locked_out,
}


def _there(seen: Observation, uuid: str) -> bool:
    return seen.probe is Probe.OK and seen.cards.get(uuid, Sight(Card.UNKNOWN)).card in PRESENT


def _tell(policy: Policy, state: State, seen: Observation) -> Decision:
    """Tell a person once about what a reboot of ours cannot cure, and again only after it was gone."""
    current: dict[str, str] = {}
    if seen.probe is Probe.DRIVER_MISMATCH:
        current["planned_reboot_needed"] = "driver and library differ: plan a reboot of this host"
    elif seen.probe is not Probe.OK:
        current[f"probe_{seen.probe}"] = f"the driver cannot be asked: {seen.probe}: {seen.probe_detail}"
    for slot, uuid in policy.cards:
        sight = seen.cards.get(uuid, Sight(Card.UNKNOWN))
        if seen.probe is Probe.OK and sight.card not in PRESENT | GONE:
            current[f"{sight.card}:{slot}"] = f"{slot} {uuid}: {sight.card}: {sight.detail}"
    alerts = tuple(Alert(key.partition(":")[0], text) for key, text in current.items() if key not in state.notices)
    # Idle-workload notices belong to the reconciler; a probe that gave no answer says nothing about what a card's notice was about.
    kept = tuple(key for key in state.notices if key in current or (seen.probe is not Probe.OK and ":" in key))
    notices = tuple(sorted({*kept, *current}))
    return Decision(state if notices == state.notices else replace(state, notices=notices), alerts)


def _wish(policy: Policy, state: State, seen: Observation) -> Decision:
    """Bring the pool to what the phase wants, by what the pool says now: repeated until it is so, and safe after any kill."""
    actions: list[Action] = []
    on_the_ladder = state.phase in {Phase.CONFIRMED, Phase.DRAINING}
    intent = None
    if state.phase is Phase.DRAINING or (state.phase is Phase.CONFIRMED and not standing_holds(policy, state, seen)):
        intent = "intending"
    elif state.phase in {Phase.REBOOTING, Phase.VERIFYING}:
        intent = "rebooting"
    if intent or state.intent:
        actions.append(Intent(intent))
    if intent != state.intent or (intent != "intending" and state.intent_since is not None):
        state = replace(state, intent=intent, intent_since=state.intent_since if intent == "intending" else None)
    if seen.pool is None or policy.dry_run:
        return Decision(state, tuple(actions))
    if state.phase in {Phase.DRAINING, Phase.REBOOTING}:
        if not seen.pool.draining:
            actions.append(DrainPool())
    elif seen.pool.draining and seen.pool.drain_reason == OURS:
        actions.append(ResumePool())
    gone = {track.uuid for track in confirmed(policy, state)}
    for _slot, uuid in policy.cards:
        card = seen.pool.cards.get(uuid)
        if card is None:
            continue
        if uuid in gone and on_the_ladder and card.state not in {"quarantined", "missing"}:
            actions.append(Quarantine(uuid, f"{OURS}: {seen.cards[uuid].card}"))
        elif state.phase is Phase.HEALTHY and _there(seen, uuid) and card.state == "quarantined" and card.reason.startswith(OURS):
            actions.append(ResumeCard(uuid))
    return Decision(state, tuple(actions))

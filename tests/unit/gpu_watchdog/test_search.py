from __future__ import annotations

import itertools
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from gpu_watchdog.actions import Reboot
from gpu_watchdog.decide import Decision, Policy, decide
from gpu_watchdog.state import Now

from gpu_watchdog import decide as decide_module
from tests.unit.gpu_watchdog.search import CARD, OTHER, POLICY, SMALL, Explored, Violation, alphabet, explore, reachable, step

USUAL = ("all clear", "pool not drained", "a lease", "packages", "maintenance", "not announced", "one down", "a lower name intends")
KINDS = ("ok", "gone", "gone+kernel", "error")
TWO_CARDS = replace(SMALL, cards=(("c0", CARD), ("c1", OTHER)))


def _orders(decision: Decision) -> bool:
    return any(isinstance(action, Reboot) for action in decision.actions)


def _report(capsys: pytest.CaptureFixture[str], what: str, explored: Explored) -> None:
    with capsys.disabled():
        print(
            f"\nwatchdog, {what}: {explored.states} distinct states ({explored.nodes} with the monitor's account), "
            f"{explored.decisions} decisions, {explored.reboots} of them a reboot: no invariant broken",
            file=sys.stderr,
        )


def test_no_trace_over_the_usual_alphabet_breaks_an_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    explored = explore(SMALL, alphabet(kinds=KINDS, surroundings=USUAL, steps=(1, 5)))
    assert explored.reboots > 0, "a watchdog that never reboots proves nothing"
    _report(capsys, "usual alphabet", explored)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_trace_over_the_whole_alphabet_breaks_an_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    explored = explore(POLICY, alphabet())
    assert explored.reboots > 0
    _report(capsys, "whole alphabet", explored)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_trace_of_two_cards_breaks_an_invariant(capsys: pytest.CaptureFixture[str]) -> None:
    letters = alphabet((CARD, OTHER), kinds=("ok", "gone", "error"), surroundings=("all clear", "a lease", "one down"), steps=(1, 5))
    explored = explore(TWO_CARDS, letters)
    assert explored.reboots > 0
    _report(capsys, "two cards", explored)


@pytest.mark.parametrize("changed", [{"max_reboots": 1}, {"misses": 1}, {"max_down": 2}])
def test_no_trace_under_other_bounds_breaks_an_invariant(changed: dict[str, Any]) -> None:
    assert explore(replace(SMALL, **changed), alphabet(kinds=("ok", "gone"), surroundings=("all clear", "one down"), steps=(1, 5))).reboots


def test_a_dry_run_never_reboots() -> None:
    assert explore(replace(POLICY, dry_run=True), alphabet(kinds=("ok", "gone"), surroundings=("all clear",), steps=(1, 5))).reboots == 0


@pytest.fixture(scope="module")
def states() -> list[Any]:
    return list(reachable(SMALL, alphabet(kinds=("ok", "gone", "error"), surroundings=("all clear",), steps=(1,))))


def test_a_clock_jump_changes_no_count_in_any_state(states: list[Any]) -> None:
    letters = [letter for letter in alphabet(kinds=KINDS, surroundings=("all clear",), steps=(1, 5)) if not letter.ack and not letter.jump]
    for state, letter, jump in itertools.product(states, letters, (1e9, -1e9)):
        still = step(SMALL, state, letter)
        jumped = step(SMALL, state, replace(letter, jump=jump))
        for name in ("elapsed_s", "boot_s", "tracks"):
            assert getattr(still.state, name) == getattr(jumped.state, name), (name, state, letter)
        assert not _orders(jumped) or letter.new_boot
        if not _orders(still):
            assert (still.state.reboots, still.state.last_reboot) == (jumped.state.reboots, jumped.state.last_reboot)


def test_a_kill_after_the_state_is_saved_never_leads_to_a_second_order(states: list[Any]) -> None:
    """Saved and nothing done, killed, started again: the same sight a moment later, and ever after in that boot, orders no reboot."""
    letters = [letter for letter in alphabet(kinds=("gone",), surroundings=("all clear",), steps=(1,)) if not letter.new_boot]
    ordered = 0
    for state, letter in itertools.product(states, letters):
        if letter.ack:
            continue
        decision = step(SMALL, state, letter)
        if not _orders(decision):
            continue
        ordered += 1
        after = decision.state
        for _ in range(12):
            again = decide(SMALL, after, letter.seen, Now(after.wall + 1, after.boot_s + 1), after.boot_id)
            assert not _orders(again)
            after = again.state
        assert after.phase == "locked_out", "an attempt has an end"
    assert ordered


def test_a_kill_before_the_state_is_saved_decides_the_same_again(states: list[Any]) -> None:
    letters = alphabet(kinds=KINDS, surroundings=("all clear", "a lease"), steps=(1,))
    for state, letter in itertools.product(states, letters):
        if not letter.ack:
            assert step(SMALL, state, letter) == step(SMALL, state, letter)


def test_what_a_person_was_told_never_changes_what_is_decided(states: list[Any]) -> None:
    letters = [letter for letter in alphabet(kinds=KINDS, surroundings=("all clear",), steps=(1,)) if not letter.ack]
    for state, letter in itertools.product(states, letters):
        plain = step(SMALL, state, letter)
        told = step(SMALL, replace(state, notices=("probe_hung", "error:c0")), letter)
        assert replace(told.state, notices=()) == replace(plain.state, notices=())
        assert _orders(told) == _orders(plain)


@dataclass(frozen=True)
class Planted:
    """A fault: texts of the decision's source and what they are replaced by, and the smallest world in which it must show."""

    edits: dict[str, str]
    around: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("ok", "gone")
    policy: Policy = POLICY
    jumps: tuple[float, ...] = ()


def _hold(condition: str, *around: str, becomes: str = "False", **more: Any) -> Planted:
    return Planted({f"if {condition}:": f"if {becomes}:"}, around, **more)


MANY_MISSES = replace(POLICY, misses=6)
SHORT_UPTIME = replace(POLICY, min_uptime_s=1)

# Each has to be found by the search, or the search proves nothing.
PLANTED = {
    "cooldown ignored": Planted({"state.elapsed_s - state.last_reboot < policy.cooldown_s": "False"}, policy=SHORT_UPTIME),
    "cooldown forgotten by an ack": Planted(
        {"        reboots=(),\n": "        reboots=(),\n        last_reboot=None,\n"}, policy=replace(SHORT_UPTIME, cooldown_s=9)
    ),
    "minimum uptime ignored": _hold("state.boot_s < policy.min_uptime_s", kinds=("ok", "gone+kernel")),
    "minimum uptime on the wrong clock": _hold(
        "state.boot_s < policy.min_uptime_s", becomes="state.elapsed_s < policy.min_uptime_s", kinds=("ok", "gone+kernel")
    ),
    "maintenance ignored": _hold("seen.maintenance is not None", "maintenance"),
    "package installation ignored": _hold("seen.packages_busy is not False", "packages"),
    "unknown packages taken for none": _hold("seen.packages_busy is not False", "packages unknown", becomes="seen.packages_busy"),
    "unknown leases taken for none": _hold("seen.leases is None", "leases unknown"),
    "reboots over a lease": _hold("seen.leases", "a lease"),
    "reboots over a lease past its bound": _hold(
        "seen.leases", "a lease", becomes="seen.leases and state.elapsed_s - state.since < policy.drain_s"
    ),
    "a pool that does not drain ignored": _hold("seen.pool is not None and not seen.pool.draining", "pool not drained"),
    "an unclear card ignored": _hold("unclear", kinds=("ok", "gone", "error"), policy=TWO_CARDS),
    "a driver in error ignored": Planted(
        {"if seen.probe is not Probe.OK:\n        holds": "if False:\n        holds", "gone = seen.probe is Probe.OK and": "gone ="},
        policy=replace(POLICY, misses=1),
    ),
    "an error counted as a miss": Planted(
        {"seen.probe is Probe.OK and sight.card in GONE": "sight.card in GONE | {Card.ERROR}"}, kinds=("gone", "error"), policy=MANY_MISSES
    ),
    "misses not in a row": Planted({"policy.misses) if gone else 0": "policy.misses) if gone else track.misses"}, policy=MANY_MISSES),
    "kernel word kept over a reboot": Planted(
        {"misses=0, signal=False, index=None": "misses=0, index=None"}, kinds=("gone", "gone+kernel"), policy=MANY_MISSES
    ),
    "misses kept over a reboot": Planted(
        {"replace(track, misses=0, signal=False, index=None)": "replace(track, signal=False, index=None)"},
        policy=replace(MANY_MISSES, min_uptime_s=1),
    ),
    "clock jump ignored": Planted({"if state.jump_at is not None and": "if False and"}, jumps=(100.0,)),
    "clock settles at once": Planted(
        {"state.elapsed_s - state.jump_at < policy.clock_settle_s": "state.elapsed_s == state.jump_at"},
        jumps=(100.0,),
        policy=replace(POLICY, clock_settle_s=6),
    ),
    "fleet cap off by one": Planted({">= policy.max_down": "> policy.max_down"}, ("one rebooting",)),
    "lower names do not go first": Planted({"peer is Peer.INTENDING and name < policy.host": "False"}, ("a lower name intends",)),
    "unreachable hosts not counted": Planted({"{Peer.REBOOTING, Peer.DOWN}": "{Peer.REBOOTING}"}, ("one down",)),
    "fleet not asked again after draining": Planted(
        {"    hold = fleet_hold(policy, state, seen)\n    if holds or hold": "    hold = None\n    if holds or hold"}, ("one down",)
    ),
    "fleet not asked at all": _hold(
        "seen.peers is None", "fleet unknown", becomes="seen.peers is None and (seen := replace(seen, peers={})) is None"
    ),
    "intent not announced": Planted(
        {
            "not seen.intent_announced or state.intent_since is None": "state.intent_since is None",
            "announced = seen.intent_announced and": "announced =",
        },
        ("not announced",),
    ),
    "lock-out forgotten at a reboot": Planted({"if phase is Phase.REBOOTING:": "if phase in {Phase.REBOOTING, Phase.LOCKED_OUT}:"}),
    "lock-out forgotten when the card is back": Planted(
        {"    Phase.LOCKED_OUT: _locked_out,": "    Phase.LOCKED_OUT: _verifying,"},
    ),
    "verified with a card missing": Planted({"    if not bad:\n": "    if len(bad) < 2:\n"}),
    "a reboot not written down": Planted({"        _enter(state, Phase.REBOOTING),\n": "        _enter(state, Phase.DRAINING),\n"}),
    "a reboot that did not happen is tried again": Planted(
        {
            'return _lock(state, f"the reboot did not happen within {policy.reboot_s:.0f} s")': "return Decision(_enter(state, Phase.HEALTHY), ())"
        }
    ),
    "a failed reboot command is tried again": Planted(
        {'return _lock(state, f"the reboot failed: {seen.reboot_error}")': "return Decision(_enter(state, Phase.HEALTHY), ())"},
        ("the reboot failed",),
    ),
    "a failed recovery is forgiven": Planted(
        {
            'return _lock(state, f"the reboot did not bring back everything within {policy.verify_s:.0f} s: {what}")': (
                "return Decision(_enter(state, Phase.HEALTHY), ())"
            )
        },
    ),
    "dry run ignored": _hold("policy.dry_run", policy=replace(POLICY, dry_run=True)),
}


def _with_fault(edits: dict[str, str]) -> types.ModuleType:
    source = Path(decide_module.__file__).read_text()
    for old, new in edits.items():
        assert source.count(old) == 1, f"the planted fault does not fit the source: {source.count(old)} × {old!r}"
        source = source.replace(old, new)
    module = types.ModuleType("planted")
    sys.modules["planted"] = module  # dataclasses look their module up
    exec(compile(source, "planted", "exec"), module.__dict__)  # noqa: S102
    return module


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    fault = PLANTED[name]
    module = _with_fault(fault.edits)
    uuids = tuple(uuid for _slot, uuid in fault.policy.cards)
    letters = alphabet(uuids, kinds=fault.kinds, surroundings=("all clear", *fault.around), steps=(1,), jumps=fault.jumps)
    with pytest.raises(Violation):
        explore(fault.policy, letters, module.decide, module.acknowledge, stop_at=20000)

"""The ladder as stories; that nothing else can happen is test_search's part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_watchdog.actions import Alert, DrainPool, Intent, Quarantine, Reboot, Refuse, ResumeCard, ResumePool
from gpu_watchdog.config import load
from gpu_watchdog.decide import Policy, decide
from gpu_watchdog.observation import Card, Observation, Peer, Pool, PoolCard, Probe, Sight
from gpu_watchdog.simulate import BadLine, replay
from gpu_watchdog.state import Now, Phase, State
from hypothesis import given, settings
from hypothesis import strategies as st

POLICY = Policy(host="gpu-b", cards=(("c0", "GPU-1"), ("c1", "GPU-2")))


def pool(draining: bool = False, reason: str = "", **cards: PoolCard) -> Pool:
    return Pool(
        draining, reason, {"GPU-1": PoolCard("mining"), "GPU-2": PoolCard("mining"), **{k.replace("_", "-"): v for k, v in cards.items()}}
    )


def look(first: Card = Card.OK, second: Card = Card.OK, **more: Any) -> Observation:
    cards = {"GPU-1": Sight(first), "GPU-2": Sight(second)}
    return Observation(**{"probe": Probe.OK, "cards": cards, "pool": pool(), "intent_announced": True, "peers": {}, **more})


def at(phase: Phase, **more: Any) -> State:
    return State(**{"phase": phase, "boot_id": "b", "elapsed_s": 5000.0, "boot_s": 5000.0, "wall": 5000.0, "since": 5000.0, **more})


def go(state: State, seen: Observation, dt: float = 15, policy: Policy = POLICY, boot: str = "b", **clock: float) -> Any:
    now = Now(clock.get("wall", state.wall + dt), clock.get("boot_s", state.boot_s + dt))
    return decide(policy, state, seen, now, boot)


def test_the_whole_ladder_in_order() -> None:
    state, told = at(Phase.HEALTHY), []
    seen = look(Card.VANISHED)
    for _ in range(12):
        state, actions = go(state, seen)
        told += [type(action) for action in actions if not isinstance(action, Refuse)]
        if state.phase is Phase.CONFIRMED:
            seen = look(Card.VANISHED, pool=pool(GPU_1=PoolCard("quarantined", "gpu-watchdog: vanished")))
        if state.phase is Phase.DRAINING:
            seen = look(Card.VANISHED, pool=pool(True, "gpu-watchdog", GPU_1=PoolCard("quarantined", "gpu-watchdog: vanished")))
        if state.phase is Phase.REBOOTING:
            break
    order = [kind for number, kind in enumerate(told) if kind not in told[:number]]
    assert [kind.__name__ for kind in order] == ["Alert", "Intent", "Quarantine", "Note", "DrainPool", "Reboot"]
    state, actions = go(state, look(), boot="c", boot_s=100)
    assert state.phase is Phase.HEALTHY
    assert any(isinstance(action, Alert) and action.kind == "recovered" for action in actions)


@pytest.mark.parametrize("kind", [card for card in Card if card not in {Card.VANISHED, Card.LOST, Card.FALLEN_OFF_BUS}])
def test_whatever_is_not_gone_never_even_becomes_suspect(kind: Card) -> None:
    state = at(Phase.HEALTHY)
    for _ in range(50):
        state, actions = go(state, look(kind))
        assert state.phase is Phase.HEALTHY
        assert not any(isinstance(action, Reboot | DrainPool | Quarantine) for action in actions)


@pytest.mark.parametrize("probe", [probe for probe in Probe if probe is not Probe.OK])
def test_a_probe_without_an_answer_counts_nothing(probe: Probe) -> None:
    state = go(at(Phase.HEALTHY), look(Card.VANISHED)).state
    for _ in range(50):
        state, _actions = go(state, look(Card.VANISHED, probe=probe))
        assert state.track("GPU-1").misses == 0
        assert state.phase in {Phase.HEALTHY, Phase.SUSPECT}


def test_a_drain_and_a_quarantine_of_somebody_else_are_never_lifted() -> None:
    seen = look(pool=pool(True, "by an operator", GPU_1=PoolCard("quarantined", "CUDA fault")))
    assert not any(isinstance(action, ResumePool | ResumeCard) for action in go(at(Phase.HEALTHY), seen).actions)


def test_a_drain_and_a_quarantine_of_ours_are_lifted_once_the_card_is_back() -> None:
    seen = look(pool=pool(True, "gpu-watchdog", GPU_1=PoolCard("quarantined", "gpu-watchdog: vanished")))
    kinds = {type(action) for action in go(at(Phase.HEALTHY), seen).actions}
    assert {ResumePool, ResumeCard} <= kinds
    assert ResumeCard not in {type(action) for action in go(at(Phase.LOCKED_OUT), seen).actions}, "a person decides first"
    assert ResumePool in {type(action) for action in go(at(Phase.LOCKED_OUT), seen).actions}, "the other cards serve on"


def test_a_condition_is_told_once_and_again_after_it_was_gone() -> None:
    state, kinds = at(Phase.HEALTHY), []
    for seen in (
        [look(Card.REPLACED)] * 3 + [look(Card.REPLACED, probe=Probe.HUNG)] * 2 + [look(Card.REPLACED), look(), look(Card.REPLACED)]
    ):
        state, actions = go(state, seen)
        kinds += [action.kind for action in actions if isinstance(action, Alert)]
    assert kinds == ["replaced", "probe_hung", "replaced"]


def test_the_intent_is_withdrawn_when_something_else_holds_the_reboot() -> None:
    state = at(Phase.CONFIRMED, intent="intending")
    gone = replace(state, tracks=tuple(replace(state.track(uuid), misses=4 if uuid == "GPU-1" else 0) for uuid in ("GPU-1", "GPU-2")))
    decision = go(gone, look(Card.VANISHED, maintenance="rollout"))
    assert Intent(None) in decision.actions
    assert decision.state.intent is None


def test_of_two_hosts_that_intend_exactly_one_goes() -> None:
    """Both see each other intending, again and again: the lower name goes, the other waits until it is back."""
    hosts = {name: (replace(POLICY, host=name), at(Phase.HEALTHY)) for name in ("gpu-a", "gpu-b")}
    ordered: list[str] = []
    for _ in range(40):
        said = {name: state.intent for name, (_policy, state) in hosts.items()}
        for name, (policy, state) in hosts.items():
            other = "gpu-b" if name == "gpu-a" else "gpu-a"
            peer = Peer(said[other]) if said[other] else Peer.READY
            if other in ordered:
                peer = Peer.DOWN
            draining = pool(True, "gpu-watchdog") if state.phase is Phase.DRAINING else pool()
            seen = look(Card.VANISHED, pool=draining, peers={other: peer}, intent_announced=said[name] == "intending")
            after, actions = go(state, seen, policy=policy)
            hosts[name] = (policy, after)
            if any(isinstance(action, Reboot) for action in actions):
                ordered.append(name)
    assert ordered == ["gpu-a"]


def test_time_that_the_watchdog_was_not_there_counts_in_the_same_boot_and_not_over_a_reboot() -> None:
    state = at(Phase.HEALTHY, last_reboot=5000.0)
    assert go(state, look(), dt=500).state.elapsed_s == 5500
    assert go(state, look(), boot="c", boot_s=20, wall=1e9).state.elapsed_s == 5020


def test_a_reboot_by_somebody_else_starts_the_count_anew() -> None:
    state = at(Phase.DRAINING)
    state = replace(state, tracks=tuple(replace(state.track(uuid), misses=4, signal=True) for uuid in ("GPU-1", "GPU-2")))
    after = go(state, look(Card.VANISHED, Card.VANISHED), boot="c", boot_s=20).state
    assert after.phase is Phase.SUSPECT
    assert (after.track("GPU-1").misses, after.track("GPU-1").signal) == (1, False)
    assert after.last_reboot is None


cards = st.sampled_from([Card.OK, Card.VANISHED, Card.LOST, Card.ERROR, Card.REPLACED])
observations = st.builds(
    look,
    cards,
    cards,
    probe=st.sampled_from([Probe.OK, Probe.OK, Probe.OK, Probe.HUNG, Probe.DRIVER_MISMATCH]),
    leases=st.sampled_from([0, 0, 0, 1, None]),
    packages_busy=st.sampled_from([False, False, False, True, None]),
    maintenance=st.sampled_from([None, None, None, "x"]),
    pool=st.sampled_from([None, pool(True, "gpu-watchdog"), pool()]),
    peers=st.sampled_from([{}, {}, {"gpu-a": Peer.DOWN}, {"gpu-a": Peer.INTENDING}, None]),
    intent_announced=st.sampled_from([True, True, False]),
)
steps = st.lists(
    st.tuples(observations, st.sampled_from([15.0, 15.0, 60.0, 7200.0]), st.booleans(), st.sampled_from([0.0, 0.0, 0.0, 1e6])), max_size=60
)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_real_bounds_on_random_traces_never_reboot_twice_without_a_recovery(trace: list[tuple[Observation, float, bool, float]]) -> None:
    policy = replace(POLICY, misses=1, cooldown_s=7200)
    state, wall, boot_s, boot, unverified, last = State(), 0.0, 0.0, 0, False, None
    running = 0.0
    for seen, dt, again, jump in trace:
        boot += again
        boot_s = dt if again else boot_s + dt
        running, wall = running + dt, wall + dt + jump
        before = state.phase
        state, actions = decide(policy, state, seen, Now(wall, boot_s), str(boot))
        assert sum(isinstance(action, Reboot) for action in actions) <= 1
        if any(isinstance(action, Reboot) for action in actions):
            assert not unverified
            assert last is None or running - last >= policy.cooldown_s
            assert boot_s >= policy.min_uptime_s
            assert seen.leases == 0
            assert seen.packages_busy is False
            assert seen.maintenance is None
            assert seen.probe is Probe.OK
            assert jump == 0 or again
            unverified, last = True, running
        if before in {Phase.VERIFYING, Phase.REBOOTING} and state.phase is Phase.HEALTHY:
            assert all(sight.card is Card.OK for sight in seen.cards.values())
            unverified = False


def test_simulate_prints_each_decision_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "watchdog.toml"
    file.write_text('host = "gpu-a"\n[[cards]]\nslot = "c0"\nuuid = "GPU-1"\n')
    lines = [json.dumps({"cards": {"c0": "vanished"}})] * 8 + ['{"dt": 60, "boot": "b2"}', "# a comment", ""]
    text = "\n".join(replay(load(file), lines))
    assert "suspect -> confirmed" in text
    assert "alert card_lost: confirmed gone: c0 GPU-1 at unknown address (vanished)" in text
    assert text.count("REBOOT") == 1
    assert text.splitlines()[-2:] == ["    alert recovered: the reboot happened and every declared card is back", "    Intent(reboot=None)"]
    with pytest.raises(BadLine, match="line 1"):
        list(replay(load(file), ['{"cards": {"c0": "odd"}}']))

from __future__ import annotations

import itertools
from typing import Any

import pytest
from gpu_watchdog.actions import Alert, Note, RemoveSpec, RestartUnit, StartUnit, StopUnit
from gpu_watchdog.observation import Card, Observation, Probe, Sight, Slot
from gpu_watchdog.reconcile import Upkeep, reconcile
from gpu_watchdog.state import State
from hypothesis import given
from hypothesis import strategies as st

UPKEEP = Upkeep((("c0", "GPU-1"),), grace_s=15, act_s=60, hash_s=300)
WORKER, MINER = "gpu-worker@c0.service", "gpu-miner@c0.service"


def down(slot: Slot, **more: Any) -> Observation:
    return Observation(**{"probe": Probe.OK, "cards": {"GPU-1": Sight(Card.OK)}, "pool_unit": "failed", "slots": {"c0": slot}, **more})


def play(*seen: Observation, every: float = 15) -> list[Any]:
    """All actions but notes of a run of observations `every` seconds apart."""
    state, done = State(), []
    for number, observation in enumerate(seen):
        state = State(**{**vars(state), "elapsed_s": number * every})
        state, actions = reconcile(UPKEEP, state, observation)
        done += [action for action in actions if not isinstance(action, Note)]
    return done


@pytest.mark.parametrize("unit", ["active", "activating", "deactivating", "reloading", None])
def test_nothing_is_touched_unless_the_pools_unit_is_known_to_be_down(unit: str | None) -> None:
    assert play(*[down(Slot("active", "inactive", spec_left=True), pool_unit=unit)] * 9) == []


def test_nothing_is_touched_in_maintenance_or_when_systemd_does_not_answer() -> None:
    assert play(*[down(Slot("active", "inactive"), maintenance="rollout")] * 9) == []
    assert play(*[down(Slot(), slots=None)] * 9) == []


def test_a_pool_that_was_just_stopped_gets_a_grace() -> None:
    assert play(down(Slot("active", "inactive"))) == []
    assert play(down(Slot("active", "inactive")), down(Slot("active", "inactive"))) == [StopUnit(WORKER)]


def test_a_stray_worker_is_stopped_and_tried_again_only_after_a_while() -> None:
    assert play(*[down(Slot("active", "inactive"))] * 7) == [StopUnit(WORKER), StopUnit(WORKER)]


def test_a_lease_left_behind_is_removed_and_the_miner_started() -> None:
    left = down(Slot("failed", "failed", spec_left=True))
    assert play(left, left) == [RemoveSpec("c0"), StartUnit(MINER)]


def test_a_spec_beside_a_worker_that_runs_is_left_alone_until_it_is_gone() -> None:
    assert RemoveSpec("c0") not in play(*[down(Slot("activating", "inactive", spec_left=True))] * 3)


@pytest.mark.parametrize(
    "seen",
    [
        down(Slot("inactive", "inactive", held=True)),
        down(Slot("inactive", "none")),
        down(Slot("inactive", "active")),
        down(Slot("inactive", "activating")),
        down(Slot("inactive", "inactive"), cards={"GPU-1": Sight(Card.VANISHED)}),
        down(Slot("inactive", "inactive"), probe=Probe.HUNG),
    ],
)
def test_no_miner_is_started_on_a_card_that_is_held_gone_busy_or_not_to_be_seen(seen: Observation) -> None:
    assert play(*[seen] * 9) == []


def test_a_silent_miner_is_restarted_once_then_reported_once() -> None:
    done = play(*[down(Slot("inactive", "active", hashing=False))] * 100)
    assert [type(action) for action in done] == [RestartUnit, Alert]


def test_a_miner_that_hashes_again_gets_its_restart_back() -> None:
    silent, hashing = down(Slot("inactive", "active", hashing=False)), down(Slot("inactive", "active", hashing=True))
    done = play(*[silent] * 30, hashing, *[silent] * 30)
    assert [type(action) for action in done] == [RestartUnit, RestartUnit]


def test_without_an_idle_unit_only_workers_are_tended() -> None:
    upkeep = Upkeep((("c0", "GPU-1"),), idle_unit="")
    state = State(elapsed_s=100, pool_down_since=0.0)
    assert reconcile(upkeep, state, down(Slot("inactive", "none"))).actions == ()


slots = st.builds(
    Slot,
    st.sampled_from(("active", "inactive", "failed", "activating", "deactivating")),
    st.sampled_from(("active", "inactive", "failed", "activating", "none")),
    st.booleans(),
    st.booleans(),
    st.sampled_from((None, True, False)),
)


@given(st.lists(slots, min_size=3, max_size=40), st.sampled_from((1, 15, 61)))
def test_never_is_a_miner_started_beside_a_worker_and_never_twice_within_the_bound(seen: list[Slot], every: int) -> None:
    state, acted = State(), []
    for number, slot in enumerate(seen):
        state = State(**{**vars(state), "elapsed_s": float(number * every)})
        state, actions = reconcile(UPKEEP, state, down(slot))
        for action in actions:
            if isinstance(action, StartUnit | RestartUnit):
                assert slot.worker in {"inactive", "failed"}
            if isinstance(action, StartUnit):
                assert not slot.held
            if isinstance(action, StartUnit | StopUnit):
                acted.append(number * every)
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(acted))

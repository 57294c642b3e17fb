from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.admin_double import CARD_A, CARD_B, AdminDouble
from tests.support.run_module import ModuleFailed, run_module

Prepare = Callable[[AdminDouble], None]


def untouched(pool: AdminDouble) -> None:
    pass


def draining(pool: AdminDouble) -> None:
    pool.draining, pool.drain_reason = True, "rollout"


def card_drained(pool: AdminDouble) -> None:
    pool.find(CARD_A).update(state="drained", hold="drained", reason="fan")


def card_quarantined(pool: AdminDouble) -> None:
    pool.find(CARD_A).update(state="quarantined", hold="quarantined", reason="memory not freed")


def card_serving(pool: AdminDouble) -> None:
    pool.lend(CARD_A)


def card_serving_and_held(pool: AdminDouble) -> None:
    pool.lend(CARD_A)
    pool.find(CARD_A)["hold"] = "drained"


def card_missing_and_held(pool: AdminDouble) -> None:
    pool.find(CARD_A).update(state="missing", hold="drained")


# what the pool looks like, what is asked, whether it changes something, what is sent then
CASES: list[tuple[Prepare, dict[str, Any], bool, tuple[str, dict[str, Any]] | None]] = [
    (untouched, {"state": "drained", "reason": "rollout"}, True, ("/drain", {"reason": "rollout"})),
    (untouched, {"state": "drained"}, True, ("/drain", {})),
    (untouched, {"state": "active"}, False, None),
    (draining, {"state": "drained", "reason": "other"}, False, None),
    (draining, {"state": "active"}, True, ("/resume", {})),
    (untouched, {"state": "drained", "card": "c0", "reason": "fan"}, True, ("/drain", {"card": CARD_A, "reason": "fan"})),
    (untouched, {"state": "drained", "card": CARD_B}, True, ("/drain", {"card": CARD_B})),
    (untouched, {"state": "active", "card": CARD_A}, False, None),
    (card_drained, {"state": "drained", "card": CARD_A, "reason": "other"}, False, None),
    (card_drained, {"state": "active", "card": CARD_A}, True, ("/resume", {"card": CARD_A})),
    (card_quarantined, {"state": "drained", "card": CARD_A}, False, None),
    (card_quarantined, {"state": "active", "card": "c0"}, True, ("/resume", {"card": CARD_A})),
    (card_serving, {"state": "drained", "card": CARD_A}, True, ("/drain", {"card": CARD_A})),
    (card_serving, {"state": "active", "card": CARD_A}, False, None),
    (card_serving_and_held, {"state": "drained", "card": CARD_A}, False, None),
    (card_serving_and_held, {"state": "active", "card": CARD_A}, True, ("/resume", {"card": CARD_A})),
    (card_missing_and_held, {"state": "drained", "card": CARD_A}, False, None),
    (card_missing_and_held, {"state": "active", "card": CARD_A}, True, ("/resume", {"card": CARD_A})),
]
IDS = [f"{prepare.__name__}-{'-'.join(map(str, params.values()))}" for prepare, params, _, _ in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_drain_or_resume_sends_what_is_needed_and_nothing_the_second_time(pool, capsys, case) -> None:
    prepare, params, changed, post = case
    prepare(pool)
    result = run_module(capsys, "pool_drain", socket=pool.path, **params)
    assert result["changed"] is changed
    assert pool.posts == ([post] if post else [])
    assert (result["diff"]["before"] != result["diff"]["after"]) is changed
    again = run_module(capsys, "pool_drain", socket=pool.path, **params)
    assert again["changed"] is False
    assert len(pool.posts) == len([post] if post else [])
    assert run_module(capsys, "pool_drain", check=True, socket=pool.path, **params)["changed"] is False


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_check_mode_predicts_the_change_and_sends_nothing(pool, capsys, case) -> None:
    prepare, params, changed, _post = case
    prepare(pool)
    predicted = run_module(capsys, "pool_drain", check=True, socket=pool.path, **params)
    assert pool.posts == []
    done = run_module(capsys, "pool_drain", socket=pool.path, **params)
    assert (predicted["changed"], predicted["diff"], predicted["draining"]) == (changed, done["diff"], done["draining"])


def test_a_drain_waits_until_the_last_lease_is_over(pool, capsys) -> None:
    pool.lend(CARD_A)
    asked = 0

    def third_time_finished() -> None:
        nonlocal asked
        asked += 1
        if asked == 4:
            pool.finish(CARD_A)

    pool.before_status = third_time_finished
    result = run_module(capsys, "pool_drain", socket=pool.path, state="drained", wait=10)
    assert result["leases"] == []
    assert 0 < result["waited_s"] < 10


def test_a_card_that_serves_is_drained_once_its_lease_is_over(pool, capsys) -> None:
    pool.lend(CARD_A)
    pool.before_status = lambda: pool.finish(CARD_A) if pool.posts else None
    result = run_module(capsys, "pool_drain", socket=pool.path, state="drained", card="c0", wait=5)
    assert result["card"]["state"] == "drained"


def test_a_drain_also_waits_for_a_card_on_its_way_back(pool, capsys) -> None:
    pool.find(CARD_B)["state"] = "returning"
    with pytest.raises(ModuleFailed, match=rf"not finished after 0.3 s: c1 {CARD_B} is returning"):
        run_module(capsys, "pool_drain", socket=pool.path, state="drained", wait=0.3)


def test_a_drain_whose_bound_passes_fails_naming_the_lease_and_stays(pool, capsys) -> None:
    pool.lend(CARD_B)
    with pytest.raises(ModuleFailed, match=rf"drain of the pool: not finished after 0.3 s: c1 {CARD_B} has lease lease-1 of small"):
        run_module(capsys, "pool_drain", socket=pool.path, state="drained", wait=0.3)
    assert pool.draining


def test_a_resume_whose_card_does_not_come_back_fails_naming_state_and_reason(pool, capsys) -> None:
    pool.find(CARD_A).update(state="quarantined", hold="quarantined", reason="memory not freed")
    pool.before_status = lambda: pool.find(CARD_A).update(state="quarantined", reason="memory not freed")
    with pytest.raises(ModuleFailed, match=rf"resume of c0: not finished after 0.3 s: c0 {CARD_A} is quarantined .memory not freed."):
        run_module(capsys, "pool_drain", socket=pool.path, state="active", card="c0", wait=0.3)


def test_an_unknown_card_is_refused_naming_those_there_are(pool, capsys) -> None:
    with pytest.raises(ModuleFailed, match=rf"card c7 is not one of this pool's cards .c0 {CARD_A}, c1 {CARD_B}."):
        run_module(capsys, "pool_drain", socket=pool.path, state="drained", card="c7")
    assert pool.posts == []


def test_a_negative_bound_is_refused(pool, capsys) -> None:
    with pytest.raises(ModuleFailed, match=r"wait: found -1, expected 0 or more seconds"):
        run_module(capsys, "pool_drain", socket=pool.path, state="drained", wait=-1)

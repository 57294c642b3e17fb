from __future__ import annotations

from collections import Counter

import pytest
from gateway_guard.health import FIRST_S, LONGEST_S, Health
from gateway_guard.retries import Attempt, Failure, classify, failed_hosts, may_try_again
from gateway_guard.routing import Candidate, Choice, ModelCapacity, Snapshot, Standing, choose, free_cards, standing
from hypothesis import given
from hypothesis import strategies as st

NEEDS = {"small": 8, "middle": 16, "big": 32}


def snapshot(cards: list[int], queue: int = 0, draining: bool = False, failing: str = "") -> Snapshot:
    models = {alias: ModelCapacity(sum(card >= need for card in cards), failing=alias == failing) for alias, need in NEEDS.items()}
    return Snapshot(draining, queue, models)


def host(name: str, cards: list[int] | None, alias: str = "small", in_flight: tuple[str, ...] = (), **more: bool) -> Candidate:
    return Candidate(name, alias, None if cards is None else snapshot(cards), in_flight, **more)


def test_a_host_that_had_no_card_free_is_waited_for_rather_than_one_that_fails_asked() -> None:
    attempts = [Attempt("down", True, Failure.NOT_REACHED), Attempt("busy", True, Failure.NO_CARD_NOW)]
    assert failed_hosts(attempts) == {"down"}
    for other in (host("down", None), host("down", [12], backing_off=True)):
        assert pick(host("busy", []), other, refused=failed_hosts(attempts[1:])).host == "busy"
    assert pick(host("busy", []), host("free", [12]), refused=failed_hosts(attempts[1:])).host == "free"


@given(cards=st.lists(st.sampled_from([12, 24, 48]), max_size=6), in_flight=st.lists(st.sampled_from(sorted(NEEDS)), max_size=8))
def test_the_cards_left_are_those_of_a_pool_that_gives_the_smallest_fitting_one(cards: list[int], in_flight: list[str]) -> None:
    left = sorted(cards)
    for alias in in_flight:
        fitting = [card for card in left if card >= NEEDS[alias]]
        if fitting:
            left.remove(fitting[0])
    expected = {alias: sum(card >= need for card in left) for alias, need in NEEDS.items()}
    assert free_cards(snapshot(cards), in_flight) == expected


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (host("a", [12]), Standing.FREE),
        (host("a", []), Standing.BUSY),
        (host("a", [12], in_flight=("small",)), Standing.BUSY),
        (host("a", [12], alias="big"), Standing.BUSY),
        (host("a", None), Standing.UNKNOWN),
        (host("a", [12], backing_off=True), Standing.FAILING),
        (Candidate("a", "small", snapshot([12], draining=True)), Standing.FAILING),
        (Candidate("a", "small", snapshot([12], failing="small")), Standing.FAILING),
        (Candidate("a", "unheard-of", snapshot([12])), Standing.FAILING),
    ],
)
def test_a_host_has_the_standing_that_is_known_of_it(candidate: Candidate, expected: Standing) -> None:
    assert standing(candidate) == expected


def pick(*candidates: Candidate, refused: frozenset[str] = frozenset(), last: bool = False, chance: float = 0.0) -> Choice:
    return choose(candidates, refused, last, chance)


def test_a_free_card_is_asked_for_at_once_where_another_host_could_help() -> None:
    assert pick(host("a", []), host("b", [12])) == Choice("b", at_once=True)
    assert pick(host("b", [12])) == Choice("b", at_once=False)


def test_the_last_attempt_waits() -> None:
    assert pick(host("a", []), host("b", [12]), last=True) == Choice("b", at_once=False)


def test_the_card_is_taken_where_bigger_models_miss_it_least() -> None:
    assert pick(host("a", [48]), host("b", [12, 48])).host == "b"
    assert pick(host("a", [12, 12]), host("b", [48])).host == "a"


def test_of_equal_hosts_the_one_with_more_free_cards_is_taken() -> None:
    assert pick(host("a", [12]), host("b", [12, 12, 12])).host == "b"


def test_when_all_are_busy_the_shortest_wait_is_taken() -> None:
    long, short = Candidate("a", "small", snapshot([], queue=3), cards=2), Candidate("b", "small", snapshot([], queue=1), cards=2)
    assert pick(long, short) == Choice("b", at_once=False)
    many, few = Candidate("a", "small", snapshot([], queue=2), cards=8), Candidate("b", "small", snapshot([], queue=1), cards=1)
    assert pick(many, few).host == "a"


def test_a_known_queue_is_better_than_an_unknown_host_and_that_better_than_a_failing_one() -> None:
    busy, unknown, failing = host("a", []), host("b", None), host("c", [12], backing_off=True)
    assert pick(failing, unknown, busy).host == "a"
    assert pick(failing, unknown).host == "b"
    assert pick(failing).host == "c"


def test_a_host_that_failed_this_request_is_not_asked_again_while_there_is_another() -> None:
    assert pick(host("a", [12, 12]), host("b", []), refused=frozenset({"a"})).host == "b"
    assert pick(host("a", [12]), refused=frozenset({"a"})).host == "a"


@given(chance=st.floats(0, 1, exclude_max=True))
def test_chance_only_breaks_ties(chance: float) -> None:
    assert pick(host("a", [12]), host("b", [12]), chance=chance).host in ("a", "b")
    assert pick(host("a", []), host("b", [12]), chance=chance).host == "b"


def test_ties_are_shared_out() -> None:
    picks = Counter(pick(host("a", [12]), host("b", [12]), chance=number / 100).host for number in range(100))
    assert picks == {"a": 50, "b": 50}


@pytest.mark.parametrize(
    ("status", "connected", "timed_out", "at_once", "failure"),
    [
        (None, False, True, True, Failure.NOT_REACHED),
        (429, True, False, True, Failure.NO_CARD_NOW),
        (429, True, False, False, Failure.QUEUE_FULL),
        (502, True, False, False, Failure.NO_WORKER),
        (503, True, False, False, Failure.NOT_NOW),
        (504, True, False, False, Failure.TOO_LATE),
        (408, True, True, False, Failure.TOO_LATE),
        (500, True, False, False, Failure.FAULT),
        (None, True, False, False, Failure.FAULT),
        (400, True, False, True, Failure.REFUSED),
        (404, True, False, True, Failure.REFUSED),
    ],
)
def test_failures_are_told_apart(status: int | None, connected: bool, timed_out: bool, at_once: bool, failure: Failure) -> None:
    assert classify(status, connected=connected, timed_out=timed_out, at_once=at_once) == failure


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (Failure.NOT_REACHED, True),
        (Failure.NO_CARD_NOW, True),
        (Failure.NO_WORKER, True),
        (Failure.NOT_NOW, True),
        (Failure.FAULT, True),
        (Failure.QUEUE_FULL, False),  # it has waited: no hopping
        (Failure.TOO_LATE, False),  # it may have run: never twice
        (Failure.REFUSED, False),
    ],
)
def test_only_what_cannot_run_twice_is_tried_again(failure: Failure, again: bool) -> None:
    assert may_try_again([Attempt("a", at_once=True, failure=failure)]) is again


def test_a_request_has_three_attempts_in_all() -> None:
    failed = Attempt("a", at_once=True, failure=Failure.NO_CARD_NOW)
    assert may_try_again([])
    assert may_try_again([failed, failed])
    assert not may_try_again([failed, failed, failed])


def test_a_back_off_doubles_to_a_minute_and_ends_with_success() -> None:
    health, now = Health(), 100.0
    lengths = []
    for _ in range(8):
        health.failed("a", "small", now)
        start = now
        while health.is_backing_off("a", "small", now):
            now += 0.5
        lengths.append(now - start)
    assert lengths == [1, 2, 4, 8, 16, 32, 60, 60]
    assert not health.is_backing_off("a", "big", now)
    health.failed("a", "small", now)
    health.worked("a", "small")
    assert not health.is_backing_off("a", "small", now)
    health.failed("a", "small", now)
    assert not health.is_backing_off("a", "small", now + FIRST_S)


def test_failures_of_simultaneous_requests_count_once() -> None:
    health = Health()
    for _ in range(50):
        health.failed("a", "small", 100.0)
    assert not health.is_backing_off("a", "small", 100.0 + FIRST_S)


def test_a_host_that_was_well_for_long_starts_with_a_short_back_off_again() -> None:
    health = Health()
    health.failed("a", "small", 0.0)
    health.failed("a", "small", 2.0)
    health.failed("a", "small", 10 + LONGEST_S)
    assert not health.is_backing_off("a", "small", 10 + LONGEST_S + FIRST_S)


def test_an_unreachable_host_is_back_as_soon_as_its_pool_answers_a_later_question() -> None:
    health = Health()
    health.failed("a", None, 100.0)
    health.answered("a", 99.9)
    assert health.is_backing_off("a", "small", 100.1)
    health.answered("a", 100.2)
    assert not health.is_backing_off("a", "small", 100.3)

"""Who may come in, and what the others are told."""

from __future__ import annotations

import pytest
from lease_pool.admission import Gate, refusal
from lease_pool.deadlines import card_by, left, median, retry_after_s, wait_s
from lease_pool.scheduling import CardView, Want

WANT = Want(1, "m", 5)
OPEN = {
    "stopping": False,
    "draining": False,
    "usable": [CardView("c0", 10)],
    "backing": set(),
    "waiting": 0,
    "queue": 2,
    "wait_hint_s": 1.5,
}


@pytest.mark.parametrize(
    ("change", "at_once", "max_wait", "status", "code"),
    [
        ({"stopping": True}, True, None, 503, "stopping"),
        ({"draining": True}, True, None, 503, "draining"),
        ({"usable": []}, False, None, 503, "no_usable_card"),
        ({"usable": [CardView("c0", 4)]}, False, None, 503, "no_usable_card"),
        ({"backing": {("m", "c0")}}, False, None, 502, "worker_failed"),
        ({"waiting": 2}, False, None, 429, "queue_full"),
        ({}, False, 0.0, 429, "no_free_card"),
    ],
)
def test_a_refusal_has_its_status_and_a_retry_after_where_waiting_helps(
    change: dict[str, object], at_once: bool, max_wait: float | None, status: int, code: str
) -> None:
    refused = refusal(Gate(**(OPEN | change)), WANT, at_once=at_once, max_wait_s=max_wait)  # type: ignore[arg-type]
    assert refused is not None
    assert (refused.status, refused.code) == (status, code)
    assert (refused.retry_after_s is not None and refused.retry_after_s >= 1) == (status in (429, 503))


def test_a_request_that_is_granted_at_once_never_counts_as_a_waiter() -> None:
    assert refusal(Gate(**(OPEN | {"waiting": 2})), WANT, at_once=True, max_wait_s=0.0) is None  # type: ignore[arg-type]


def test_one_card_without_back_off_is_enough_to_wait_for() -> None:
    gate = OPEN | {"usable": [CardView("c0", 10), CardView("c1", 10)], "backing": {("m", "c0")}}
    assert refusal(Gate(**gate), WANT, at_once=False) is None  # type: ignore[arg-type]


def test_a_borrower_needs_as_many_usable_cards_as_it_asks_for() -> None:
    refused = refusal(Gate(**OPEN), Want(1, None, 0, cards=2), at_once=False)  # type: ignore[arg-type]
    assert refused is not None
    assert refused.status == 503


def test_deadlines() -> None:
    assert card_by(100.0, 60.0, None) == 160.0
    assert card_by(100.0, 60.0, 0.25) == 100.25
    assert card_by(100.0, 60.0, 1000.0) == 160.0
    assert left(5.0, 7.0) == 0.0
    assert [retry_after_s(s) for s in (0.0, 0.2, 1.0, 1.1, 119.5, 4000.0, float("inf"))] == [1, 1, 1, 2, 120, 120, 1]
    assert [median(s) for s in ([], [3.0], [1.0, 2.0], [9.0, 1.0, 2.0])] == [None, 3.0, 1.5, 2.0]


def test_the_estimated_wait_is_who_is_ahead_times_load_and_answer_shared_by_the_fitting_cards() -> None:
    assert wait_s(0, 30.0, 30.0, 2) == 0.0
    assert wait_s(6, 10.0, 5.0, 3) == 30.0
    assert wait_s(6, None, 5.0, 3) == 10.0
    assert wait_s(6, None, None, 3) == 0.0
    assert wait_s(2, 1.0, 1.0, 0) == 4.0

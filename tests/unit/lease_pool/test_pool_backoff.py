"""Back-off and blame as pure state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_pool.backoff import Backoff, delay_s


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (7, 32), (8, 60), (100, 60), (5000, 60)])
def test_it_begins_at_the_second_failure_and_doubles_to_a_minute(failures: int, seconds: float) -> None:
    assert delay_s(failures) == seconds


def test_a_model_backs_off_only_on_the_card_where_it_fails() -> None:
    backoff = Backoff()
    backoff.failed("m", "c0", 10.0)
    assert backoff.active(10.0) == set()
    backoff.failed("m", "c0", 20.0)
    assert backoff.active(20.5) == {("m", "c0")}
    assert backoff.next_end(20.5) == 21.0
    assert backoff.active(21.0) == set()


def test_a_success_clears_the_record() -> None:
    backoff = Backoff()
    backoff.failed("m", "c0", 0.0)
    backoff.succeeded("m", "c0")
    backoff.failed("m", "c0", 1.0)
    assert backoff.active(1.0) == set()


def test_one_model_s_failures_never_blame_a_card() -> None:
    backoff = Backoff()
    backoff.succeeded("m", "c1")
    for time in range(10):
        backoff.failed("m", "c0", float(time))
    assert backoff.to_blame() == {}


def test_two_models_that_run_elsewhere_blame_the_card_unless_one_succeeded_between() -> None:
    backoff = Backoff()
    for name in ("a", "b"):
        backoff.succeeded(name, "c1")
    backoff.failed("a", "c0", 0.0)
    backoff.succeeded("x", "c0")
    backoff.failed("b", "c0", 1.0)
    assert backoff.to_blame() == {}
    backoff.failed("a", "c0", 2.0)
    assert backoff.to_blame() == {"c0": ["b", "a"]}


def test_models_that_run_nowhere_else_are_to_blame_themselves() -> None:
    backoff = Backoff()
    backoff.failed("a", "c0", 0.0)
    backoff.failed("b", "c0", 0.0)
    assert backoff.to_blame() == {}
    backoff.succeeded("a", "c1")
    assert backoff.to_blame() == {}
    backoff.succeeded("b", "c1")
    assert set(backoff.to_blame()) == {"c0"}


def test_a_resumed_card_starts_with_a_clean_record() -> None:
    backoff = Backoff()
    for name in ("a", "b"):
        backoff.succeeded(name, "c1")
        backoff.failed(name, "c0", 0.0)
        backoff.failed(name, "c0", 0.0)
    backoff.forget_card("c0")
    assert backoff.to_blame() == {}
    assert backoff.active(0.5) == set()


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from(["c0", "c1"])), max_size=40))
def test_a_back_off_is_never_longer_than_a_minute_and_never_follows_a_success(steps: list[tuple[bool, str, str]]) -> None:
    backoff = Backoff()
    for now, (worked, model, slot) in enumerate(steps):
        if worked:
            backoff.succeeded(model, slot)
            assert (model, slot) not in backoff.active(float(now))
        else:
            backoff.failed(model, slot, float(now))
        end = backoff.next_end(float(now))
        assert end is None or end <= now + 60

from __future__ import annotations

import pytest

from tests.support.admin_double import CARD_A, CARD_B
from tests.support.run_module import ModuleFailed, run_module


@pytest.mark.parametrize("check", [False, True])
def test_status_cards_and_leases_are_read_and_nothing_is_changed(pool, capsys, check) -> None:
    pool.lend(CARD_B)
    result = run_module(capsys, "pool_info", check=check, socket=pool.path)
    assert result["changed"] is False
    assert result["status"]["cards"] == pool.cards
    assert result["cards"][CARD_A]["state"] == "mining"
    assert [lease["card"] for lease in result["leases"]] == [CARD_B]
    assert "events" not in result
    assert pool.posts == []


def test_the_journal_is_read_from_the_time_that_is_asked_for(pool, capsys) -> None:
    pool.events = [{"time": "2026-11-30T02:00:00Z", "event": "granted"}, {"time": "2026-11-30T02:00:05Z", "event": "released"}]
    assert run_module(capsys, "pool_info", socket=pool.path, events_since="0")["events"] == pool.events
    assert run_module(capsys, "pool_info", socket=pool.path, events_since="2026-11-30T02:00:05Z")["events"] == pool.events[1:]


def test_a_pool_that_is_not_running_is_said_with_its_socket(tmp_path, capsys) -> None:
    path = tmp_path / "absent.sock"
    with pytest.raises(ModuleFailed, match=rf"GET /status on {path}: the socket does not exist; the pool is not running"):
        run_module(capsys, "pool_info", socket=str(path))


def test_a_socket_without_a_listener_is_said(pool, capsys) -> None:
    pool.close()
    with pytest.raises(ModuleFailed, match=r"nothing listens on the socket"):
        run_module(capsys, "pool_info", socket=pool.path)


def test_a_pool_that_does_not_answer_costs_the_timeout_and_no_more(pool, capsys) -> None:
    pool.answer = (0, b"")
    with pytest.raises(ModuleFailed, match=r"no answer within 0.2 s"):
        run_module(capsys, "pool_info", socket=pool.path, timeout=0.2)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"<html>"), "the answer is not JSON"),
        ((200, b"[]"), "no list of cards in the answer"),
        ((500, b'{"error": {"message": "journal is broken"}}'), "expected 2xx, got 500: journal is broken"),
        ((403, b"go away"), "expected 2xx, got 403: go away"),
    ],
)
def test_an_answer_that_is_no_status_is_said(pool, capsys, answer, message) -> None:
    pool.answer = answer
    with pytest.raises(ModuleFailed, match=message):
        run_module(capsys, "pool_info", socket=pool.path)

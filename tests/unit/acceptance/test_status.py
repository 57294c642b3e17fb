"""The status screen shows every card, and names what does not answer instead of hiding it."""

from __future__ import annotations

from typing import Any

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._status import fleet_status

CARD = {
    "slot": "c0",
    "uuid": "GPU-a0",
    "memory_mib": 12288,
    "state": "mining",
    "reason": None,
    "lease": None,
    "idle": {"active": True, "alive": True},
}


def _pool(**status: Any) -> dict[str, Any]:
    return {"status": {"draining": False, "queue": 0, "cards": [CARD], **status}, "leases": []}


def test_a_healthy_host_shows_its_cards() -> None:
    shown = fleet_status({"gpu-a": {"pool": _pool(), "watchdog": {"status": {"phase": "healthy"}}}})
    assert shown["hosts"] == [{"host": "gpu-a", "pool": "in service", "queue": 0, "leases": 0, "watchdog": "healthy"}]
    assert [(r["slot"], r["state"], r["miner"], r["alias"]) for r in shown["cards"]] == [("c0", "mining", "works", "-")]


def test_a_host_that_does_not_answer_is_named() -> None:
    shown = fleet_status(
        {"gpu-a": {"pool": {"unreachable": True}}, "gpu-b": {"pool": {"msg": "no socket\ntrace"}, "watchdog": {"msg": "x"}}}
    )
    assert [r["pool"] for r in shown["hosts"]] == ["host does not answer", "no answer: no socket"]
    assert [r["watchdog"] for r in shown["hosts"]] == ["no answer", "no answer: x"]
    assert shown["cards"] == []


def test_a_drain_shows_its_reason() -> None:
    shown = fleet_status({"gpu-a": {"pool": _pool(draining=True, drain_reason="rollout")}})
    assert shown["hosts"][0]["pool"] == "draining (rollout)"


def test_a_miner_that_does_not_hash_and_a_borrowed_card_are_told_apart() -> None:
    dead = {**CARD, "idle": {"active": True, "alive": False}}
    borrowed = {
        **CARD,
        "state": "serving",
        "idle": {"active": False, "alive": None},
        "lease": {"alias": None, "since": "2026-11-30T02:00:00Z"},
    }
    rows = fleet_status({"gpu-a": {"pool": _pool(cards=[dead, borrowed])}})["cards"]
    assert [(r["miner"], r["alias"]) for r in rows] == [("does not hash", "-"), ("off", "(borrowed)")]

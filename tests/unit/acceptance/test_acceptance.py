"""The judge of acceptance: a healthy trip has no fault, and every way in which a card may not come home is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._acceptance import (
    plan_from_catalog,
    plan_trips,
    quiet_faults,
    report,
    trip_faults,
)
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._table import table
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._units import parse_units

TRIP = {"host": "gpu-a", "alias": "t4-router", "probe": "chat", "pinned": None}
ANSWER = {"status": 200, "answer": "hello", "card": "GPU-a0"}


def _snapshot(host: str) -> dict[str, Any]:
    letter = host[-1]
    cards = [
        {
            "slot": f"c{n}",
            "uuid": f"GPU-{letter}{n}",
            "state": "mining",
            "reason": None,
            "lease": None,
            "idle": {"active": True, "alive": True},
        }
        for n in range(2)
    ]
    units = {}
    for n in range(2):
        units[f"gpu-miner@c{n}.service"] = {"active": "active", "pid": 100 + n}
        units[f"gpu-worker@c{n}.service"] = {"active": "inactive", "pid": 0}
    return {"status": {"cards": cards}, "events": [], "units": units}


def _healthy() -> tuple[dict[str, Any], dict[str, Any]]:
    before = {host: _snapshot(host) for host in ("gpu-a", "gpu-b")}
    after = copy.deepcopy(before)
    after["gpu-a"]["units"]["gpu-miner@c0.service"]["pid"] = 200
    after["gpu-a"]["events"].append(
        {
            "event": "lease",
            "card": "GPU-a0",
            "slot": "c0",
            "lease": "L1",
            "outcome": "ok",
            "seconds": {"loading": 1.31, "idle_workload_off": 2.5},
        }
    )
    return before, after


def test_a_healthy_trip_has_no_fault() -> None:
    before, after = _healthy()
    assert trip_faults(TRIP, ANSWER, before, after) == []


def _set(path: list[Any], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(after: dict[str, Any]) -> None:
        target: Any = after
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set(["gpu-a", "status", "cards", 0, "lease"], {"id": "L1"}), "GPU-a0: still has lease L1"),
        (_set(["gpu-a", "status", "cards", 0, "state"], "returning"), "GPU-a0: is returning (no reason given), it was mining"),
        (_set(["gpu-a", "units", "gpu-worker@c0.service", "active"], "active"), "its worker unit is active"),
        (_set(["gpu-a", "units", "gpu-miner@c0.service", "active"], "failed"), "its miner's unit is failed"),
        (_set(["gpu-a", "units", "gpu-miner@c0.service", "pid"], 100), "its miner kept PID 100 while the card served"),
        (_set(["gpu-a", "units", "gpu-miner@c1.service", "pid"], 999), "GPU-a1: its miner was restarted (PID 101 -> 999)"),
        (_set(["gpu-b", "units", "gpu-miner@c0.service", "pid"], 999), "gpu-b: card GPU-b0: its miner was restarted"),
        (_set(["gpu-a", "status", "cards", 0, "idle"], {"active": True, "alive": False}), "GPU-a0: its miner runs and does not hash"),
        (_set(["gpu-a", "events", 0, "outcome"], "worker_failed"), "outcome worker_failed, expected ok"),
        (_set(["gpu-a", "events"], []), "exactly one lease was expected in the fleet, 0 ended"),
        (_set(["gpu-a", "events", 0, "card"], "GPU-a1"), "the answer names card GPU-a0"),
    ],
)
def test_a_card_that_is_not_home_is_named(change: Callable[[dict[str, Any]], None], words: str) -> None:
    before, after = _healthy()
    change(after)
    faults = trip_faults(TRIP, ANSWER, before, after)
    assert any(words in fault for fault in faults), faults
    assert all(fault.startswith("gpu-a t4-router (chat): ") for fault in faults)


@pytest.mark.parametrize(
    ("probe", "answer", "words"),
    [
        ("chat", {"status": 502, "error": {"message": "worker died"}}, "HTTP 502: worker died"),
        ("chat", {"msg": "connection refused"}, "HTTP no answer: connection refused"),
        ("chat", {"status": 200, "answer": "  "}, "the answer has no text"),
        ("stream", {"status": 200, "answer": "hello", "chunks": 1}, "the stream came in 1 chunk(s)"),
        ("embedding", {"status": 200, "dimensions": 0}, "the answer has no vector"),
    ],
)
def test_an_answer_that_is_none_is_named(probe: str, answer: dict[str, Any], words: str) -> None:
    before, after = _healthy()
    faults = trip_faults({**TRIP, "probe": probe}, answer, before, after)
    assert any(words in fault for fault in faults), faults


def test_a_node_alias_served_elsewhere_is_a_fault() -> None:
    before, after = _healthy()
    faults = trip_faults({**TRIP, "alias": "gpu-b/t4-router", "pinned": "gpu-b"}, ANSWER, before, after)
    assert faults == ["gpu-a gpu-b/t4-router (chat): served by gpu-a, the node alias pins gpu-b"]


def test_quiet_probes_may_not_lease_nor_interrupt() -> None:
    before, after = _healthy()
    faults = quiet_faults("model lists", before, after)
    assert "model lists: gpu-a: card GPU-a0: event lease, none was expected" in faults
    assert any("its miner was restarted (PID 100 -> 200)" in fault for fault in faults)
    assert quiet_faults("model lists", before, copy.deepcopy(before)) == []


def test_a_card_that_was_not_mining_before_is_not_expected_to() -> None:
    before, after = _healthy()
    for snapshots in (before, after):
        snapshots["gpu-b"]["status"]["cards"][1].update(state="quarantined", reason="memory never came back")
    assert trip_faults(TRIP, ANSWER, before, after) == []


def test_the_plan_asks_every_gateway_for_each_kind_and_every_alias_once() -> None:
    aliases = {"t4-router": "chat", "t3-smart": "chat", "t4-embedding": "embedding", "t3-vision": "vision", "t3-paint": "image"}
    trips = plan_trips(aliases, {"gpu-a": ["t4-router", "t3-smart"], "gpu-b": ["t4-router"]})
    for host in ("gpu-a", "gpu-b"):
        assert {t["probe"] for t in trips if t["host"] == host} >= {"chat", "stream", "embedding"}
        assert any(t["pinned"] == host and t["alias"] == f"{host}/t4-router" for t in trips)
    assert {t["alias"] for t in trips} >= {"t3-smart", "t3-vision", "t4-embedding"}
    assert "t3-paint" not in {t["alias"] for t in trips}, "there is no image probe yet"


def test_the_plan_follows_the_catalog_and_leaves_hosted_aliases_alone() -> None:
    catalog = {
        "aliases": {"t4-router": {"model": "small", "kind": "chat"}, "t1-smart": {"model": None, "kind": "chat"}},
        "placement": {"small": {"gpu-b": ["c0"]}},
        "hosts": {"gpu-a": {}, "gpu-b": {}},
    }
    trips = plan_from_catalog(catalog)
    assert {t["alias"] for t in trips} == {"t4-router", "gpu-b/t4-router"}
    assert [t["pinned"] for t in trips if t["pinned"]] == ["gpu-b"]


def test_a_report_has_a_row_for_each_trip_and_the_faults_of_all() -> None:
    before, after = _healthy()
    steps = {
        host: [
            {"what": "before", "snapshot": before[host]},
            {"trip": TRIP, "answer": ANSWER, "snapshot": after[host]},
            {"what": "model lists", "snapshot": copy.deepcopy(after[host])},
        ]
        for host in before
    }
    result = report(steps)
    assert result["faults"] == []
    assert result["rows"] == [
        {
            "gateway": "gpu-a",
            "alias": "t4-router",
            "probe": "chat",
            "answer": "hello",
            "served by": "gpu-a c0",
            "card": "GPU-a0",
            "load s": "1.31",
            "mining off s": "2.50",
            "other cards": "untouched",
        }
    ]


def test_a_table_aligns_its_columns() -> None:
    assert table([{"host": "gpu-a", "n": 1}, {"host": "b", "n": 10}]) == ["host   n", "gpu-a  1", "b      10"]
    assert table([]) == []


def test_units_are_read_from_systemctl_show() -> None:
    text = "MainPID=42\nId=gpu-miner@c0.service\nActiveState=active\n\nMainPID=0\nId=gpu-worker@c0.service\nActiveState=inactive\n"
    assert parse_units(text) == {
        "gpu-miner@c0.service": {"active": "active", "pid": 42},
        "gpu-worker@c0.service": {"active": "inactive", "pid": 0},
    }

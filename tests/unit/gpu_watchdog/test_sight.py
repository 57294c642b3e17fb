from __future__ import annotations

from typing import Any

import pytest
from gpu_watchdog.observation import GONE, PRESENT, Card, Probe
from gpu_watchdog.sight import probe_name, sights
from gpu_watchdog.state import State, Track

A, B, C = "GPU-a", "GPU-b", "GPU-c"
NOT_FOUND = {"code": 6, "text": "Not Found"}
LOST = {"code": 15, "text": "GPU is lost"}


def row(index: int, uuid: str, **more: Any) -> dict[str, Any]:
    return {"index": index, "uuid": uuid, "pci": f"00000000:0{ord(uuid[-1]) - 96}:00.0", "mig": False, "na": [], **more}


def look(
    *rows: dict[str, Any], lookups: dict[str, Any] | None = None, state: State | None = None, fallen: dict[str, str] | None = None
) -> Any:
    raw = {"rows": list(rows), "lookups": lookups or {}}
    found = sights(raw, [A, B], state or State(), fallen or {})
    return found[A].card, found[B].card


KNOWN = State(tracks=(Track(A, pci="00000000:01:00.0", index=0), Track(B, pci="00000000:02:00.0", index=1)))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(row(0, A), row(1, B)), (Card.OK, Card.OK)),
        (look(row(0, B), row(1, A), state=KNOWN), (Card.INDEX_SHIFTED, Card.INDEX_SHIFTED)),
        (look(row(0, B), lookups={A: NOT_FOUND}, state=KNOWN), (Card.VANISHED, Card.INDEX_SHIFTED)),
        (look(row(0, A), {"index": 1, **LOST}, lookups={B: LOST}), (Card.OK, Card.LOST)),
        (look({"index": 0, **LOST}, {"index": 1, **LOST}, lookups={A: LOST, B: LOST}), (Card.LOST, Card.LOST)),
        (look({"index": 0, **LOST}, lookups={A: LOST, B: NOT_FOUND}), (Card.LOST, Card.VANISHED)),
        (look(row(0, A, **LOST), row(1, B)), (Card.LOST, Card.OK)),
        (look(row(0, A), lookups={B: NOT_FOUND}, fallen={B: "Xid 79"}), (Card.OK, Card.FALLEN_OFF_BUS)),
        (look(row(0, A), row(1, B), fallen={B: "Xid 79"}), (Card.OK, Card.OK)),
        (look(row(0, A), row(1, C, pci="00000000:02:00.0"), lookups={B: NOT_FOUND}, state=KNOWN), (Card.OK, Card.REPLACED)),
        (look(row(0, A, na=["memory"]), row(1, B)), (Card.FIELDS_UNAVAILABLE, Card.OK)),
        (look(row(0, A, mig=True), row(1, B)), (Card.MIG_ENABLED, Card.OK)),
        (look(row(0, A), {"index": 1, "code": 999, "text": "Unknown Error"}, lookups={B: NOT_FOUND}), (Card.OK, Card.ERROR)),
        (look(row(0, A), {"index": 1, "code": 16, "text": "reset"}, lookups={B: NOT_FOUND}), (Card.OK, Card.RESET_REQUIRED)),
        (look(row(0, A), lookups={B: {"code": 999, "text": "Unknown Error"}}), (Card.OK, Card.ERROR)),
        (look(row(0, A), lookups={B: None}), (Card.OK, Card.ERROR)),
    ],
)
def test_each_kind_of_trouble_has_its_own_name(seen: Any, expected: tuple[Card, Card]) -> None:
    assert seen == expected


def test_a_replaced_card_is_told_with_the_new_uuid_and_its_place() -> None:
    raw = {"rows": [row(0, C, pci="00000000:01:00.0")], "lookups": {A: NOT_FOUND}}
    assert sights(raw, [A], KNOWN, {})[A].detail == "GPU-c sits at 00000000:01:00.0 now"


def test_a_mig_instance_that_is_gone_is_no_lost_hardware() -> None:
    there = sights({"rows": [row(0, A)], "lookups": {"MIG-1": None}}, ["MIG-1"], State(), {})
    gone = sights({"rows": [row(0, A)], "lookups": {"MIG-1": NOT_FOUND}}, ["MIG-1"], State(), {})
    assert (there["MIG-1"].card, gone["MIG-1"].card) == (Card.MIG_ENABLED, Card.MIG_GONE)


@pytest.mark.parametrize(
    ("code", "probe"),
    [
        (4, Probe.NO_PERMISSION),
        (9, Probe.DRIVER_NOT_LOADED),
        (12, Probe.NVML_NOT_LOADABLE),
        (18, Probe.DRIVER_MISMATCH),
        (999, Probe.ERROR),
        (15, Probe.ERROR),
    ],
)
def test_an_init_that_fails_has_a_name(code: int, probe: Probe) -> None:
    assert probe_name({"init": {"code": code, "text": "x"}})[0] is probe


def test_only_hardware_that_is_gone_can_start_the_ladder() -> None:
    assert {Card.VANISHED, Card.LOST, Card.FALLEN_OFF_BUS} == GONE
    assert not PRESENT & GONE

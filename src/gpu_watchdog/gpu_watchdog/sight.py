"""From the probe's raw facts to named sights: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_watchdog.observation import Card, Probe, Sight
from gpu_watchdog.state import State

# nvml.h, nvmlReturn_t
_NO_PERMISSION = 4
_NOT_FOUND = 6
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_LIB_RM_VERSION_MISMATCH = 18

_INIT = {
    _NO_PERMISSION: Probe.NO_PERMISSION,
    _DRIVER_NOT_LOADED: Probe.DRIVER_NOT_LOADED,
    _LIBRARY_NOT_FOUND: Probe.NVML_NOT_LOADABLE,
    _LIB_RM_VERSION_MISMATCH: Probe.DRIVER_MISMATCH,
}


def probe_name(raw: Mapping[str, Any]) -> tuple[Probe, str]:
    """How the probe as a whole went, and the driver's words for it."""
    init = raw.get("init")
    if init is None:
        return Probe.OK, ""
    return _INIT.get(init["code"], Probe.ERROR), str(init["text"])


def sights(raw: Mapping[str, Any], uuids: Sequence[str], state: State, fallen: Mapping[str, str]) -> dict[str, Sight]:
    """One sight for each declared UUID. `fallen` maps UUIDs that the kernel log calls fallen to its words.

    NVML answers "lost" for any UUID while any card is lost (nvml.h, nvmlDeviceGetHandleByUUID), so a declared card is called lost only
    where there are as many lost rows as absent cards, or NVML lists fewer rows than were declared and names this one.
    """
    rows: list[Mapping[str, Any]] = list(raw["rows"])
    listed = {row["uuid"]: row for row in rows if row.get("uuid")}
    nameless = [row for row in rows if not row.get("uuid")]
    absent = [uuid for uuid in uuids if uuid not in listed]
    at_address = {row["pci"]: row["uuid"] for row in listed.values() if row.get("pci")}
    found: dict[str, Sight] = {}
    for uuid in uuids:
        if uuid in listed:
            sight = _listed(listed[uuid], state.track(uuid).index)
        else:
            sight = _absent(uuid, raw["lookups"].get(uuid), nameless, len(absent), pci=state.track(uuid).pci, at_address=at_address)
        if uuid in fallen and sight.card in {Card.VANISHED, Card.LOST}:
            sight = Sight(Card.FALLEN_OFF_BUS, f"{sight.card}; kernel: {fallen[uuid]}", sight.pci, sight.index)
        found[uuid] = sight
    return found


def _listed(row: Mapping[str, Any], usual_index: int | None) -> Sight:
    pci, index = row.get("pci"), row["index"]
    if "code" in row:
        return Sight(_failed(row["code"]), str(row["text"]), pci, index)
    if row["mig"]:
        return Sight(Card.MIG_ENABLED, "MIG mode is on", pci, index)
    if row["na"]:
        return Sight(Card.FIELDS_UNAVAILABLE, f"N/A: {', '.join(row['na'])}", pci, index)
    if usual_index is not None and usual_index != index:
        return Sight(Card.INDEX_SHIFTED, f"index {usual_index} became {index}", pci, index)
    return Sight(Card.OK, "", pci, index)


def _failed(code: int) -> Card:
    return {_GPU_IS_LOST: Card.LOST, _RESET_REQUIRED: Card.RESET_REQUIRED}.get(code, Card.ERROR)


def _absent(
    uuid: str,
    lookup: Mapping[str, Any] | None,
    nameless: Sequence[Mapping[str, Any]],
    absent: int,
    *,
    pci: str | None,
    at_address: Mapping[str, str],
) -> Sight:
    if uuid.startswith("MIG-"):
        there = lookup is None
        return Sight(Card.MIG_ENABLED if there else Card.MIG_GONE, "a MIG instance" if there else str(lookup and lookup["text"]))
    if pci is not None and pci in at_address:
        return Sight(Card.REPLACED, f"{at_address[pci]} sits at {pci} now", pci)
    troubled = [row for row in nameless if row["code"] != _GPU_IS_LOST]
    if troubled:  # this card may be the row that could not be read
        kinds = {_failed(row["code"]) for row in troubled}
        card = Card.RESET_REQUIRED if kinds == {Card.RESET_REQUIRED} else Card.ERROR
        return Sight(card, f"row {troubled[0]['index']}: {troubled[0]['text']}", pci)
    if lookup is None:
        return Sight(Card.ERROR, "found by its UUID but not listed", pci)
    if nameless and (len(nameless) >= absent or lookup["code"] == _GPU_IS_LOST):
        return Sight(Card.LOST, str(nameless[0]["text"]), pci)
    if lookup["code"] in {_NOT_FOUND, _GPU_IS_LOST}:
        vanished = lookup["code"] == _NOT_FOUND
        return Sight(Card.VANISHED if vanished else Card.LOST, str(lookup["text"]), pci)
    return Sight(_failed(lookup["code"]), str(lookup["text"]), pci)

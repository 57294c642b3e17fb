"""The latest look, kept under /run for `status`: every reader shares the service's probes, none asks the driver itself."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_watchdog.actions import Action, Refuse
from gpu_watchdog.observation import Card, Observation, Peer, Pool, PoolCard, Probe, Sight, Slot

_NAME = "last.json"


@dataclass(frozen=True)
class Last:
    at_wall: float
    boot_id: str
    seen: Observation
    actions: tuple[Action, ...] = ()


def write_last(folder: Path, last: Last) -> None:
    """Not durable on purpose: it lives as long as the boot."""
    raw = {
        "at_wall": last.at_wall,
        "boot_id": last.boot_id,
        "seen": to_json(last.seen),
        "actions": [{"action": type(action).__name__, **vars(action)} for action in last.actions],
    }
    with contextlib.suppress(OSError):
        scratch = folder / f".{_NAME}.new"
        scratch.write_text(json.dumps(raw), encoding="utf-8")
        scratch.chmod(0o644)
        scratch.replace(folder / _NAME)


def read_last(folder: Path) -> Last | None:
    """None when there is none, or none of this version."""
    try:
        raw = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        refusals = tuple(Refuse(item["code"], item["reason"]) for item in raw["actions"] if item["action"] == "Refuse")
        return Last(raw["at_wall"], raw["boot_id"], from_json(raw["seen"]), refusals)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def to_json(seen: Observation) -> dict[str, Any]:
    raw = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen) if not field.name.startswith("kernel_")}
    raw["cards"] = {uuid: vars(sight) for uuid, sight in seen.cards.items()}
    raw["signals"] = sorted(seen.signals)
    raw["pool"] = None if seen.pool is None else {**vars(seen.pool), "cards": {uuid: vars(card) for uuid, card in seen.pool.cards.items()}}
    raw["slots"] = None if seen.slots is None else {slot: vars(found) for slot, found in seen.slots.items()}
    raw["peers"] = None if seen.peers is None else dict(seen.peers)
    return raw


def from_json(raw: dict[str, Any]) -> Observation:
    """An observation from its JSON; keys that are left out have their defaults, unknown ones raise TypeError."""
    values = dict(raw)
    values["probe"] = Probe(values.get("probe", "ok"))
    values["cards"] = {
        uuid: Sight(Card(item))
        if isinstance(item, str)
        else Sight(Card(item["card"]), item.get("detail", ""), item.get("pci"), item.get("index"))
        for uuid, item in values.get("cards", {}).items()
    }
    values["signals"] = frozenset(values.get("signals", ()))
    if values.get("pool") is not None:
        pool = values["pool"]
        cards = {uuid: PoolCard(**card) for uuid, card in pool.get("cards", {}).items()}
        values["pool"] = Pool(pool["draining"], pool.get("drain_reason", ""), cards)
    if values.get("peers") is not None:
        values["peers"] = {name: Peer(peer) for name, peer in values["peers"].items()}
    if values.get("slots") is not None:
        values["slots"] = {slot: Slot(**found) for slot, found in values["slots"].items()}
    return Observation(**values)

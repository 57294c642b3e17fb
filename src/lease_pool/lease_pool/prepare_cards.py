"""`lease-pool prepare-cards` (gpu-cards.service, root, at boot): ties each slot's units to the device node that its card has today.

Minor numbers and indices shift when a card is lost, so the unit files name none: a drop-in under /run does, made anew at each boot.
A declared card that is not there gets no drop-in, and both its units stay down.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lease_pool import launch

if TYPE_CHECKING:
    from lease_pool.config import CardConfig, PoolConfig

UNITS = ("gpu-worker", "gpu-miner")
DROP_IN = "card.conf"
_RUN_UNITS = Path("/run/systemd/system")


def drop_in(unit: str, units_dir: Path = _RUN_UNITS) -> Path:
    """Where a unit's drop-in lies; not there while its card is missing."""
    return units_dir / f"{unit}.d" / DROP_IN


@dataclass(frozen=True, slots=True)
class Present:
    """A card that NVML lists. `minor` is None where no NVML was asked; `mig`: the card is cut into MIG instances."""

    uuid: str
    minor: int | None
    mig: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, and what to tell the operator. `errors` make the unit fail after everything that can work was written."""

    drop_ins: dict[str, str]
    warnings: list[str]
    errors: list[str]


def plan(cards: Sequence[CardConfig], present: Sequence[Present]) -> Plan:
    """Match declared cards with the ones that are there, by UUID and nothing else."""
    by_uuid = {card.uuid.lower(): card for card in present}
    drop_ins: dict[str, str] = {}
    missing: list[CardConfig] = []
    errors: list[str] = []
    for card in cards:
        found = by_uuid.pop(card.uuid.lower(), None)
        if card.uuid.startswith("MIG-"):
            errors.append(f"slot {card.slot}: {card.uuid} is a MIG instance: use supervisor: process, or declare the whole card")
        elif found is None:
            missing.append(card)
        elif found.mig:
            errors.append(f"slot {card.slot}: card {card.uuid} is in MIG mode: turn it off (nvidia-smi -mig 0) or use supervisor: process")
        else:
            drop_ins[card.slot] = _drop_in(found)
    undeclared = list(by_uuid.values())
    warnings = [] if missing else [f"card {card.uuid} is not declared in pool.yml and stays unused" for card in undeclared]
    if not present:
        errors.append(f"NVML lists no card at all, {len(cards)} declared: driver, power or cabling")
    elif undeclared:
        new = ", ".join(card.uuid for card in undeclared)
        errors += [f"slot {card.slot}: declared card {card.uuid} is not there, but {new} is: was the card swapped?" for card in missing]
    else:
        warnings += [f"slot {card.slot}: declared card {card.uuid} is missing" for card in missing]
    return Plan(drop_ins, warnings, errors)


def _drop_in(card: Present) -> str:
    lines = ["# Written at boot by lease-pool prepare-cards.", "[Service]"]
    if card.minor is not None:
        lines.append(f"DeviceAllow=/dev/nvidia{card.minor} rw")
    source = "declared" if card.minor is None else "nvml"
    lines.append(f"Environment=CUDA_VISIBLE_DEVICES={card.uuid} CUDA_DEVICE_ORDER=PCI_BUS_ID GPU_FLEET_CARD_SOURCE={source}")
    return "\n".join(lines) + "\n"


def main(config_path: str, units_dir: Path = _RUN_UNITS) -> int:
    from lease_pool.config import ConfigError, load  # noqa: PLC0415  the other helpers' start must not pay for pydantic

    try:
        config = load(config_path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        present = _declared(config) if config.card_source == "declared" else _nvml()
    except _NvmlUnusableError as error:
        print(f"prepare-cards: {error}", file=sys.stderr)
        return 1
    todo = plan(config.cards, present)
    _make_locks(config)
    if _write(_files(config, todo.drop_ins), units_dir):
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        print(f"changed: {len(todo.drop_ins)} of {len(config.cards)} slots have a card", flush=True)
    for line in todo.warnings:
        print(f"prepare-cards: {line}", file=sys.stderr)
    for line in todo.errors:
        print(f"prepare-cards: error: {line}", file=sys.stderr)
    return 1 if todo.errors else 0


def _make_locks(config: PoolConfig) -> None:
    """The occupant locks exist before any unit: a unit that made its own could make one that others cannot open."""
    config.locks_dir.mkdir(parents=True, exist_ok=True)
    group = config.locks_dir.stat().st_gid
    for card in config.cards:
        path = launch.lock_path(config.locks_dir, card.slot)
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        try:
            os.fchown(descriptor, 0, group)
            os.fchmod(descriptor, 0o660)
        finally:
            os.close(descriptor)


def _files(config: PoolConfig, drop_ins: dict[str, str]) -> dict[str, str]:
    """Texts by unit: each slot's own units, and one shared miner that may open the node of every card."""
    files = {f"{unit}@{slot}.service": text for slot, text in drop_ins.items() for unit in UNITS}
    if config.idle_workload.driver == "shared":
        allowed = [line for text in drop_ins.values() for line in text.splitlines() if line.startswith("DeviceAllow=")]
        files[config.idle_workload.unit_template] = "\n".join(["[Service]", *allowed]) + "\n"
    return files


def _write(files: dict[str, str], units_dir: Path) -> bool:
    """Make the drop-ins exactly these; True when anything changed."""
    wanted = {drop_in(unit, units_dir): text for unit, text in files.items()}
    changed = False
    for old in units_dir.glob(f"gpu-*.service.d/{DROP_IN}"):
        if old not in wanted:
            shutil.rmtree(old.parent)
            changed = True
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed = True
    return changed


class _NvmlUnusableError(Exception):
    pass


def _declared(config: PoolConfig) -> list[Present]:
    return [Present(card.uuid, None) for card in config.cards]


def _nvml() -> list[Present]:
    """All cards of this host; one that answers with an error is left out (it is lost), the others count."""
    import pynvml  # noqa: PLC0415  not needed where the cards are declared

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _NvmlUnusableError(f"NVML cannot be used: {error}") from None
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, minor = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetMinorNumber(handle)
        except pynvml.NVMLError as error:
            print(f"prepare-cards: card at NVML index {index} does not answer: {error}", file=sys.stderr)
            continue
        try:
            mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == 1
        except pynvml.NVMLError:
            mig = False  # cards without MIG answer "not supported"
        found.append(Present(uuid, minor, mig))
    return found

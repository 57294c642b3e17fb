"""`watchdog.toml`: read with the standard library, all faults reported at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpu_watchdog.decide import Policy
from gpu_watchdog.reconcile import Upkeep

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]{1,80}")


class ConfigError(Exception):
    """One line a fault: file, key, value and what is allowed."""


@dataclass(frozen=True)
class Bounds:
    """Seconds, unless the name says otherwise."""

    interval_s: float = 15
    probe_s: float = 10
    command_s: float = 10
    pool_s: float = 5
    peers_s: float = 5
    alert_s: float = 15
    misses: int = 4
    misses_with_signal: int = 2
    min_uptime_s: float = 900
    cooldown_s: float = 21600
    window_s: float = 604800
    max_reboots: int = 2
    drain_s: float = 300
    retry_s: float = 600
    reboot_s: float = 300
    verify_s: float = 600
    clock_jump_s: float = 30
    clock_settle_s: float = 300
    max_down: int = 1
    reconcile_s: float = 60
    hash_s: float = 300


@dataclass(frozen=True)
class Config:
    host: str
    cards: tuple[tuple[str, str], ...]
    peers: tuple[tuple[str, str], ...] = ()
    dry_run: bool = False
    state_dir: Path = Path("/var/lib/gpu-fleet")
    runtime_dir: Path = Path("/run/gpu-watchdog")
    admin_socket: Path = Path("/run/gpu-fleet/pool.sock")
    launch_dir: Path = Path("/run/gpu-fleet/launch")
    hold_dir: Path = Path("/var/lib/gpu-fleet/hold")
    pool_unit: str = "lease-pool.service"
    worker_unit: str = "gpu-worker@{slot}.service"
    idle_unit: str = "gpu-miner@{slot}.service"
    idle_alive: tuple[str, ...] = ()
    webhook_file: Path | None = None
    alert_command: tuple[str, ...] = ()
    reboot: tuple[str, ...] = ("systemctl", "--no-ask-password", "reboot")
    systemctl: tuple[str, ...] = ("systemctl",)
    kernel_log: tuple[str, ...] = ("journalctl", "-k", "-b", "0", "-o", "json", "--no-pager", "--lines=20000")
    bounds: Bounds = Bounds()

    def policy(self) -> Policy:
        shared = {field.name: getattr(self.bounds, field.name) for field in fields(Bounds) if field.name in Policy.__dataclass_fields__}
        return Policy(host=self.host, cards=self.cards, dry_run=self.dry_run, **shared)

    def upkeep(self) -> Upkeep:
        bounds = self.bounds
        return Upkeep(self.cards, self.worker_unit, self.idle_unit, bounds.interval_s, bounds.reconcile_s, bounds.hash_s)


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _argv(value: Any) -> bool:
    return isinstance(value, list) and all(_text(item) for item in value)


def _command(value: Any) -> bool:
    return _argv(value) and bool(value)


def _path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/")


_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "host": (lambda value: isinstance(value, str) and bool(_NAME.fullmatch(value)), "a host name"),
    "dry_run": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("state_dir", "runtime_dir", "admin_socket", "launch_dir", "hold_dir", "webhook_file"), (_path, "an absolute path")),
    **dict.fromkeys(("pool_unit", "worker_unit"), (_text, "a unit's name")),
    "idle_unit": (lambda value: isinstance(value, str), "a unit's name, or empty"),
    **dict.fromkeys(("idle_alive", "alert_command"), (_argv, "a list of strings")),
    **dict.fromkeys(("reboot", "systemctl", "kernel_log"), (_command, "a list of at least one string")),
}


def load(path: Path) -> Config:
    """Raises ConfigError with one line for every fault, OSError if the file cannot be read."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    faults: list[str] = []

    def fault(key: str, value: object, allowed: str) -> None:
        faults.append(f"{path}: {key}: {value!r}: expected {allowed}")

    allowed_keys = {*_KEYS, "cards", "peers", "bounds"}
    for key in raw:
        if key not in allowed_keys:
            fault(key, raw[key], f"one of the keys {', '.join(sorted(allowed_keys))}")
    values: dict[str, Any] = {}
    for key, (valid, allowed) in _KEYS.items():
        if key not in raw:
            if key == "host":
                fault(key, None, allowed)
        elif not valid(raw[key]):
            fault(key, raw[key], allowed)
        else:
            value = raw[key]
            values[key] = tuple(value) if isinstance(value, list) else Path(value) if valid is _path else value
    values["cards"] = _pairs(raw.get("cards", []), "cards", "slot", "uuid", fault)
    values["peers"] = _pairs(raw.get("peers", []), "peers", "name", "url", fault)
    if not values["cards"]:
        fault("cards", raw.get("cards", []), "at least one card")
    if any(name == raw.get("host") for name, _url in values["peers"]):
        fault("peers", raw.get("host"), "other hosts only")
    values["bounds"] = _bounds(raw.get("bounds", {}), fault)
    if faults:
        raise ConfigError("\n".join(faults))
    return Config(**values)


def _pairs(raw: Any, key: str, first: str, second: str, fault: Callable[[str, object, str], None]) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        fault(key, raw, f"a list of tables with {first} and {second}")
        return ()
    for number, item in enumerate(raw):
        where = f"{key}[{number}]"
        if set(item) != {first, second}:
            fault(where, item, f"exactly the keys {first} and {second}")
            continue
        one, two = item[first], item[second]
        if not isinstance(one, str) or not _NAME.fullmatch(one):
            fault(f"{where}.{first}", one, "a short name")
        elif one in {pair[0] for pair in pairs}:
            fault(f"{where}.{first}", one, "a name used once")
        if second == "uuid":
            if not isinstance(two, str) or not _UUID.fullmatch(two):
                fault(f"{where}.uuid", two, "a UUID of NVML's, GPU-… or MIG-…")
        elif not isinstance(two, str) or not _is_url(two):
            fault(f"{where}.url", two, "http://host:port")
        if isinstance(two, str) and two in {pair[1] for pair in pairs}:
            fault(f"{where}.{second}", two, "a value used once")
        pairs.append((str(one), str(two)))
    return tuple(pairs)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and bool(parts.hostname) and parts.path in {"", "/"} and (parts.port or 80) > 0
    except ValueError:
        return False


def _bounds(raw: Any, fault: Callable[[str, object, str], None]) -> Bounds:
    known = {field.name: field for field in fields(Bounds)}
    if not isinstance(raw, dict):
        fault("bounds", raw, "a table")
        return Bounds()
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in known:
            fault(f"bounds.{key}", value, f"one of {', '.join(known)}")
        elif isinstance(value, bool) or not isinstance(value, int if known[key].type == "int" else (int, float)) or not 0 < value < 1e9:
            fault(f"bounds.{key}", value, "a whole number above 0" if known[key].type == "int" else "seconds above 0")
        else:
            values[key] = value
    bounds = Bounds(**values)
    if bounds.misses_with_signal > bounds.misses:
        fault("bounds.misses_with_signal", bounds.misses_with_signal, f"at most bounds.misses ({bounds.misses})")
    if bounds.window_s < bounds.cooldown_s:
        fault("bounds.window_s", bounds.window_s, f"at least bounds.cooldown_s ({bounds.cooldown_s})")
    return bounds

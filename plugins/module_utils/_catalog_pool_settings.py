"""`fleet_pool`: what an operator may set of pool.yml; the rest the catalog decides. Checked here so that no host is touched before."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ._catalog_faults import Faults
from ._catalog_model import BACKENDS
from ._catalog_read import Reader, plain

_KEYS = ("window_s", "bounds", "servers", "idle_workload", "supervisor", "card_source")
BOUNDS = ("queue", "queue_s", "free_s", "ready_s", "first_byte_s", "stall_s", "request_s", "stop_s", "drain_s", "ping_s", "body_mib")
WHOLE_BOUNDS = ("queue",)  # waiters; the others are seconds or MiB and may have a fraction
DRIVERS = {"systemd": ("per_card", "shared", "none"), "process": ("command", "none")}


def read_pool_settings(faults: Faults, data: Any) -> Optional[Dict[str, Any]]:
    """The settings as they go into pool.yml; None when there is a fault."""
    reader = Reader(faults, "fleet_pool", {} if data is None else data, _KEYS)
    window = reader.data.get("window_s")
    if window is not None and not _is_number(window, least=0):
        reader.fault("window_s", "must be a number of seconds, 0 or more")
    bounds = Reader(faults, "fleet_pool.bounds", reader.entries("bounds"), BOUNDS)
    for name, value in bounds.data.items():
        if name in WHOLE_BOUNDS:
            bounds.number(name, required=True)
        elif name in BOUNDS and not (_is_number(value, least=0) and value > 0):
            bounds.fault(name, "must be a number above 0")
    supervisor = reader.choice("supervisor", ("systemd", "process"), "systemd")
    reader.choice("card_source", ("nvml", "declared"), "nvml")
    servers = Reader(faults, "fleet_pool.servers", reader.entries("servers"), BACKENDS)
    for backend, argv in servers.data.items():
        if backend in BACKENDS and (argv is None or argv == []):
            servers.fault(backend, "must be a command line: a list of strings")
        elif backend in BACKENDS:
            servers.arguments(backend)
    idle = Reader(faults, "fleet_pool.idle_workload", reader.entries("idle_workload"), ("driver", "unit", "start", "stop", "alive"))
    if idle.data and idle.data.get("driver") not in DRIVERS[supervisor]:
        idle.fault("driver", f"must be one of {', '.join(DRIVERS[supervisor])} with supervisor {supervisor}")
    if any(part.bad for part in (reader, bounds, servers, idle)):
        return None
    return {str(key): plain(value) for key, value in reader.data.items() if value is not None}


def mines(settings: Any) -> bool:
    """Whether idle cards run the miner, as far as these settings can be read."""
    if not isinstance(settings, dict):
        return True
    idle = settings.get("idle_workload")
    driver = idle.get("driver") if isinstance(idle, dict) else None
    return (driver or ("none" if settings.get("supervisor") == "process" else "per_card")) in ("per_card", "shared")


def _is_number(value: Any, least: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value < float("inf")

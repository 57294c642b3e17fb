"""The watchdog's whole memory: every timer and counter that any decision looks at.

Durations are counted on `elapsed_s`, the time this host has been running since the watchdog first saw it: within a boot it follows the
monotonic clock, over a reboot it goes on with the new boot's uptime. The wall clock, which can jump, moves no timer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import Any

VERSION = 1


class Phase(enum.StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    CONFIRMED = "confirmed"
    DRAINING = "draining"
    REBOOTING = "rebooting"
    VERIFYING = "verifying"
    LOCKED_OUT = "locked_out"


class CorruptState(Exception):
    """The state file cannot be trusted; the message says what is wrong with it."""


@dataclass(frozen=True)
class Now:
    """One reading of the clocks: `wall` seconds of the epoch, `boot_s` seconds since this boot on the monotonic clock."""

    wall: float
    boot_s: float


@dataclass(frozen=True)
class Track:
    """What is remembered of one declared card. `misses` counts in a row; `signal`: the kernel named it in this boot."""

    uuid: str
    misses: int = 0
    signal: bool = False
    pci: str | None = None
    index: int | None = None


@dataclass(frozen=True)
class Idle:
    """What is remembered of one slot while the pool is down; times on `elapsed_s`."""

    slot: str
    silent_since: float | None = None
    acted_at: float | None = None
    restarted: bool = False
    reported: bool = False


@dataclass(frozen=True)
class State:
    phase: Phase = Phase.HEALTHY
    since: float = 0.0  # when the phase began, on elapsed_s
    boot_id: str = ""
    elapsed_s: float = 0.0
    boot_s: float = 0.0
    wall: float = 0.0
    jump_at: float | None = None  # when wall and monotonic clock last disagreed
    tracks: tuple[Track, ...] = ()
    reboots: tuple[float, ...] = ()  # when each reboot of the window was ordered, on elapsed_s; emptied by an ack
    last_reboot: float | None = None  # the latest of all, for the cooldown; an ack keeps it
    intent: str | None = None  # what was last announced to the fleet
    intent_since: float | None = None  # since when it is known to be announced
    retry_at: float | None = None  # no new drain before this
    locked_reason: str = ""
    notices: tuple[str, ...] = ()  # conditions a person was already told about
    pool_down_since: float | None = None
    idles: tuple[Idle, ...] = ()
    kernel_cursor: str = ""
    kernel_tail: str = ""

    def track(self, uuid: str) -> Track:
        return next((track for track in self.tracks if track.uuid == uuid), Track(uuid))

    def idle(self, slot: str) -> Idle:
        return next((idle for idle in self.idles if idle.slot == slot), Idle(slot))


def to_json(state: State) -> dict[str, Any]:
    raw = {field.name: getattr(state, field.name) for field in fields(state)}
    raw["tracks"] = [vars(track) for track in state.tracks]
    raw["idles"] = [vars(idle) for idle in state.idles]
    return {"version": VERSION, **raw}


def from_json(raw: object) -> State:
    """The inverse of `to_json`, strict: an unknown key, a missing key or a wrong type raises CorruptState."""
    values = _checked(raw, {"version", *(field.name for field in fields(State))})
    if values.pop("version") != VERSION:
        raise CorruptState("written by another version of the watchdog")
    try:
        values["phase"] = Phase(values["phase"])
        values["tracks"] = tuple(Track(**_checked(item, {f.name for f in fields(Track)})) for item in _list(values["tracks"]))
        values["idles"] = tuple(Idle(**_checked(item, {f.name for f in fields(Idle)})) for item in _list(values["idles"]))
        values["reboots"] = tuple(float(item) for item in _list(values["reboots"]))
        values["notices"] = tuple(str(item) for item in _list(values["notices"]))
    except (TypeError, ValueError) as error:
        raise CorruptState(str(error)) from error
    state = State(**values)
    _require(state, ("since", "elapsed_s", "boot_s", "wall"), (int, float))
    _require(state, ("jump_at", "last_reboot", "intent_since", "retry_at", "pool_down_since"), (int, float, type(None)))
    _require(state, ("boot_id", "locked_reason", "kernel_cursor", "kernel_tail"), (str,))
    _require(state, ("intent",), (str, type(None)))
    for track in state.tracks:
        _require(track, ("misses",), (int,))
        _require(track, ("signal",), (bool,))
        _require(track, ("uuid",), (str,))
        _require(track, ("pci",), (str, type(None)))
        _require(track, ("index",), (int, type(None)))
    for idle in state.idles:
        _require(idle, ("silent_since", "acted_at"), (int, float, type(None)))
        _require(idle, ("restarted", "reported"), (bool,))
        _require(idle, ("slot",), (str,))
    return state


def _checked(raw: object, keys: set[str]) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise CorruptState(f"expected an object, found {type(raw).__name__}")
    if set(raw) != keys:
        raise CorruptState(f"keys differ: {', '.join(sorted(set(raw) ^ keys))}")
    return dict(raw)


def _list(raw: object) -> list[Any]:
    if not isinstance(raw, list):
        raise CorruptState(f"expected a list, found {type(raw).__name__}")
    return raw


def _require(owner: object, names: tuple[str, ...], kinds: tuple[type, ...]) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise CorruptState(f"{name}: {type(value).__name__} is not allowed")

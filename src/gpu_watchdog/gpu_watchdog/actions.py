"""What the pure functions ask the shell to do. Each is safe to do twice, except Reboot, which is ordered once per attempt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refuse:
    """A reboot (or the next step to one) that is held back: `code` is stable, `reason` is for people."""

    code: str
    reason: str


@dataclass(frozen=True)
class Note:
    """A line for the log."""

    text: str


@dataclass(frozen=True)
class Alert:
    """Something a person must hear about; `kind` is stable."""

    kind: str
    text: str


@dataclass(frozen=True)
class Quarantine:
    uuid: str
    reason: str


@dataclass(frozen=True)
class ResumeCard:
    """Lift a quarantine that this watchdog has set."""

    uuid: str


@dataclass(frozen=True)
class DrainPool:
    pass


@dataclass(frozen=True)
class ResumePool:
    """End a drain that this watchdog has begun."""


@dataclass(frozen=True)
class Intent:
    """Announce (or withdraw: None) a reboot to the fleet through the local pool."""

    reboot: str | None


@dataclass(frozen=True)
class Reboot:
    pass


@dataclass(frozen=True)
class StopUnit:
    unit: str


@dataclass(frozen=True)
class StartUnit:
    unit: str


@dataclass(frozen=True)
class RestartUnit:
    unit: str


@dataclass(frozen=True)
class RemoveSpec:
    """Remove the launch spec and key of a lease whose worker is gone."""

    slot: str


Action = (
    Refuse
    | Note
    | Alert
    | Quarantine
    | ResumeCard
    | DrainPool
    | ResumePool
    | Intent
    | Reboot
    | StopUnit
    | StartUnit
    | RestartUnit
    | RemoveSpec
)

"""What the watchdog can see, each kind under its own name. An error is never "missing"."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


class Probe(enum.StrEnum):
    """How asking the driver went as a whole."""

    OK = "ok"
    HUNG = "hung"  # killed at its bound
    STUCK = "stuck"  # an earlier probe still blocks in the driver, so no further one was started
    NVML_NOT_LOADABLE = "nvml_not_loadable"  # the library is not there
    DRIVER_NOT_LOADED = "driver_not_loaded"
    DRIVER_MISMATCH = "driver_mismatch"  # kernel module and library differ: a planned reboot is needed
    NO_PERMISSION = "no_permission"
    ERROR = "error"


class Card(enum.StrEnum):
    """How one declared card was seen."""

    OK = "ok"
    INDEX_SHIFTED = "index_shifted"  # there, at another index than at its first sight in this boot
    FIELDS_UNAVAILABLE = "fields_unavailable"  # there, some values are N/A
    MIG_ENABLED = "mig_enabled"  # there, partitioned (or a MIG instance declared by its own UUID)
    VANISHED = "vanished"  # the driver works and does not list it
    LOST = "lost"  # NVML says "GPU is lost"
    FALLEN_OFF_BUS = "fallen_off_bus"  # not usable, and the kernel says why
    REPLACED = "replaced"  # another UUID sits at its PCI address
    MIG_GONE = "mig_gone"  # a declared MIG instance does not exist: an operator's change, no lost hardware
    RESET_REQUIRED = "reset_required"
    ERROR = "error"  # asking about it failed
    UNKNOWN = "unknown"  # the probe as a whole gave no answer


PRESENT = frozenset({Card.OK, Card.INDEX_SHIFTED, Card.FIELDS_UNAVAILABLE, Card.MIG_ENABLED})
GONE = frozenset({Card.VANISHED, Card.LOST, Card.FALLEN_OFF_BUS})
"""What a reboot can cure; everything outside PRESENT and GONE is for a person."""


class Peer(enum.StrEnum):
    """What another host's /ready says about it."""

    READY = "ready"
    INTENDING = "intending"
    REBOOTING = "rebooting"
    DOWN = "down"  # unreachable, no sense in its answer, or no usable card


@dataclass(frozen=True)
class Sight:
    """One declared card: what was seen, in words too, and where it sits."""

    card: Card
    detail: str = ""
    pci: str | None = None
    index: int | None = None


@dataclass(frozen=True)
class PoolCard:
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Pool:
    """The local pool's own word, from its admin socket."""

    draining: bool
    drain_reason: str
    cards: Mapping[str, PoolCard]


@dataclass(frozen=True)
class Slot:
    """What systemd and the files say about one slot, for reconciliation. Unit states are systemd's ActiveState."""

    worker: str = "inactive"
    idle: str = "none"
    spec_left: bool = False
    held: bool = False
    hashing: bool | None = None


@dataclass(frozen=True)
class Observation:
    """One look at the host. None means "could not be found out", which always counts against a reboot."""

    probe: Probe
    cards: Mapping[str, Sight] = field(default_factory=lambda: MappingProxyType({}))
    probe_detail: str = ""
    signals: frozenset[str] = frozenset()  # UUIDs that the kernel log of this boot calls fallen
    pool_unit: str | None = "active"
    pool: Pool | None = None
    leases: int | None = 0
    packages_busy: bool | None = False
    maintenance: str | None = None  # the reason, while the flag is set
    intent_announced: bool = False
    peers: Mapping[str, Peer] | None = None
    reboot_error: str | None = None
    slots: Mapping[str, Slot] | None = None
    kernel_cursor: str = ""  # how far the kernel log of this boot was read,
    kernel_tail: str = ""  # and its last words, which may go on in the next line

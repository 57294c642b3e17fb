"""What an operator, or the pool itself, has taken out of service: kept on disk (`drain.json`), written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lease_pool.journal import utc
from lease_pool.launch import hold_path

log = logging.getLogger(__name__)

Kind = Literal["drained", "quarantined"]


@dataclass(frozen=True, slots=True)
class Hold:
    kind: Kind
    reason: str | None
    since: str


class Holds:
    """Pool drain and card holds. Every change is on disk before it returns.

    `slots` (UUID -> slot): the cards whose `hold/<slot>` follows at once, so that a card held while it serves stays without its idle workload also
    when nobody of the pool is left to see the lease's end. (The card's owner makes it again whenever it settles the card.)
    """

    def __init__(self, state_dir: Path, slots: Mapping[str, str] | None = None) -> None:
        self._state_dir = state_dir
        self._slots = slots or {}
        self._path = state_dir / "drain.json"
        self.draining = False
        self.drain_reason: str | None = None
        self.cards: dict[str, Hold] = {}

    def load(self) -> None:
        """A file that cannot be read drains the pool: better idle cards than cards in use that an operator took out."""
        try:
            data: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            self.draining = bool(data["draining"])
            self.drain_reason = data.get("reason")
            self.cards = {uuid: Hold(h["kind"], h.get("reason"), h["since"]) for uuid, h in data["cards"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.error("%s cannot be read (%s): the pool starts drained; `lease-pool resume` writes it anew", self._path, error)
            self.draining, self.drain_reason = True, f"{self._path.name} could not be read"

    def drain_pool(self, reason: str | None) -> None:
        self.draining, self.drain_reason = True, reason
        self._save()

    def resume_pool(self) -> None:
        self.draining, self.drain_reason = False, None
        self._save()

    def hold_card(self, uuid: str, kind: Kind, reason: str | None) -> Hold:
        hold = self.cards[uuid] = Hold(kind, reason, utc())
        self._save()
        if uuid in self._slots:
            path = hold_path(self._state_dir, self._slots[uuid])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return hold

    def resume_card(self, uuid: str) -> None:
        if self.cards.pop(uuid, None) is not None:
            self._save()
        if uuid in self._slots:
            hold_path(self._state_dir, self._slots[uuid]).unlink(missing_ok=True)

    def _save(self) -> None:
        cards = {uuid: {"kind": h.kind, "reason": h.reason, "since": h.since} for uuid, h in self.cards.items()}
        text = json.dumps({"draining": self.draining, "reason": self.drain_reason, "cards": cards}, indent=1)
        fresh = self._path.with_name(f".{self._path.name}.new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(fresh, self._path)

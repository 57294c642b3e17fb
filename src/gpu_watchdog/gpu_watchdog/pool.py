"""The local pool, through its admin socket."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from gpu_watchdog import web
from gpu_watchdog.observation import Pool, PoolCard

_LEASED = frozenset({"freeing", "loading", "serving", "unloading"})


class PoolClient:
    """Every call raises web.WebError when the pool does not do as asked within `bound_s`."""

    def __init__(self, socket: Path, bound_s: float) -> None:
        self._socket = socket
        self._bound_s = bound_s

    def status(self) -> tuple[Pool, int]:
        """What the pool says, and how many of its cards are leased."""
        raw = self._call("GET", "/status")
        try:
            cards = {card["uuid"]: PoolCard(card["state"], card.get("reason") or "") for card in raw["cards"]}
            leases = sum(card["lease"] is not None or card["state"] in _LEASED for card in raw["cards"])
            return Pool(bool(raw["draining"]), raw.get("drain_reason") or "", cards), leases
        except (KeyError, TypeError) as error:
            raise web.WebError(f"the pool's status has another shape: {error!r}") from error

    def drain(self, reason: str) -> None:
        self._call("POST", "/drain", {"reason": reason})

    def resume(self, uuid: str | None = None) -> None:
        self._call("POST", "/resume", {"card": uuid} if uuid else None)

    def quarantine(self, uuid: str, reason: str) -> None:
        self._call("POST", f"/quarantine/{uuid}", {"reason": reason})

    def intent(self, reboot: str | None, until_wall: float) -> None:
        until = datetime.datetime.fromtimestamp(until_wall, datetime.UTC).isoformat(timespec="seconds")
        self._call("POST", "/intent", {"reboot": reboot, "until": until})

    def _call(self, method: str, path: str, body: object = None) -> Any:
        status, answer = web.call(self._socket, method, path, self._bound_s, body)
        if not 200 <= status < 300:
            raise web.WebError(f"{self._socket} {method} {path}: {status} {answer}")
        return answer

"""Hosts that failed lately, and until when to leave them alone. Time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_S = 1.0
LONGEST_S = 60.0


@dataclass(slots=True)
class _BackOff:
    seconds: float = 0.0
    until: float = 0.0
    failed_at: float = 0.0


@dataclass(slots=True)
class Health:
    """Back-off 1 s doubling to 60 s: of a whole host when it cannot be reached, of one alias on it when no worker starts."""

    _offs: dict[tuple[str, str | None], _BackOff] = field(default_factory=dict)

    def failed(self, host: str, alias: str | None, now: float) -> None:
        """Note a failure; those within one back-off count once, as many requests may be under way at the same time."""
        off = self._offs.setdefault((host, alias), _BackOff())
        if now < off.until:
            return
        if now - off.until > LONGEST_S:
            off.seconds = 0.0  # it was well for long
        off.seconds = min(max(FIRST_S, off.seconds * 2), LONGEST_S)
        off.until = now + off.seconds
        off.failed_at = now

    def worked(self, host: str, alias: str) -> None:
        self._offs.pop((host, alias), None)
        self._offs.pop((host, None), None)

    def answered(self, host: str, asked_at: float) -> None:
        """The host's pool answered a question asked at that time: it can be reached again."""
        off = self._offs.get((host, None))
        if off is not None and asked_at > off.failed_at:
            del self._offs[(host, None)]

    def is_backing_off(self, host: str, alias: str, now: float) -> bool:
        return any(off.until > now for key in ((host, None), (host, alias)) if (off := self._offs.get(key)) is not None)

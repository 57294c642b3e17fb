"""When a model may try a card again, and when a card is to blame: pure state, time is an argument.

From its second failure in a row to start on a card a model backs off there, 1 s doubling to 60 s. A card is quarantined only when two
different models in a row, with no success between, fail on it and run elsewhere (DESIGN.md section 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_S = 1.0
MOST_S = 60.0


def delay_s(failures: int) -> float:
    """Seconds that a model backs off after this many failures in a row on one card."""
    if failures < 2:
        return 0.0
    return min(FIRST_S * 2.0 ** min(failures - 2, 16), MOST_S)


@dataclass(slots=True)
class Backoff:
    """What has failed and succeeded on each card since the pool began. Keys are (model, slot)."""

    _failures: dict[tuple[str, str], int] = field(default_factory=dict)
    _until: dict[tuple[str, str], float] = field(default_factory=dict)
    _runs: dict[tuple[str, str], bool] = field(default_factory=dict)  # the last start's outcome
    _blamed: dict[str, list[str]] = field(default_factory=dict)  # slot -> models that failed since its last success, each once

    def failed(self, model: str, slot: str, now: float) -> None:
        key = (model, slot)
        self._failures[key] = self._failures.get(key, 0) + 1
        self._until[key] = now + delay_s(self._failures[key])
        self._runs[key] = False
        blamed = self._blamed.setdefault(slot, [])
        if model not in blamed:
            blamed.append(model)

    def succeeded(self, model: str, slot: str) -> None:
        key = (model, slot)
        self._failures.pop(key, None)
        self._until.pop(key, None)
        self._runs[key] = True
        self._blamed.pop(slot, None)

    def active(self, now: float) -> set[tuple[str, str]]:
        """The pairs that back off at `now`."""
        return {key for key, until in self._until.items() if until > now}

    def next_end(self, now: float) -> float | None:
        """When the next running back-off ends."""
        return min((until for until in self._until.values() if until > now), default=None)

    def to_blame(self) -> dict[str, list[str]]:
        """Cards to quarantine: slot -> the models that fail there and run elsewhere, at least two."""
        guilty = {}
        for slot, models in self._blamed.items():
            elsewhere = [m for m in models if any(ok and key[0] == m and key[1] != slot for key, ok in self._runs.items())]
            if len(elsewhere) >= 2:
                guilty[slot] = elsewhere
        return guilty

    def forget_card(self, slot: str) -> None:
        """An operator resumed the card: it starts with a clean record."""
        for table in (self._failures, self._until, self._runs):
            for key in [k for k in table if k[1] == slot]:
                del table[key]
        self._blamed.pop(slot, None)

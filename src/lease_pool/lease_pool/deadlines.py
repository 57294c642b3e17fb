"""The bounds as points in time: pure arithmetic on monotonic seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence


def card_by(arrived: float, queue_s: float, max_wait_s: float | None) -> float:
    """When a request must have a card: the pool's bound, or the caller's own where that is shorter."""
    return arrived + (queue_s if max_wait_s is None else min(queue_s, max(max_wait_s, 0.0)))


def left(deadline: float, now: float) -> float:
    return max(0.0, deadline - now)


RETRY_MAX_S = 120


def wait_s(ahead: int, load_s: float | None, serve_s: float | None, cards: int) -> float:
    """How long a card will take to become free: each waiter ahead needs a load and an answer, and the fitting cards work side by side."""
    return ahead * ((load_s or 0.0) + (serve_s or 0.0)) / max(cards, 1)


def retry_after_s(seconds: float) -> int:
    """`Retry-After` in whole seconds, 1 to 120."""
    return min(max(1, math.ceil(seconds)), RETRY_MAX_S) if math.isfinite(seconds) else 1


def median(samples: Sequence[float]) -> float | None:
    if not samples:
        return None
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

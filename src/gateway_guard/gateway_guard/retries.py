"""The one place that decides whether a failed attempt is tried again. Pure.

LiteLLM is told to retry up to twice; the guard stops it where a second try would run a request twice or hop between queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MAX_ATTEMPTS = 3


class Failure(Enum):
    """How an attempt failed."""

    NOT_REACHED = "the host could not be connected to, or has fallen silent: nothing runs there"
    NO_CARD_NOW = "429 to a request that would not wait"
    QUEUE_FULL = "429 after waiting"
    NO_WORKER = "502: no worker could serve it"
    NOT_NOW = "503: draining or no usable card"
    FAULT = "any other 5xx"
    TOO_LATE = "a deadline passed after the request was sent: it may have run"
    REFUSED = "the request itself is at fault"


@dataclass(frozen=True, slots=True)
class Attempt:
    host: str | None
    at_once: bool
    failure: Failure | None = None


def classify(status: int | None, connected: bool, timed_out: bool, at_once: bool) -> Failure:
    """Return the kind of failure from the HTTP status (None: no answer came) and what is known of the connection."""
    if not connected:
        return Failure.NOT_REACHED
    if timed_out or status in (408, 504):
        return Failure.TOO_LATE
    if status == 429:
        return Failure.NO_CARD_NOW if at_once else Failure.QUEUE_FULL
    if status == 502:
        return Failure.NO_WORKER
    if status == 503:
        return Failure.NOT_NOW
    if status is None or status >= 500:
        return Failure.FAULT
    return Failure.REFUSED


def may_try_again(attempts: list[Attempt]) -> bool:
    """Tell whether a request with these attempts behind it gets another one."""
    if not attempts:
        return True
    if len(attempts) >= MAX_ATTEMPTS:
        return False
    return attempts[-1].failure in (None, Failure.NOT_REACHED, Failure.NO_CARD_NOW, Failure.NO_WORKER, Failure.NOT_NOW, Failure.FAULT)


def failed_hosts(attempts: list[Attempt]) -> frozenset[str]:
    """Return the hosts that a next attempt should leave out. One that only had no card free works: its queue is better than a host that does not."""
    return frozenset(
        attempt.host for attempt in attempts if attempt.host is not None and attempt.failure not in (None, Failure.NO_CARD_NOW)
    )

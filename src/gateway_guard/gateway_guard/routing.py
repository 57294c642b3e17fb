"""Which host a request should try next, decided from what is known about the pools right now. Pure: time and chance are arguments.

Cards are not named in a pool's /capacity, only counted per model. The pool gives the smallest fitting card first, so the counts nest: a model with
fewer free cards needs bigger ones. Requests that this gateway has sent but no snapshot shows yet are played onto those counts in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from itertools import accumulate

SERVICE_S = 10.0  # how long an answer takes, roughly: only the order of the hosts counts
LOAD_S = 5.0


@dataclass(frozen=True, slots=True)
class ModelCapacity:
    """One model on one host, as its pool tells it (DESIGN.md 4.3)."""

    free: int
    waiting: int = 0
    load_s: float | None = None
    failing: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One answer of GET /capacity; `models` by alias."""

    draining: bool = False
    queue: int = 0
    models: Mapping[str, ModelCapacity] = field(default_factory=dict)


class Standing(IntEnum):
    """How good an idea a host is, best first."""

    FREE = 0
    BUSY = 1
    UNKNOWN = 2
    FAILING = 3


@dataclass(frozen=True)
class Candidate:
    """One host of a model group. snapshot None = unknown; in_flight: aliases that this gateway sent there since the snapshot was taken, in order;
    backing_off: it failed lately; cards: the most free cards ever seen for this alias."""

    host: str
    alias: str
    snapshot: Snapshot | None = None
    in_flight: Sequence[str] = ()
    backing_off: bool = False
    cards: int = 1

    @cached_property
    def free(self) -> Mapping[str, int]:
        """Free cards by alias after what is in flight; counted once, as every question below needs it."""
        return free_cards(self.snapshot, self.in_flight) if self.snapshot is not None else {}


def standing(candidate: Candidate) -> Standing:
    snapshot = candidate.snapshot
    if candidate.backing_off:
        return Standing.FAILING
    if snapshot is None:
        return Standing.UNKNOWN
    model = snapshot.models.get(candidate.alias)
    if snapshot.draining or model is None or model.failing:
        return Standing.FAILING
    return Standing.FREE if candidate.free[candidate.alias] > 0 else Standing.BUSY


def free_cards(snapshot: Snapshot, in_flight: Iterable[str]) -> dict[str, int]:
    """Return the free cards of each alias after the requests in flight took theirs, the smallest fitting card first."""
    counts = {alias: model.free for alias, model in snapshot.models.items()}
    levels = sorted({count for count in counts.values() if count > 0})
    # sizes[i]: free cards that fit exactly the models with at least levels[i] free cards; the first are the biggest cards
    sizes = [level - below for below, level in zip([0, *levels], levels, strict=False)]
    rank = {count: number for number, count in enumerate(levels, 1)}
    reach = {alias: rank.get(count, 0) for alias, count in counts.items()}
    for alias in in_flight:
        for index in range(reach.get(alias, 0) - 1, -1, -1):
            if sizes[index] > 0:
                sizes[index] -= 1
                break
    left = [0, *accumulate(sizes)]
    return {alias: left[reached] for alias, reached in reach.items()}


def harm(candidate: Candidate) -> int:
    """Return how many free-card counts of other models sink when this request takes its card there."""
    if candidate.snapshot is None:
        return 0
    after = free_cards(candidate.snapshot, [*candidate.in_flight, candidate.alias])
    return sum(after[alias] < count for alias, count in candidate.free.items())


def expected_wait(candidate: Candidate) -> float:
    """Return the seconds until a card of that host is free for this request: everything before it, shared by its cards."""
    if candidate.snapshot is None:
        return 0.0
    model = candidate.snapshot.models.get(candidate.alias)
    ahead = candidate.snapshot.queue + len(candidate.in_flight) + 1
    load_s = (model.load_s if model else None) or LOAD_S
    return ahead * (load_s + SERVICE_S) / max(candidate.cards, 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """The host to try. at_once: it must give a card now or say 429, because another host may have one."""

    host: str
    at_once: bool


def choose(candidates: Sequence[Candidate], refused: frozenset[str], last_attempt: bool, chance: float) -> Choice:
    """Return the next host. refused: hosts that failed this very request; last_attempt: wait in its queue, whatever is believed.

    chance in [0, 1) breaks ties, so that several gateways do not all pick the same host.
    """
    left = [candidate for candidate in candidates if candidate.host not in refused] or list(candidates)
    standings = [standing(candidate) for candidate in left]
    best = min(standings)
    equals = [candidate for candidate, found in zip(left, standings, strict=True) if found is best]
    if best is Standing.FREE:
        order = {candidate.host: (float(harm(candidate)), float(-candidate.free[candidate.alias])) for candidate in equals}
    else:
        order = {candidate.host: (expected_wait(candidate), 0.0) for candidate in equals}
    lowest = min(order.values())
    ties = [candidate.host for candidate in equals if order[candidate.host] == lowest]
    host = ties[int(chance * len(ties))]
    return Choice(host, at_once=best is Standing.FREE and len(candidates) > 1 and not last_attempt)

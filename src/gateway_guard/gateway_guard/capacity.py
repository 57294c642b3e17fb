"""What the pools say about their cards, read in the background; a request only ever looks at the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from gateway_guard.health import Health
from gateway_guard.routing import Candidate, ModelCapacity, Snapshot

LOG = logging.getLogger("gateway_guard.capacity")
BUSY_PERIOD_S = 0.25
IDLE_PERIOD_S = 1.0
IDLE_AFTER_S = 30.0
STALE_S = 2.5
FETCH_S = 1.0
# A request that left this long before a snapshot was asked for is in that snapshot: LiteLLM takes some milliseconds to send it.
SENDING_S = 0.1


@dataclass(slots=True)
class _Host:
    url: str
    snapshot: Snapshot | None = None
    asked_at: float = -1e9
    sent: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=1024))
    cards: dict[str, int] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Capacity:
    """All pools' capacity. `start` begins the background reading; `candidate` answers at once from memory."""

    def __init__(self, pools: Mapping[str, str], token: str, health: Health) -> None:
        self._hosts = {host: _Host(url) for host, url in pools.items()}
        self._token = token
        self._health = health
        self._used_at = -1e9
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin reading, once, in the running event loop."""
        if not self._tasks:
            self._tasks = [asyncio.get_running_loop().create_task(self._read_forever(name, host)) for name, host in self._hosts.items()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    def candidate(self, host: str, alias: str) -> Candidate:
        """Return what is known of a host now; stale or never heard of is `unknown` (no snapshot)."""
        now = time.monotonic()
        self._used_at = now
        known = self._hosts.get(host)
        backing_off = self._health.is_backing_off(host, alias, now)
        if known is None or known.snapshot is None or now - known.asked_at > STALE_S:
            return Candidate(host, alias, backing_off=backing_off)
        in_flight = [name for sent_at, name in known.sent if sent_at > known.asked_at - SENDING_S]
        return Candidate(host, alias, known.snapshot, in_flight, backing_off, known.cards.get(alias, 1))

    def sent(self, host: str, alias: str) -> None:
        """Note that a request was just sent there, until a snapshot shows it."""
        known = self._hosts.get(host)
        if known is not None:
            known.sent.append((time.monotonic(), alias))
            known.wake.set()

    def took_none(self, host: str, alias: str) -> None:
        """Correct the last snapshot: the pool just said that no card is free for this alias."""
        known = self._hosts.get(host)
        if known is not None and known.snapshot is not None and alias in known.snapshot.models:
            models = dict(known.snapshot.models)
            models[alias] = ModelCapacity(0, models[alias].waiting, models[alias].load_s, models[alias].failing)
            known.snapshot = Snapshot(known.snapshot.draining, known.snapshot.queue, models)

    async def _read_forever(self, name: str, host: _Host) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        timeout = aiohttp.ClientTimeout(total=FETCH_S)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=False) as session:
            while True:
                asked_at = time.monotonic()
                try:
                    async with session.get(f"{host.url}/capacity", allow_redirects=False) as response:
                        response.raise_for_status()
                        self._learn(name, host, parse(await response.json()), asked_at)
                except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, AttributeError, KeyError) as error:
                    if host.snapshot is not None:
                        LOG.warning("pool of %s does not tell its capacity: %s", name, type(error).__name__)
                    host.snapshot = None
                    if isinstance(error, aiohttp.ClientConnectionError | TimeoutError):
                        self._health.failed(name, None, time.monotonic())
                await self._rest(host, asked_at)

    async def _rest(self, host: _Host, asked_at: float) -> None:
        """Wait until the next reading: often while requests come, seldom while none do; a request wakes an idle reader."""
        await asyncio.sleep(max(0.0, asked_at + BUSY_PERIOD_S - time.monotonic()))
        host.wake.clear()
        if time.monotonic() - self._used_at > IDLE_AFTER_S:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(host.wake.wait(), IDLE_PERIOD_S - BUSY_PERIOD_S)

    def _learn(self, name: str, host: _Host, snapshot: Snapshot, asked_at: float) -> None:
        if host.snapshot is None:
            LOG.info("pool of %s tells its capacity", name)
        host.snapshot = snapshot
        host.asked_at = asked_at
        self._health.answered(name, asked_at)
        while host.sent and host.sent[0][0] <= asked_at - SENDING_S:
            host.sent.popleft()
        for alias, model in snapshot.models.items():
            host.cards[alias] = max(host.cards.get(alias, 1), model.free)


def parse(document: Any) -> Snapshot:
    """Build a snapshot from the body of GET /capacity (DESIGN.md 4.3); raises on any other shape."""
    models: dict[str, ModelCapacity] = {}
    for name, entry in document["models"].items():
        load_s = entry.get("load_s_p50")
        capacity = ModelCapacity(
            int(entry["free_cards"]), int(entry.get("waiting", 0)), None if load_s is None else float(load_s), bool(entry.get("failing"))
        )
        for alias in (name, *entry.get("aliases", [])):
            models[alias] = capacity
    return Snapshot(bool(document.get("draining")), int(document.get("queue", 0)), models)

"""A core for tests of the data plane alone: cards are a counter, a worker is a socket, every wait can be held open by the test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lease_pool.config import CardConfig, ModelConfig, PoolConfig
from lease_pool.types import Demand, Endpoint, Refused

TOKEN = "token-one-1f6b"
SECOND_TOKEN = "token-two-9c2e"
CHAT = {"model": "t3-code", "messages": [{"role": "user", "content": "hi"}]}


def make_config(folder: Path, **changes: Any) -> PoolConfig:
    """A pool of two cards and two models; `changes` go to the top level, `bounds` included."""
    token_file = folder / "pool.token"
    if not token_file.exists():
        token_file.write_text(f"{TOKEN}\n\n{SECOND_TOKEN}\n")
    models = {
        "chat-model": {"backend": "command", "memory_mib": 100, "argv": ["x"], "endpoints": ["chat", "completions", "responses"], "aliases": ["t3-code"]},
        "embed-model": {"backend": "command", "memory_mib": 100, "argv": ["x"], "endpoints": ["embeddings", "rerank", "images"], "aliases": ["embed"]},
    }  # fmt: skip
    data = {
        "token_file": str(token_file),
        "state_dir": str(folder),
        "runtime_dir": str(folder),
        "supervisor": "process",
        "card_source": "declared",
        "cards": [{"slot": slot, "uuid": f"GPU-{slot}", "memory_mib": 1000} for slot in ("c0", "c1")],
        "models": models,
    }
    return PoolConfig.model_validate(data | changes)


class FakeGrant:
    """One share of the fake lease; notes what the data plane says about the worker."""

    def __init__(self, core: FakeCore, card: CardConfig, lease: str) -> None:
        self.core, self.card, self.lease = core, card, lease
        self.endpoint = core.endpoint
        self.queued_s, self.load_s = 0.012, 0.345
        self.first_bytes = 0

    def first_byte(self) -> None:
        self.first_bytes += 1

    def worker_failed(self, why: str) -> None:
        self.core.failures.append(why)

    async def worker_gone(self) -> str:
        await self.core.worker_ended.wait()
        return "signal 9"


class FakeCore:
    """`queue_gate` and `load_gate` hold requests while cleared; `refusals` are raised at admission or in the queue; `active` are leases held now."""

    def __init__(self, config: PoolConfig, endpoint: Endpoint, cards: int = 1000) -> None:
        self.config, self.endpoint = config, endpoint
        self.draining = False
        self.refuse_admission: Refused | None = None
        self.refuse_in_queue: Refused | None = None
        self.queue_gate, self.load_gate, self.worker_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.queue_gate.set()
        self.load_gate.set()
        self.load_s = 0.0
        self.waiting = 0
        self.active: set[str] = set()
        self.demands: list[Demand] = []
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.grants: list[FakeGrant] = []
        self.answers: Counter[tuple[str, int]] = Counter()
        self._cards = asyncio.Semaphore(cards)
        self._ids = itertools.count()

    def resolve(self, name: str) -> ModelConfig | None:
        return self.config.resolve(name)

    def admit(self, model: str) -> None:
        if self.draining:
            raise Refused(503, "draining", "the pool is draining", 7)
        if self.refuse_admission is not None:
            raise self.refuse_admission

    @contextlib.asynccontextmanager
    async def lease(self, demand: Demand) -> AsyncIterator[FakeGrant]:
        self.admit(demand.model)
        self.demands.append(demand)
        lease = f"l{next(self._ids)}"
        self.waiting += 1
        try:
            if demand.max_wait_s == 0 and self._cards.locked():
                raise Refused(429, "no_card_free", "no card is free", 3)
            await self.queue_gate.wait()
            if self.refuse_in_queue is not None:
                raise self.refuse_in_queue
            async with self._cards:
                self.waiting -= 1
                self.active.add(lease)
                try:
                    await self.load_gate.wait()
                    if self.load_s:
                        await asyncio.sleep(self.load_s)
                    self.grants.append(FakeGrant(self, self.config.cards[0], lease))
                    yield self.grants[-1]
                finally:
                    self.active.discard(lease)
                    self.waiting += 1
        except (asyncio.CancelledError, ConnectionError):
            self.outcomes["cancelled"] += 1
            raise
        except Refused as refused:
            self.outcomes[refused.code] += 1
            raise
        except Exception as error:
            self.outcomes[type(error).__name__] += 1
            raise
        else:
            self.outcomes["ok"] += 1
        finally:
            self.waiting -= 1

    def ready(self) -> dict[str, Any]:
        return {"ready": not self.draining, "draining": self.draining, "rebooting": None}

    def capacity(self) -> dict[str, Any]:
        return {"draining": self.draining, "queue": self.waiting, "models": {}}

    def models(self) -> list[ModelConfig]:
        return list(self.config.models.values())

    def answered(self, endpoint: str, status: int) -> None:
        self.answers[endpoint, status] += 1

    async def metrics(self) -> bytes:
        return b"# HELP x y\n# TYPE x gauge\nx 1\n"

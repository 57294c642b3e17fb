"""The real core and the real data plane in the test's own process, on cards whose workers are timers and one scripted socket: a load costs no process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lease_pool.config import CardConfig, PoolConfig
from lease_pool.core import PoolCore
from lease_pool.data_plane import DataPlane, make_server
from lease_pool.holds import Holds
from lease_pool.journal import Journal
from lease_pool.types import CardState, Endpoint, Found, IdleState, LaunchSpec

from tests.support.worker_fake_core import TOKEN
from tests.support.worker_rig import Client, connected, until
from tests.support.worker_scripted import Behaviour, Received, ScriptedWorker, model_server, response


@dataclass
class TimedOccupancy:
    """One worker's time on a card: every step takes a random moment up to `pause_s`."""

    supervisor: TimedSupervisor
    slot: str
    endpoint: Endpoint
    pid: int | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def freed(self) -> None:
        await self.supervisor.pause()

    async def exited(self) -> str:
        await self.over.wait()
        return "exit 0"

    async def end(self) -> None:
        await self.supervisor.pause()
        self.over.set()
        self.supervisor.occupied.pop(self.slot, None)

    async def returned(self) -> None:
        await self.supervisor.pause()


class TimedSupervisor:
    """`occupied` are the cards with a worker now; a second one on a card fails the test."""

    def __init__(self, socket: Path, pause_s: float, rng: random.Random) -> None:
        self.occupied: dict[str, TimedOccupancy] = {}
        self._socket, self._pause_s, self._rng = socket, pause_s, rng

    async def pause(self) -> None:
        await asyncio.sleep(self._rng.random() * self._pause_s)

    async def occupy(self, card: CardConfig, spec: LaunchSpec) -> TimedOccupancy:
        assert card.slot not in self.occupied, "two workers on one card"
        self.occupied[card.slot] = TimedOccupancy(self, card.slot, Endpoint(self._socket))
        return self.occupied[card.slot]

    async def survey(self, card: CardConfig) -> Found:
        return Found(card.slot, False, None, IdleState(active=True, alive=None))

    async def start_idle(self, card: CardConfig) -> None:
        return

    async def stop_idle(self, card: CardConfig) -> None:
        return

    async def hold(self, card: CardConfig, held: bool) -> None:
        return


@dataclass
class Inside:
    core: PoolCore
    plane: DataPlane
    worker: ScriptedWorker
    supervisor: TimedSupervisor

    async def connect(self) -> Client:
        return await connected(self.plane)

    async def ask(self, data: bytes) -> Any:
        client = await self.connect()
        try:
            await client.send(data)
            return await asyncio.wait_for(client.answer(), 20)
        finally:
            client.close()

    def requests(self) -> list[dict[str, Any]]:
        """The journal's requests so far."""
        return [line for line in map(json.loads, self.core.state.journal.kept()) if line["event"] == "request"]

    @property
    def wanted(self) -> list[str]:
        """Whose request is in line, loads or runs, and whose card is not yet on its way home."""
        on_cards = [waiter.demand.request for lease in self.core.state.leases.values() for waiter in lease.members]
        return [waiter.demand.request for waiter in self.core.state.queue] + on_cards

    async def left_by_all(self, seconds: float = 2.0) -> None:
        """Nobody is left in line or on a card within `seconds` (the contract's two), and then every card comes home with nothing behind it."""
        home = (CardState.MINING, CardState.UNLOADING, CardState.RETURNING)
        await until(lambda: not self.wanted and all(card.state in home for card in self.core.state.cards.values()), seconds)
        await until(lambda: all(card.state is CardState.MINING for card in self.core.state.cards.values()))
        assert (self.core.state.leases, self.core.state.queue, self.supervisor.occupied) == ({}, [], {})


@contextlib.asynccontextmanager
async def pool_inside(
    folder: Path,
    cards: int,
    models: dict[str, dict[str, Any]],
    behaviour: Behaviour | None = None,
    *,
    pause_s: float = 0.02,
    **changes: Any,
) -> AsyncIterator[Inside]:
    """A pool of equal cards; `models` are completed to workers that fit them. A worker is ready, and answers, after up to `pause_s`."""
    (folder / "token").write_text(TOKEN + "\n")
    config = PoolConfig.model_validate(
        {
            "token_file": str(folder / "token"), "state_dir": str(folder), "runtime_dir": str(folder), "supervisor": "process", "card_source": "declared",
            "cards": [{"slot": f"c{n}", "uuid": f"GPU-{n}", "memory_mib": 1000} for n in range(cards)],
            "models": {name: {"backend": "command", "memory_mib": 100, "argv": ["x"], "endpoints": ["chat"]} | keys for name, keys in models.items()},
        } | changes
    )  # fmt: skip
    rng = random.Random(7)
    serve = behaviour or model_server(pause_s=pause_s / 2)

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        if request.line.startswith("GET "):
            await asyncio.sleep(rng.random() * pause_s)
            writer.write(response(b"{}"))
        else:
            await serve(request, writer)

    worker = ScriptedWorker(folder / "worker.sock", behave)
    supervisor = TimedSupervisor(worker.socket, pause_s, rng)
    journal, holds = Journal(folder), Holds(folder)
    journal.open()
    core = PoolCore(config, supervisor, journal, holds, None)  # type: ignore[arg-type]
    plane = make_server(core)
    async with worker.running():
        await core.start()
        await plane.start("127.0.0.1", 0)
        try:
            await until(lambda: all(card.state is CardState.MINING for card in core.state.cards.values()))
            yield Inside(core, plane, worker, supervisor)
        finally:
            core.begin_stop()
            core.end_all("the test is over")
            await plane.close(0.1)
            await core.stop()
            await journal.close()

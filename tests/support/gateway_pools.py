"""Two real pools, of four cards and of two, with workers that a test can hold; the real gateways stand in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.support import litellm_venv, pool_rig
from tests.support.gateway_fleet import BIG, SMALL, Cards, render
from tests.support.gateway_process import GatewayProcess
from tests.support.pool_rig import PYTHON, WORKERS, PoolRig

CARDS: Cards = {"gpu-a": [(12, []), (12, []), (12, []), (24, ["lone"])], "gpu-b": [(12, []), (24, [])]}  # each host has a big one
GATES = ("load", "answer", "stream")


class Gates:
    """Where the workers of both pools stop while a test holds them there (see workers/gated.py)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in GATES:
            (folder / name).touch()

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        with (self.folder / name).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@dataclass
class RealPools:
    """The pools by host, and what they say together."""

    pools: dict[str, PoolRig]
    gates: Gates
    folder: Path

    async def states(self) -> list[str]:
        return [card["state"] for status in await self._statuses() for card in status["cards"]]

    async def placed(self) -> tuple[int, int]:
        """Return how many requests have a ready worker, and how many queue."""
        statuses = await self._statuses()
        serving = sum(card["state"] == "serving" for status in statuses for card in status["cards"])
        return serving, sum(status["queue"] for status in statuses)

    async def _statuses(self) -> list[dict[str, Any]]:
        return await asyncio.gather(*(pool.status() for pool in self.pools.values()))

    async def until(self, condition: Callable[[], Any], what: str, bound_s: float = 10) -> None:
        await self.pools["gpu-a"].until(condition, what, bound_s)

    async def until_placed(self, count: int, bound_s: float = 10) -> None:
        """Wait until so many requests, no more and no fewer, have a ready worker or queue."""

        async def all_placed() -> bool:
            return sum(await self.placed()) == count

        await self.until(all_placed, f"{count} requests have a worker or queue", bound_s)

    async def until_loading(self) -> None:
        async def loading() -> bool:
            return "loading" in await self.states()

        await self.until(loading, "a worker loads")

    async def until_home(self, bound_s: float = 10) -> None:
        """Wait until every card is back with its idle workload."""

        async def home() -> bool:
            return set(await self.states()) == {"mining"}

        await self.until(home, "all cards are home", bound_s)

    async def requests(self) -> list[dict[str, Any]]:
        """Return the journals' request events, of both pools."""
        journals = await asyncio.gather(*(pool.events("request") for pool in self.pools.values()))
        return [event for journal in journals for event in journal]

    def gateway(self, name: str, *, shuffle: bool = False, ports: Mapping[str, int] | None = None) -> GatewayProcess:
        """Return a gateway in front of the pools, not yet started. shuffle: LiteLLM chooses the host, the guard does not; ports: of what stands
        before the pools, if anything does."""
        urls = {host: f"http://127.0.0.1:{(ports or {}).get(host, pool.port)}" for host, pool in self.pools.items()}
        return gateway_before(urls, pool_rig.TOKEN, self.folder / name, CARDS, shuffle=shuffle)


def gateway_before(pools: Mapping[str, str], token: str, folder: Path, cards: Cards, *, shuffle: bool = False) -> GatewayProcess:
    """Return a gateway in front of pools at these addresses, not yet started; `folder` is made for it."""
    folder.mkdir()
    render(folder, pools, "http://127.0.0.1:9", cards=cards)
    extra = {"FLEET_POOL_TOKEN": token}
    if shuffle:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["litellm_settings"]["callbacks"] = ["tests.support.gateway_layers.guard"]
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        extra["GATEWAY_LAYERS_OFF"] = "filter"
    return GatewayProcess(litellm_venv.python(), folder, extra)


@contextlib.asynccontextmanager
async def real_pools(folder: Path, **bounds: float) -> AsyncIterator[RealPools]:
    """Both pools, running; `bounds`: other than the rig's own, by their names in pool.yml."""
    gates = Gates(folder / "gates")
    made = {host: _pool(cards, gates, bounds) for host, cards in CARDS.items()}
    try:
        await asyncio.gather(*(pool.start() for pool in made.values()))
        yield RealPools(made, gates, folder)
    finally:
        left = await asyncio.gather(*(pool.end() for pool in made.values()))
    assert not any(left), f"workers left behind: {left}"


@contextlib.asynccontextmanager
async def running(*gateways: GatewayProcess) -> AsyncIterator[aiohttp.ClientSession]:
    try:
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        async with aiohttp.ClientSession() as session:
            yield session
    finally:
        await asyncio.gather(*(gateway.stop() for gateway in gateways))


def _pool(cards: list[tuple[int, list[str]]], gates: Gates, bounds: dict[str, float]) -> PoolRig:
    argv = [PYTHON, "-I", "-S", str(WORKERS / "gated.py"), "--socket", "{socket}", "--key-file", "{api_key_file}", str(gates.folder)]

    def model(gib: int, *aliases: str, **keys: Any) -> dict[str, Any]:
        endpoints = ["chat", "completions", "responses"]
        return {"backend": "command", "argv": argv, "memory_mib": gib * 1024, "endpoints": endpoints, "aliases": list(aliases)} | keys

    models = {
        "small": model(SMALL, "t3-smart", "t4-router"),
        "other": model(SMALL, "t3-code"),
        "big": model(BIG, "t3-plan"),
        "embed": model(SMALL, "t4-embedding", endpoints=["embeddings"]),
        "rank": model(SMALL, "t4-rerank", endpoints=["rerank"]),
        "paint": model(SMALL, "t3-image", endpoints=["images"]),
        "lone": model(SMALL, "t3-lone", labels=["lone"]),
    }
    cards_of_host = [
        {"slot": f"c{n}", "uuid": f"GPU-{n}", "memory_mib": gib * 1024, "labels": labels} for n, (gib, labels) in enumerate(cards)
    ]
    rig = PoolRig(len(cards), models, bounds=bounds)
    rig.config["cards"] = cards_of_host
    rig.write()
    return rig

"""The pool cannot make a process for a while (no descriptor to be had): the guard that a card needs is tried again within its bound, and no card is lost."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.support.pool_rig import TOKEN, Maker, PoolRig, model


@asynccontextmanager
async def connected(rig: PoolRig) -> AsyncIterator[aiohttp.ClientSession]:
    """A session whose one connection to the pool is open already: a pool without descriptors accepts no other."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        async with session.get(f"http://127.0.0.1:{rig.port}/health") as response:
            await response.read()
        yield session


async def ask(rig: PoolRig, session: aiohttp.ClientSession) -> int:
    async with session.post(f"http://127.0.0.1:{rig.port}/v1/chat/completions", json={"model": "m"}) as response:
        await response.read()
        return response.status


def descriptors(rig: PoolRig, soft: int | None) -> None:
    """Bound the pool's descriptors; None: as many as it may have."""
    assert rig.process is not None
    _, hard = resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (hard if soft is None else soft, hard))


def used_by(rig: PoolRig) -> set[int]:
    assert rig.process is not None
    return {int(path.name) for path in Path(f"/proc/{rig.process.pid}/fd").iterdir()}


def too_few_descriptors(rig: PoolRig) -> None:
    """Enough to write a file, too few for a process and the pipes to it."""
    used = used_by(rig)
    free = [number for number in range(len(used) + 2) if number not in used]
    descriptors(rig, free[1] + 1)


async def test_a_guard_that_cannot_be_made_at_first_is_made_within_the_bound(rigs: Maker) -> None:
    rig = rigs(1, {"m": model()}, bounds={"free_s": 4})
    await rig.start()
    async with connected(rig) as session:
        too_few_descriptors(rig)
        asking = asyncio.create_task(ask(rig, session))
        await asyncio.sleep(1)
        descriptors(rig, None)
        assert await asking == 200
    await rig.until_state("mining")


async def test_a_card_whose_guard_could_not_be_made_is_quarantined_with_the_reason_and_can_be_resumed(rigs: Maker) -> None:
    rig = rigs(1, {"m": model()}, bounds={"free_s": 1})
    await rig.start()
    used = len(used_by(rig))
    async with connected(rig) as session:
        too_few_descriptors(rig)
        assert await ask(rig, session) == 503
        descriptors(rig, None)
    card = await rig.until_state("quarantined")
    assert "its guard process could not be started: [Errno 24] Too many open files" in card["reason"]
    assert not list((rig.folder / "run" / "launch").iterdir())
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.until_state("mining")
    assert (await rig.ask())[0] == 200
    await rig.until_state("mining")
    await rig.until(lambda: len(used_by(rig)) <= used, "no descriptor is lost")


async def test_a_card_between_two_guards_is_not_lost_when_the_second_cannot_be_made(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "ignore-term")}, bounds={"free_s": 1, "stop_s": 2})
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("unloading")
    async with connected(rig) as session:
        asking = asyncio.create_task(ask(rig, session))
        await asyncio.sleep(0.2)
        too_few_descriptors(rig)
        assert await asking == 503
        descriptors(rig, None)
    await rig.until_state("quarantined")
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.until_state("mining")
    assert rig.guards() == []
    assert (await rig.ask())[0] == 200

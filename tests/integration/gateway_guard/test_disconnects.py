"""A client that leaves gives its card back, whatever it had asked for and wherever the request was."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.gateway_cases import DISCONNECTS
from tests.support.gateway_rig import Fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("name", DISCONNECTS)
async def test_a_client_that_leaves_gives_its_card_back(fleet: Fleet, name: str) -> None:
    path, model, body, phase = DISCONNECTS[name]
    taken = {}
    logged = fleet.gateway.log.stat().st_size
    for host, pool in fleet.pools.items():
        pool.queue_s = 60
        if phase == "queued":
            taken[host] = [pool._free.pop() for _ in pool.free]
        elif phase == "gate":
            pool.gate = asyncio.Event()
        else:
            pool.tokens, pool.token_s = 1000, 0.05
    request = asyncio.create_task(fleet.ask(model, path=path, **body))
    async with asyncio.timeout(10):
        while sum(pool.open for pool in fleet.pools.values()) == 0:  # noqa: ASYNC110  # the sum of two doubles
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
    assert not request.done()
    request.cancel()
    left = time.monotonic()
    try:
        async with asyncio.timeout(2):
            for pool in fleet.pools.values():
                await pool.all_closed()
        print(f"{name}: released after {time.monotonic() - left:.3f} s")
    finally:
        for host, cards in taken.items():
            for card in cards:
                fleet.pools[host]._give(card)
        await asyncio.gather(request, return_exceptions=True)
    assert [len(pool.free) for pool in fleet.pools.values()] == [3, 3]
    assert b"Traceback" not in fleet.gateway.log.read_bytes()[logged:]


async def test_two_hundred_clients_that_leave_at_once_leave_nothing_behind(fleet: Fleet) -> None:
    for pool in fleet.pools.values():
        pool.token_s, pool.tokens = 0.02, 200
    for _ in range(5):
        requests = [asyncio.create_task(fleet.ask("t3-smart", stream=True)) for _ in range(40)]
        await asyncio.sleep(0.3)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
    async with asyncio.timeout(5):
        for pool in fleet.pools.values():
            await pool.all_closed()
    assert [len(pool.free) for pool in fleet.pools.values()] == [3, 3]
    for pool in fleet.pools.values():
        pool.reset()
    assert (await fleet.ask("t3-smart")).status == 200

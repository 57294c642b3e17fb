"""How many requests start without queueing when enough cards are free: with the guard's routing, with two gateways, and with LiteLLM's own shuffle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import litellm_venv
from tests.support.gateway_cases import rounds
from tests.support.gateway_process import GatewayProcess
from tests.support.gateway_rig import Fleet, start_fleet, stop_fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def started_at_once(fleet: Fleet, gateways: list[GatewayProcess], count: int) -> tuple[int, int]:
    """Return how many requests started without queueing, and how many there were."""
    at_once = total = 0
    for number, wanted in enumerate(rounds(count, seed=len(gateways))):
        for pool in fleet.pools.values():
            pool.reset()
            pool.gate = asyncio.Event()
        requests = []
        for index, alias in enumerate(wanted):
            fleet.gateway = gateways[(index + number) % len(gateways)]
            requests.append(asyncio.create_task(fleet.ask(alias)))
        async with asyncio.timeout(20):
            while sum(pool.open for pool in fleet.pools.values()) < len(wanted):  # noqa: ASYNC110  # the sum of two doubles
                await asyncio.sleep(0.01)
        entries = [item for items in fleet.pool_requests().values() for item in items]
        total += len(wanted)
        at_once += len(wanted) - sum(item["queued"] for item in entries)
        for pool in fleet.pools.values():
            assert pool.gate is not None
            pool.gate.set()
        assert {answer.status for answer in await asyncio.gather(*requests)} == {200}
        await asyncio.sleep(0.4)  # the fleet is idle again before the next round, and the gateways know it
    return at_once, total


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_free_cards_are_used_before_anyone_queues(tmp_path: Path) -> None:
    shares: dict[str, float] = {}
    fleet = await start_fleet(tmp_path)
    second = GatewayProcess(litellm_venv.python(), tmp_path)
    try:
        await second.start()
        first = fleet.gateway
        for name, gateways in (("one gateway", [first]), ("two gateways", [first, second])):
            await started_at_once(fleet, gateways, 2)  # both have read the capacity
            at_once, total = await started_at_once(fleet, gateways, 60)
            shares[name] = at_once / total
            print(f"{name}: {at_once} of {total} started without queueing ({shares[name]:.1%})")
        fleet.gateway = first
    finally:
        await second.stop()
        await stop_fleet(fleet)
    assert shares["one gateway"] >= 0.99
    assert shares["two gateways"] >= 0.95


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_litellms_own_shuffle_is_what_it_is_compared_with(tmp_path: Path) -> None:
    def plain(config: dict[str, dict[str, object]]) -> None:
        config["litellm_settings"]["callbacks"] = ["tests.support.gateway_layers.guard"]

    fleet = await start_fleet(tmp_path, extra={"GATEWAY_LAYERS_OFF": "filter"}, change=plain)
    try:
        at_once, total = await started_at_once(fleet, [fleet.gateway], 60)
    finally:
        await stop_fleet(fleet)
    print(f"simple-shuffle: {at_once} of {total} started without queueing ({at_once / total:.1%})")
    assert at_once < total

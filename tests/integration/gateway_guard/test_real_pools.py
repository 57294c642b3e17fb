"""The gateway before two real pools with six cards: who starts without queueing, and that a client that leaves gives its card back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from gateway_guard.capacity import BUSY_PERIOD_S

from tests.support.gateway_cases import DISCONNECTS, ENDPOINTS, rounds
from tests.support.gateway_pools import RealPools, real_pools, running
from tests.support.gateway_rig import GatewayClient

pytestmark = pytest.mark.asyncio(loop_scope="session")
AT_ONCE_S = 0.1  # between a request's arrival at its pool and its card, when one was free: its body is read on a busy machine
LEFT_S = 2.0  # DESIGN.md 4.3
LOADING = {"chat, while the worker loads": ("/v1/chat/completions", "t3-smart", {}, "load")}
# While LiteLLM handles an event nobody waits for the next one: which of the two a client's leaving meets is chance.
MORE_STREAMS = {
    f"{kind} stream, as its first event arrives, {n}": DISCONNECTS[f"{kind} stream, in the middle"]
    for kind in ("response", "message")
    for n in range(1, 6)
}
CASES = DISCONNECTS | LOADING | MORE_STREAMS


@dataclass
class RealFleet:
    """The pools, and a client of the gateway in front of them."""

    pools: RealPools
    client: GatewayClient


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealFleet]:
    async with real_pools(tmp_path_factory.mktemp("real")) as pools:
        gateway = pools.gateway("one")
        async with running(gateway) as session:
            yield RealFleet(pools, GatewayClient(session, gateway))


@pytest.mark.parametrize(("path", "alias", "body"), ENDPOINTS)
async def test_each_endpoint_is_served_by_a_real_pool(fleet: RealFleet, path: str, alias: str, body: dict[str, Any]) -> None:
    known = {event["request"] for event in await fleet.pools.requests()}
    answer = await fleet.client.ask(alias, path=path, **body)
    assert answer.status == 200, answer.text
    if path.endswith("/rerank"):
        assert answer.json["results"] == [{"index": 0, "relevance_score": 0.5}]
    elif path.endswith("/generations"):
        assert answer.json["data"][0]["b64_json"] == "aGVsbG8="
    await fleet.pools.until_home()
    (event,) = [event for event in await fleet.pools.requests() if event["request"] not in known]
    assert (event["outcome"], event["alias"], event["principal"], event["class"]) == ("ok", alias, "agent", "restricted")
    assert answer.headers["llm_provider-x-gpu-fleet-lease"] == event["lease"]


async def started_at_once(pools: RealPools, clients: list[GatewayClient], count: int) -> float:
    """Return the share of the requests of so many rounds that had a card at once, as the pools' journals tell it."""
    await _rounds(pools, clients, 2, seed=0)  # the gateways have read the capacity
    known = {event["request"] for event in await pools.requests()}
    total = await _rounds(pools, clients, count, seed=len(clients))
    events = [event for event in await pools.requests() if event["request"] not in known]
    waits = [event["seconds"]["queued"] for event in events if event["outcome"] == "ok"]
    assert len(waits) == total
    at_once = sum(wait < AT_ONCE_S for wait in waits)
    print(f"{at_once} of {total} at once, {len(events) - total} refusals by a pool without a free card, longest wait {max(waits):.3f} s")
    return at_once / total


async def _rounds(pools: RealPools, clients: list[GatewayClient], count: int, seed: int) -> int:
    """Ask in so many rounds, each beginning with an idle fleet that the gateways know to be idle; return how many requests there were."""
    asked = 0
    for number, wanted in enumerate(rounds(count, seed)):
        with pools.gates.held("answer"):  # nobody's end makes room for another
            asking = [asyncio.create_task(clients[(i + number) % len(clients)].ask(alias)) for i, alias in enumerate(wanted)]
            await pools.until_placed(len(wanted))
            if (await pools.placed())[1]:
                await asyncio.sleep(2 * AT_ONCE_S)  # who queues now shows in the journal
        assert {answer.status for answer in await asyncio.gather(*asking)} == {200}
        asked += len(wanted)
        await pools.until_home()
        await asyncio.sleep(1.2 * BUSY_PERIOD_S)  # nothing tells from outside that the gateways have read it
    return asked


async def test_in_a_few_rounds_free_cards_of_real_pools_are_used_before_anyone_queues(fleet: RealFleet) -> None:
    assert await started_at_once(fleet.pools, [fleet.client], 20) >= 0.99


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_free_cards_of_real_pools_are_used_before_anyone_queues(fleet: RealFleet) -> None:
    one = await started_at_once(fleet.pools, [fleet.client], 60)
    second, plain = fleet.pools.gateway("two"), fleet.pools.gateway("shuffle", shuffle=True)
    async with running(second) as session:
        two = await started_at_once(fleet.pools, [fleet.client, GatewayClient(session, second)], 60)
    async with running(plain) as session:
        shuffle = await started_at_once(fleet.pools, [GatewayClient(session, plain)], 60)
    print(f"started without queueing: one gateway {one:.1%}, two gateways {two:.1%}, simple-shuffle {shuffle:.1%}")
    assert one >= 0.99
    assert two >= 0.95
    assert shuffle < two


@pytest.mark.parametrize("name", CASES)
async def test_a_client_that_leaves_gives_the_card_of_a_real_pool_back(fleet: RealFleet, name: str) -> None:
    path, alias, body, phase = CASES[name]
    pools = fleet.pools
    known = {event["request"] for event in await pools.requests()}
    begun = pools.gates.folder / "begun"
    begun.unlink(missing_ok=True)
    owners = [pool for pool in pools.pools.values() for _ in pool.config["cards"] if phase == "queued"]
    with pools.gates.held({"middle": "stream", "load": "load"}.get(phase, "answer")):
        holding = [asyncio.create_task(pool.ask({"model": "t3-code"})) for pool in owners]
        await pools.until_placed(len(holding))
        asking = asyncio.create_task(fleet.client.ask(alias, path=path, **body))
        if phase == "load":
            await pools.until_loading()
        else:
            await pools.until_placed(len(holding) + 1)
        if phase == "middle":
            await pools.until(begun.exists, "the stream has begun")
        assert await pools.placed() == {"queued": (len(holding), 1), "load": (0, 0)}.get(phase, (1, 0))
        assert not asking.done()
        asking.cancel()
        left = time.monotonic()
        await pools.until_placed(len(holding), LEFT_S)
        if not holding:
            await pools.until_home(LEFT_S - (time.monotonic() - left))
        print(f"{name}: given back after {time.monotonic() - left:.3f} s")
    await asyncio.gather(asking, return_exceptions=True)
    assert [status for status, _ in await asyncio.gather(*holding)] == [200] * len(holding)
    await pools.until_home()
    over = [event for event in await pools.requests() if event["request"] not in known and event["principal"] == "agent"]
    assert [event["outcome"] for event in over if event["outcome"] != "no_free_card"] == ["client_left"]

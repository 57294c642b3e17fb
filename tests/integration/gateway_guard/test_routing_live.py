"""Full pools, hosts that fail and come back, and who retries: what a client sees, and how often a pool is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.gateway_cases import ENDPOINTS
from tests.support.gateway_rig import Answer, Fleet
from tests.support.pool_double import PoolDouble

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def known_to_the_gateway() -> None:
    """Wait until the gateway has read the pools' capacity again: it does so every quarter of a second while it is used."""
    await asyncio.sleep(0.6)


def occupy(fleet: Fleet) -> Callable[[], None]:
    """Take every card; the returned function gives them back."""
    taken = {name: [pool._free.pop() for _ in pool.free] for name, pool in fleet.pools.items()}

    def give_back() -> None:
        for name, cards in taken.items():
            for card in cards:
                fleet.pools[name]._give(card)

    return give_back


async def timed(request: Awaitable[Answer]) -> tuple[Answer, float]:
    started = time.monotonic()
    return await request, time.monotonic() - started


def asked(fleet: Fleet) -> dict[str, int]:
    return {name: len(items) for name, items in fleet.pool_requests().items()}


async def test_a_request_to_a_full_fleet_waits_in_one_queue_and_then_gets_429(fleet: Fleet) -> None:
    give_back = occupy(fleet)
    try:
        for pool in fleet.pools.values():
            pool.queue_s = 1.0
        await fleet.ask("t3-smart")  # wakes the reader of the capacity
        await known_to_the_gateway()
        for pool in fleet.pools.values():
            pool.requests.clear()
        answer, seconds = await timed(fleet.ask("t3-smart"))
    finally:
        give_back()
    assert answer.status == 429
    assert answer.headers["retry-after"] == "2"
    assert sum(asked(fleet).values()) == 1, "it hopped"
    assert 0.9 < seconds < 3
    print(f"full fleet: 429 after {seconds:.2f} s with queue_s 1, Retry-After {answer.headers['retry-after']}")


async def test_a_waiting_request_is_served_when_a_card_comes_back(fleet: Fleet) -> None:
    give_back = occupy(fleet)
    await known_to_the_gateway()
    request = asyncio.create_task(fleet.ask("t3-smart"))
    async with asyncio.timeout(5):
        while not any(item["queued"] for items in fleet.pool_requests().values() for item in items):  # noqa: ASYNC110  # either of two doubles
            await asyncio.sleep(0.02)
    give_back()
    assert (await request).status == 200


async def test_a_full_pools_retry_after_cools_nobody(fleet: Fleet) -> None:
    for pool in fleet.pools.values():
        pool.fault, pool.fault_headers = 429, {"Retry-After": "60"}
    assert (await fleet.ask("t3-smart")).status == 429
    for pool in fleet.pools.values():
        pool.reset()
    answer, seconds = await timed(fleet.ask("t3-smart"))
    assert answer.status == 200
    assert seconds < 1


async def test_a_stale_belief_costs_one_refusal_and_not_the_request(fleet: Fleet) -> None:
    """The gateway believes that gpu-a has a card, somebody else has just taken it: the other host is asked, nobody waits."""
    await fleet.ask("t3-smart")
    await known_to_the_gateway()
    pool = fleet.pools["gpu-a"]
    cards = [pool._free.pop() for _ in pool.free]
    try:
        answers = await asyncio.gather(*(fleet.ask("t3-smart") for _ in range(3)))
    finally:
        for card in cards:
            pool._give(card)
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert not any(item["queued"] for items in fleet.pool_requests().values() for item in items)


@pytest.mark.parametrize("stream", [False, True])
async def test_with_no_host_reachable_the_client_is_told_to_come_back(fleet: Fleet, stream: bool) -> None:
    ports = {name: pool.port for name, pool in fleet.pools.items()}
    for pool in fleet.pools.values():
        await pool.stop()
    try:
        answer, seconds = await timed(fleet.ask("t3-smart", stream=stream))
    finally:
        for name, pool in fleet.pools.items():
            await pool.start(ports[name])
    print(f"no host reachable: {answer.status} after {seconds:.2f} s, Retry-After {answer.headers.get('retry-after')}, {answer.text}")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "2"
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert seconds < 7


@pytest.mark.parametrize("status", [400, 429])
async def test_after_an_unreachable_host_the_next_hosts_own_answer_is_what_the_client_gets(fleet: Fleet, status: int) -> None:
    down, up = list(fleet.pools.values())[:2]
    taken = [up._free.pop() for _ in up.free]  # the host that goes down is the one with a free card
    up.fault = status
    port = down.port
    try:
        await fleet.ask("t3-smart")  # wakes the reader of the capacity
        await known_to_the_gateway()
        for pool in fleet.pools.values():
            pool.requests.clear()
        await down.stop()
        answer = await fleet.ask("t3-smart")
    finally:
        await down.start(port)
        for card in taken:
            up._give(card)
    assert len(up.requests) == 1
    assert answer.status == status, answer.text


async def test_with_no_host_reachable_and_a_hosted_model_that_fails_the_client_is_told_to_come_back(fleet: Fleet) -> None:
    ports = {name: pool.port for name, pool in fleet.pools.items()}
    for pool in fleet.pools.values():
        await pool.stop()
    fleet.hosted.status = 400
    try:
        answer = await fleet.ask("t3-smart", key="public-agent", data_class="public")
    finally:
        for name, pool in fleet.pools.items():
            await pool.start(ports[name])
    assert len(fleet.hosted.requests) == 1
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(
    ("alias", "local_down", "told"),
    [
        ("t1-smart", False, "no hosted provider can be reached now"),
        ("t3-smart", True, "no host of this model and no hosted provider can be reached now"),
    ],
)
async def test_a_hosted_provider_that_cannot_be_reached_is_named_as_one(fleet: Fleet, alias: str, local_down: bool, told: str) -> None:
    down = [*(fleet.pools.values() if local_down else ()), fleet.hosted]
    ports = [double.port for double in down]
    for double in down:
        await double.stop()
    try:
        answer = await fleet.ask(alias, key="public-agent", data_class="public")
    finally:
        for double, port in zip(down, ports, strict=True):
            await double.start(port)
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert answer.json["error"]["message"] == told


@pytest.mark.parametrize(
    ("path", "alias", "body"), [case for case in ENDPOINTS if case[0] in ("/v1/rerank", "/v1/images/generations", "/v1/embeddings")]
)
async def test_other_routes_with_no_host_reachable_say_the_same(fleet: Fleet, path: str, alias: str, body: dict[str, Any]) -> None:
    ports = {name: pool.port for name, pool in fleet.pools.items()}
    for pool in fleet.pools.values():
        await pool.stop()
    try:
        answer, seconds = await timed(fleet.ask(alias, path=path, **body))
    finally:
        for name, pool in fleet.pools.items():
            await pool.start(ports[name])
    assert (answer.status, answer.headers["retry-after"]) == (503, "2"), answer.text
    assert answer.json["error"]["message"] == "no host of this model can be reached now"
    assert seconds < 2


@pytest.mark.parametrize("fault", [502, 500, 503, "reset"])
async def test_a_replica_that_fails_leaves_its_group_and_comes_back_by_itself(fleet: Fleet, fault: int | str) -> None:
    broken = fleet.pools["gpu-a"]
    broken.fault = fault
    answers = [await fleet.ask("t3-code") for _ in range(20)]
    assert {answer.status for answer in answers} == {200}
    assert asked(fleet)["gpu-a"] <= 6, "it stayed in its group"
    broken.reset()
    async with asyncio.timeout(20):
        while asked(fleet)["gpu-a"] == 0:
            assert (await fleet.ask("t3-code")).status == 200
            await asyncio.sleep(0.1)


async def test_a_draining_host_gets_nothing_while_there_is_another(fleet: Fleet) -> None:
    fleet.pools["gpu-a"].draining = True
    await fleet.ask("t3-smart")
    await known_to_the_gateway()
    fleet.pools["gpu-a"].requests.clear()
    assert {(await fleet.ask("t3-smart")).status for _ in range(10)} == {200}
    assert asked(fleet)["gpu-a"] == 0


@pytest.mark.parametrize(("path", "alias", "body"), ENDPOINTS)
async def test_one_request_makes_at_most_three_attempts_one_after_the_other(
    fleet: Fleet, path: str, alias: str, body: dict[str, Any]
) -> None:
    for pool in fleet.pools.values():
        pool.fault, pool.fault_headers = 502, {"Retry-After": "7"}
    answer, seconds = await timed(fleet.ask(alias, path=path, **body))
    assert answer.status in (500, 502)
    assert 2 <= sum(asked(fleet).values()) <= 3
    assert seconds < 2, "it slept between them"


@pytest.mark.parametrize(
    ("path", "alias", "body"), [("/v1/images/generations", "t3-image", {"prompt": "x"}), ("/v1/chat/completions", "t3-smart", {})]
)
async def test_a_hosted_model_that_fails_is_asked_once(fleet: Fleet, path: str, alias: str, body: dict[str, Any]) -> None:
    fleet.hosted.status = 500
    for pool in fleet.pools.values():
        pool.fault = 502
    assert (await fleet.ask(alias, path=path, key="public-agent", data_class="public", **body)).status == 502
    assert len(fleet.left_the_fleet()) == 1
    assert sum(asked(fleet).values()) <= 3


@pytest.mark.parametrize("fault", [400, 404, 504])
async def test_what_may_have_run_or_is_the_clients_fault_is_not_tried_again(fleet: Fleet, fault: int) -> None:
    for pool in fleet.pools.values():
        pool.fault = fault
    answer = await fleet.ask("t4-router")
    assert answer.status >= 400
    assert sum(asked(fleet).values()) == 1


async def test_a_stream_that_breaks_off_is_told_and_not_run_again(fleet: Fleet) -> None:
    for pool in fleet.pools.values():
        pool.fault = "cut"
    answer = await fleet.ask("t3-smart", stream=True)
    assert answer.status == 200
    assert "error" in answer.text
    assert sum(asked(fleet).values()) == 1


async def test_a_node_alias_waits_for_its_host(fleet: Fleet) -> None:
    pool: PoolDouble = fleet.pools["gpu-a"]
    cards = [pool._free.pop() for _ in pool.free]
    pool.queue_s = 0.5
    try:
        answer, seconds = await timed(fleet.ask("gpu-a/t3-smart", key="operator"))
    finally:
        for card in cards:
            pool._give(card)
    assert answer.status == 429
    assert asked(fleet) == {"gpu-a": 1, "gpu-b": 0}
    assert seconds < 2, "it slept before giving up"

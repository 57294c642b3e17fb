"""What a client sees when things fail, and after how long: the table of docs/gateway.md, measured and printed.

The whole chain: nginx, the real LiteLLM, wires that can be cut, and two real pools with four cards and two.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from gateway_guard.probed_socket import SILENT_S

from tests.support.gateway_fleet import KEYS
from tests.support.gateway_front import MISSING, Front, is_installed
from tests.support.gateway_link import Link
from tests.support.gateway_pools import RealPools, real_pools, running
from tests.support.gateway_process import GatewayProcess
from tests.support.gateway_rig import Answer, GatewayClient
from tests.support.pool_rig import PoolRig

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.skipif(not is_installed(), reason=MISSING)]
QUEUE_S = 1.5
CONNECT_S = 2.0
BELIEVED_S = SILENT_S + 4.0  # a probe every two seconds tells, and the machine is busy
LEFT_S = 2.0  # DESIGN.md 4.3
KNOWN_S = 0.6  # the gateway reads a pool's capacity every quarter of a second while it is used


@dataclass
class Table:
    """What failed, what the client saw, and the seconds it took."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, client: str, seconds: str) -> None:
        self.rows.append((what, client, seconds))

    def lines(self) -> Iterator[str]:
        rows = [("what fails", "the client sees", "seconds"), *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


@dataclass
class Chain:
    """Everything between a client and the cards; `client` asks through nginx."""

    pools: RealPools
    links: dict[str, Link]
    gateway: GatewayProcess
    client: GatewayClient
    table: Table

    async def ask(self, alias: str = "t3-smart", **more: Any) -> tuple[Answer, float]:
        started = time.monotonic()
        return await self.client.ask(alias, **more), time.monotonic() - started

    async def in_a_row(self, count: int) -> list[tuple[Answer, float]]:
        return [await self.ask() for _ in range(count)]

    async def all_well(self) -> float:
        """Wait until both hosts serve through the gateway and all cards are home; return after how many seconds they served."""
        started = time.monotonic()
        for host in self.pools.pools:
            async with asyncio.timeout(20):
                while (await self.ask(f"{host}/t3-smart", key="operator"))[0].status != 200:  # noqa: ASYNC110  # the answer is the event
                    await asyncio.sleep(0.05)
        seconds = time.monotonic() - started
        await self.pools.until_home()
        return seconds

    async def asked(self, host: str) -> Counter[str]:
        """Count the requests of one host by their outcomes, as its journal tells it."""
        return Counter(event["outcome"] for event in await self.pools.pools[host].events("request"))

    async def begin_stream(self, alias: str = "t3-smart", key: str = "agent") -> asyncio.Task[tuple[str, float]]:
        """Ask for a stream; return, once its first event is at the client, the task that reads the rest and notes when it ended."""
        begun = asyncio.Event()
        reading = asyncio.create_task(self._read(alias, key, begun))
        beginning = asyncio.create_task(begun.wait())
        await asyncio.wait([reading, beginning], return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        assert not reading.done()
        return reading

    async def _read(self, alias: str, key: str, begun: asyncio.Event) -> tuple[str, float]:
        body = {"model": alias, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        headers = {"Authorization": f"Bearer {KEYS[key]}"}
        async with self.client.session.post(f"{self.client.gateway.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            text = b""
            async for line in response.content:
                text += line
                begun.set()
        return text.decode(), time.monotonic()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_chain(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Chain]:
    table = Table()
    async with real_pools(tmp_path_factory.mktemp("failures"), queue_s=QUEUE_S, queue=2) as pools:
        links = {host: Link(pool.port) for host, pool in pools.pools.items()}
        gateway = pools.gateway("one", ports={host: link.port for host, link in links.items()})
        front = Front(tmp_path_factory.mktemp("front"), gateway.port)
        await asyncio.gather(front.start(), *(link.start() for link in links.values()))
        try:
            async with running(gateway) as session:
                door: Any = SimpleNamespace(url=front.url)
                yield Chain(pools, links, gateway, GatewayClient(session, door), table)
        finally:
            await asyncio.gather(front.stop(), *(link.stop() for link in links.values()))
    capturing: Any = request.config.pluginmanager.get_plugin("capturemanager")
    with capturing.global_and_fixture_disabled():
        print("", *table.lines(), sep="\n")


@pytest_asyncio.fixture(loop_scope="session")
async def chain(shared_chain: Chain) -> AsyncIterator[Chain]:
    await shared_chain.all_well()
    yield shared_chain
    await asyncio.gather(*(link.restore() for link in shared_chain.links.values() if not link.works))


def told(answer: Answer) -> str:
    after = answer.headers.get("retry-after")
    return f"{answer.status}{f', Retry-After {after}' if after else ''}"


def counted(found: Sequence[tuple[Answer, float]]) -> str:
    statuses = Counter(answer.status for answer, _ in found)
    return ", ".join(f"{count} of {len(found)} answered {status}" for status, count in statuses.items())


def slowest(found: Sequence[tuple[Answer, float]]) -> float:
    return max(seconds for _, seconds in found)


def errors_in(stream: str) -> list[dict[str, Any]]:
    """Return the errors that a stream's events tell."""
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return [event["error"] for event in events if "error" in event]


async def test_all_cards_busy(chain: Chain) -> None:
    with chain.pools.gates.held("answer"):
        taking = [asyncio.create_task(pool.ask({"model": "small"})) for pool in chain.pools.pools.values() for _ in pool.config["cards"]]
        await chain.pools.until_placed(len(taking))
        await asyncio.sleep(KNOWN_S)
        waited, seconds = await chain.ask()
        queueing = [asyncio.create_task(pool.ask({"model": "small"})) for pool in chain.pools.pools.values() for _ in range(2)]
        await chain.pools.until_placed(len(taking) + len(queueing))
        refused, at_once = await chain.ask()
    await asyncio.gather(*taking, *queueing)
    chain.table.add(f"all cards busy (queue_s {QUEUE_S})", told(waited), f"{seconds:.2f}")
    chain.table.add("all cards busy, the queues full", told(refused), f"{at_once:.2f}")
    assert waited.status == refused.status == 429
    assert int(waited.headers["retry-after"]) >= 1
    assert int(refused.headers["retry-after"]) >= 1
    assert QUEUE_S <= seconds < QUEUE_S + 1
    assert at_once < 1


async def test_one_host_down(chain: Chain) -> None:
    await chain.links["gpu-a"].stop()
    found = await chain.in_a_row(10)
    for _ in range(3):
        found += await asyncio.gather(chain.ask(), chain.ask())
    await chain.links["gpu-a"].restore()
    back = await chain.all_well()
    chain.table.add("one host down (connections refused)", counted(found), f"slowest {slowest(found):.2f}, back in {back:.2f}")
    assert {answer.status for answer, _ in found} == {200}
    assert slowest(found) < CONNECT_S


async def test_one_host_powered_off(chain: Chain) -> None:
    await chain.in_a_row(4)
    await asyncio.gather(chain.ask(), chain.ask(), chain.ask())  # connections to both hosts are open and idle
    await chain.pools.until_home()
    await asyncio.sleep(KNOWN_S)
    await chain.links["gpu-a"].cut()
    found = list(await asyncio.gather(chain.ask(), chain.ask()))
    found += await chain.in_a_row(10)
    await chain.links["gpu-a"].restore()
    back = await chain.all_well()
    slow = [seconds for _, seconds in found if seconds > 1]
    chain.table.add(
        "one host powered off (packets dropped)", counted(found), f"slowest {slowest(found):.2f} ({len(slow)} over 1), back in {back:.2f}"
    )
    assert {answer.status for answer, _ in found} == {200}
    assert slowest(found) < CONNECT_S + 1.5
    assert len(slow) <= 2  # those that were sent before anyone could know


async def test_all_hosts_down(chain: Chain) -> None:
    await asyncio.gather(*(link.stop() for link in chain.links.values()))
    plain, streamed = await asyncio.gather(chain.ask(), chain.ask(stream=True))
    chain.table.add("all hosts down", told(plain[0]), f"{plain[1]:.2f}, a stream {streamed[1]:.2f}")
    for answer, seconds in (plain, streamed):
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        assert seconds < 1


async def test_all_hosts_powered_off_with_requests_under_way(chain: Chain) -> None:
    gates, second = chain.pools.gates, chain.pools.pools["gpu-b"]
    with gates.held("stream"):
        reading = await chain.begin_stream("gpu-a/t3-smart", "operator")
        with gates.held("answer"):
            elsewhere = [asyncio.create_task(second.ask({"model": "small"})) for _ in second.config["cards"]]
            await chain.pools.until_placed(1 + len(elsewhere))
            await asyncio.sleep(KNOWN_S)
            waiting = [
                asyncio.create_task(chain.ask(alias)) for alias in ("t3-lone", "t3-smart")
            ]  # both on gpu-a, the first can only be there
            await chain.pools.until_placed(1 + len(elsewhere) + len(waiting))
            started = time.monotonic()
            await asyncio.gather(*(link.cut() for link in chain.links.values()))
            new, seconds = await chain.ask()
        await chain.links["gpu-b"].restore()
        text, ended = await reading
        (alone, _), (elsewhere_again, _) = await asyncio.gather(*waiting)
        lost = time.monotonic() - started
    await asyncio.gather(*elsewhere)
    chain.table.add("all hosts powered off", told(new), f"{seconds:.2f}")
    chain.table.add("a host powered off in mid-stream", f"error event, code {errors_in(text)[0]['code']}", f"{ended - started:.2f}")
    chain.table.add("a host powered off before its answer", f"{told(elsewhere_again)}, from another host", f"{lost:.2f}")
    chain.table.add("the same, no other host has the model", told(alone), f"{lost:.2f}")
    assert (new.status, new.headers["retry-after"]) == (503, "2")
    assert elsewhere_again.status == 200
    assert (alone.status, alone.headers["retry-after"]) == (503, "2")
    assert seconds < 3 * CONNECT_S + 1
    assert max(ended - started, lost) < BELIEVED_S


async def test_hosts_that_drain(chain: Chain) -> None:
    first, second = chain.pools.pools.values()
    before = await chain.asked("gpu-a")
    await first.admin("POST", "/drain")
    found = await chain.in_a_row(8)
    served_there = (await chain.asked("gpu-a"))["ok"] - before["ok"]
    await second.admin("POST", "/drain")
    none, seconds = await chain.ask()
    await asyncio.gather(first.admin("POST", "/resume"), second.admin("POST", "/resume"))
    chain.table.add("one pool draining", counted(found), f"slowest {slowest(found):.2f}")
    chain.table.add("all pools draining", told(none), f"{seconds:.2f}")
    assert {answer.status for answer, _ in found} == {200}
    assert served_there == 0
    assert none.status == 503
    assert int(none.headers["retry-after"]) >= 1
    assert slowest(found) < 1
    assert seconds < 1


async def use_argv(pool: PoolRig, model: str, argv: list[str]) -> None:
    """Change what a model's workers run, in the running pool."""
    reloads = len(await pool.events("reload"))
    pool.config["models"][model]["argv"] = argv
    pool.write()
    pool.kill(signal.SIGHUP)

    async def reloaded() -> bool:
        return len(await pool.events("reload")) > reloads

    await pool.until(reloaded, "the configuration is read again")


async def test_workers_that_do_not_start(chain: Chain) -> None:
    pools = chain.pools.pools
    works = pools["gpu-a"].config["models"]["small"]["argv"]
    before = await chain.asked("gpu-a")
    await use_argv(pools["gpu-a"], "small", ["/bin/false"])
    found = await chain.in_a_row(16)
    tried = (await chain.asked("gpu-a")) - before
    await use_argv(pools["gpu-b"], "small", ["/bin/false"])
    none, seconds = await chain.ask()
    await asyncio.gather(*(use_argv(pool, "small", works) for pool in pools.values()))
    back = await chain.all_well()
    chain.table.add("workers of one host do not start", counted(found), f"slowest {slowest(found):.2f}, back in {back:.2f}")
    chain.table.add("workers of no host start", told(none), f"{seconds:.2f}")
    assert {answer.status for answer, _ in found} == {200}
    assert tried["ok"] == 0
    assert 1 <= tried.total() <= 4, "it stayed in its group"
    assert none.status in (500, 502, 503)
    assert slowest(found) < CONNECT_S
    assert seconds < CONNECT_S


async def test_a_worker_that_dies_in_mid_stream(chain: Chain) -> None:
    pools = chain.pools.pools
    before = sum([(await chain.asked(host)).total() for host in pools])
    with chain.pools.gates.held("stream"):
        reading = await chain.begin_stream()
        started = time.monotonic()
        for pool in pools.values():
            for pid in pool.workers():
                os.kill(pid, signal.SIGKILL)
        text, ended = await reading
        await chain.pools.until_home(LEFT_S)
        home = time.monotonic() - started
    error = errors_in(text)[0]
    chain.table.add(
        "the worker dies in mid-stream", f"error event, code {error['code']}; not run again", f"{ended - started:.2f}, card home {home:.2f}"
    )
    assert ended - started < 1
    assert sum([(await chain.asked(host)).total() for host in pools]) == before + 1


async def begin_again(chain: Chain, since: float) -> float:
    """Start the gateway; return after how many seconds a client is served again."""
    starting = asyncio.create_task(chain.gateway.start())
    async with asyncio.timeout(60):
        while (await chain.ask())[0].status != 200:  # noqa: ASYNC110  # the answer is the event
            await asyncio.sleep(0.05)
    await starting
    return time.monotonic() - since


async def test_the_gateway_stops_in_mid_stream(chain: Chain) -> None:
    with chain.pools.gates.held("stream"):
        reading = await chain.begin_stream()
        started = time.monotonic()
        stopping = asyncio.create_task(chain.gateway.stop())
        await asyncio.sleep(0.5)
        answer, seconds = await chain.ask()
        assert not reading.done()
    text, _ = await reading
    await stopping
    again = await begin_again(chain, started)
    assert "[DONE]" in text
    assert errors_in(text) == []
    chain.table.add("the gateway restarts: its streams", "nothing: they end whole", "")
    chain.table.add("the gateway restarts: new requests", told(answer), f"{seconds:.2f}, served again after {again:.1f}")
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert seconds < 1


@pytest.mark.long
async def test_the_gateway_is_killed_in_mid_stream(chain: Chain) -> None:
    with chain.pools.gates.held("stream"):
        reading = await chain.begin_stream()
        started = time.monotonic()
        await chain.gateway.stop(kill=True)
        with pytest.raises(aiohttp.ClientPayloadError):
            await reading
        broken = time.monotonic() - started
        await chain.pools.until_home(LEFT_S)
        home = time.monotonic() - started
    again = await begin_again(chain, started)
    chain.table.add(
        "the gateway is killed in mid-stream", "a broken connection", f"{broken:.2f}, card home {home:.2f}, served again after {again:.1f}"
    )
    assert broken < 1

"""Clients that leave the real core behind the real data plane, in every phase of a lease: nothing of theirs is left, and everybody is counted."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from tests.support.pool_inside import Inside, pool_inside
from tests.support.worker_rig import Client, get, post, until
from tests.support.worker_scripted import EVENTS_HEAD, chunk, event, then_hang

MODELS = {"alone": {"aliases": ["t1-alone"]}, "shared": {"parallel": 3}}
HI = [{"role": "user", "content": "hi"}]


def close(client: Client) -> None:
    client.close()


def reset(client: Client) -> None:
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.reset()


def half_close(client: Client) -> None:
    client.writer.write_eof()


WAYS: tuple[Callable[[Client], None], ...] = (close, reset, half_close)


def asking(number: int, models: tuple[str, ...] = ("t1-alone", "shared")) -> bytes:
    """Every kind of request in turn: both models, whole and streamed."""
    return post({"model": models[number % len(models)], "messages": HI, "stream": number % 4 < 2})


def phase(request: dict[str, dict[str, float | None]]) -> str:
    """Where a request of the journal was when its client left."""
    seconds = {name for name, value in request["seconds"].items() if value is not None}
    if "serving" in seconds:
        return "mid-stream" if "first_byte" in seconds else "before the first byte"
    return "queued" if request["lease"] is None else "freeing or loading"


async def _wanderer(pool: Inside, number: int, rng: random.Random) -> None:
    client = await pool.connect()
    await client.send(asking(number))
    reading = asyncio.ensure_future(client.answer())
    await asyncio.wait((reading,), timeout=rng.random() * 0.15)
    if not reading.done():
        rng.choice(WAYS)(client)
    await asyncio.gather(reading, return_exceptions=True)
    client.close()


async def test_a_thousand_randomised_disconnects_in_every_phase_leave_no_lease(tmp_path: Path) -> None:
    rng = random.Random(20)
    async with pool_inside(tmp_path, 6, MODELS, bounds={"ping_s": 0.02, "queue": 1000}) as pool:
        left = 0
        while left < 1000:
            await asyncio.gather(*(_wanderer(pool, number, rng) for number in range(40)))
            left = sum(request["outcome"] == "client_left" for request in pool.requests())
        await pool.left_by_all()
        requests = pool.requests()
        assert {request["outcome"] for request in requests} <= {"ok", "client_left"}
        phases = [phase(request) for request in requests if request["outcome"] == "client_left"]
        for name in ("queued", "freeing or loading", "before the first byte", "mid-stream"):
            assert phases.count(name) >= 20, (name, phases)
        assert (await pool.ask(asking(0))).status == 200
        cancelled = re.findall(rb'gpu_fleet_cancelled_loads_total\{alias="([^"]+)"\} (\d+)', await pool.core.metrics())
        assert {alias for alias, _ in cancelled} == {b"t1-alone", b"shared"}
        assert sum(int(count) for _, count in cancelled) == phases.count("freeing or loading")


async def test_three_hundred_simultaneous_cancels_leave_no_lease(tmp_path: Path) -> None:
    hang = then_hang(EVENTS_HEAD + chunk(event("a")))
    async with pool_inside(tmp_path, 6, MODELS, hang, pause_s=0.5, bounds={"queue": 1000}) as pool:
        clients = await asyncio.gather(*(pool.connect() for _ in range(300)))
        for number, client in enumerate(clients):
            await client.send(asking(number))
        await until(lambda: len(pool.wanted) == 300 and pool.worker.received)
        for client in clients:
            client.reset()
        await pool.left_by_all()
        assert [request["outcome"] for request in pool.requests()] == ["client_left"] * 300


async def test_connect_send_reset_two_hundred_times_leaves_no_lease(tmp_path: Path) -> None:
    async with pool_inside(tmp_path, 2, MODELS) as pool:
        for number in range(200):
            client = await pool.connect()
            await client.send(asking(number))
            reset(client)
        await pool.left_by_all()
        assert (await pool.ask(asking(0))).status == 200


async def test_a_client_whose_own_timeout_is_shorter_than_the_load_is_counted_under_its_alias(tmp_path: Path) -> None:
    async with pool_inside(tmp_path, 1, MODELS) as pool:
        for data in (asking(0, ("t1-alone",)), asking(2, ("t1-alone",))):
            client = await pool.connect()
            pool.worker.behaviour = then_hang(b"")
            await client.send(data)
            await until(lambda: pool.supervisor.occupied)
            client.close()
            await pool.left_by_all()
        text = (await pool.ask(get("/metrics"))).body.decode()
        assert 'gpu_fleet_cancelled_loads_total{alias="t1-alone"} 2.0' in text
        assert 'gpu_fleet_http_requests_total{endpoint="/v1/chat/completions",status="none"} 2.0' in text

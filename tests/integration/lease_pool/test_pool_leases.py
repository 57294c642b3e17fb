"""Who gets which card: exclusive, work-conserving, first in first out, and given back whatever the client does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import time
from collections import defaultdict
from typing import Any

import aiohttp
import pytest

from tests.support.pool_rig import TOKEN, Maker, PoolRig, model


def overlaps(spans: list[tuple[float, float, str]]) -> list[Any]:
    ordered = sorted(spans)
    return [(a, b) for a, b in itertools.pairwise(ordered) if b[0] < a[1] - 1e-6 and a[2] != b[2]]


async def lease_spans(rig: PoolRig) -> dict[str, list[tuple[float, float, str]]]:
    """Per card the (begin, end, lease) of each request's serving time, from the journal."""
    from datetime import datetime

    spans = defaultdict(list)
    for event in await rig.events("request"):
        if event["seconds"]["serving"] is not None:
            end = datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
            spans[event["card"]].append((end - event["seconds"]["serving"], end, event["lease"]))
    return spans


async def test_fifty_parallel_requests_on_two_cards_never_share_a_card_and_are_all_answered(rigs: Maker) -> None:
    rig = rigs(2, bounds={"queue_s": 60})
    await rig.start()
    answers = await asyncio.gather(*(rig.ask({"delay": 0.02}) for _ in range(50)))
    assert [status for status, _ in answers] == [200] * 50
    await rig.until_all("mining")
    spans = await lease_spans(rig)
    assert set(spans) == {"GPU-0", "GPU-1"}
    for card in spans.values():
        # Journal times are whole milliseconds: a request may seem to begin up to 1 ms before the former one's end.
        assert not [pair for pair in overlaps(card) if pair[0][1] - pair[1][0] > 0.002]
    status = await rig.status()
    assert status["queue"] == 0
    assert all(card["lease"] is None for card in status["cards"])
    text = (await rig.get("/metrics"))[1]
    assert 'gpu_fleet_queue{model="m"} 0.0' in text
    assert "gpu_fleet_leases_active{" not in text


async def test_a_queued_model_is_served_first_in_first_out(rigs: Maker) -> None:
    rig = rigs(1, bounds={"queue_s": 60})
    await rig.start()
    order: list[int] = []

    async def ask(number: int) -> None:
        status, _ = await rig.ask({"delay": 0.01 if number else 1.5})  # the first holds the card until the others stand in line
        assert status == 200
        order.append(number)

    tasks = []
    for number in range(8):
        tasks.append(asyncio.create_task(ask(number)))
        await rig.until(lambda n=number: _in_line(rig, n), f"{number} requests wait")
    await asyncio.gather(*tasks)
    assert order == list(range(8))


async def _in_line(rig: PoolRig, number: int) -> bool:
    status = await rig.status()
    return status["cards"][0]["lease"] is not None and status["queue"] == number


async def test_the_smallest_fitting_card_is_used_and_a_large_model_waits_for_the_large_card(rigs: Maker) -> None:
    models = {"small": model(memory_mib=1000), "large": model(memory_mib=9000), "labelled": model(labels=["ada"])}
    rig = rigs(models=models, cards=2, memory=[10000, 2000])
    rig.config["cards"][0]["labels"] = ["ada"]
    rig.write()
    await rig.start()
    async with rig.post({"model": "small", "delay": 0.1}) as response:
        assert response.headers["x-gpu-fleet-card"] == "GPU-1"
    await rig.until_all("mining")
    async with rig.post({"model": "large"}) as response:
        assert response.headers["x-gpu-fleet-card"] == "GPU-0"
    async with rig.post({"model": "labelled"}) as response:
        assert response.headers["x-gpu-fleet-card"] == "GPU-0"


async def test_a_lease_leaves_the_other_card_s_idle_workload_alone(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    other = rig.idle_pid("c1")
    log = (rig.idle / "c1.log").read_text()
    for _ in range(3):
        assert (await rig.ask())[0] == 200
        await rig.until_state("mining", "c0")
    assert rig.idle_pid("c1") == other
    assert (rig.idle / "c1.log").read_text() == log


async def test_parallel_requests_share_one_worker_up_to_its_slots(rigs: Maker) -> None:
    rig = rigs(1, {"m": model(parallel=3)})
    await rig.start()
    began = time.monotonic()
    answers = await asyncio.gather(*(rig.ask({"delay": 1.0}) for _ in range(3)))
    assert {status for status, _ in answers} == {200}
    assert len({answer["pid"] for _, answer in answers}) == 1
    assert time.monotonic() - began < 3.0
    await rig.until_all("mining")
    leases = await rig.events("lease")
    assert [lease["requests"] for lease in leases] == [3]


async def test_a_request_joins_only_while_no_other_model_has_waited_longer(rigs: Maker) -> None:
    rig = rigs(1, {"a": model(parallel=8), "b": model()})
    await rig.start()
    first = asyncio.create_task(rig.ask({"model": "a", "delay": 1.0}))
    await rig.until_state("serving")
    other = asyncio.create_task(rig.ask({"model": "b"}))
    await rig.until(lambda: _queue(rig, 1), "b waits")
    late = asyncio.create_task(rig.ask({"model": "a"}))
    await rig.until(lambda: _queue(rig, 2), "a waits behind b")
    done, _ = await asyncio.wait([late, other], return_when=asyncio.FIRST_COMPLETED)
    assert other in done
    assert late not in done
    assert (await first)[0] == (await late)[0] == 200


async def _queue(rig: PoolRig, size: int) -> bool:
    return (await rig.status())["queue"] == size


async def test_a_window_keeps_the_worker_and_another_model_takes_an_idle_worker_s_card(rigs: Maker) -> None:
    rig = rigs(1, {"a": model(), "b": model()}, window_s=30)
    await rig.start()
    pids = [(await rig.ask({"model": "a"}))[1]["pid"] for _ in range(3)]
    assert len(set(pids)) == 1
    async with rig.post({"model": "a"}) as response:
        assert response.headers["x-gpu-fleet-load-ms"] == "0"
    assert (await rig.card())["state"] == "serving"
    status, answer = await rig.ask({"model": "b"})
    assert status == 200
    assert answer["pid"] != pids[0]
    await rig.until(lambda: pids[0] not in rig.workers(), "the evicted worker is gone")
    await rig.admin("POST", "/drain", {})
    await rig.until_state("mining")  # a draining pool keeps no idle worker


async def test_the_window_counts_from_the_last_of_several_requests(rigs: Maker) -> None:
    rig = rigs(1, window_s=1.5)
    await rig.start()
    pids = set()
    for _ in range(4):
        pids.add((await rig.ask())[1]["pid"])
        last = time.monotonic()
        await asyncio.sleep(0.8)
    assert len(pids) == 1
    await rig.until_state("mining")
    assert 1.5 <= time.monotonic() - last < 4


async def test_a_request_at_the_very_moment_of_a_release_is_always_served(rigs: Maker) -> None:
    rig = rigs(1, bounds={"queue_s": 30})
    await rig.start()
    random.seed(5)

    async def chain(pauses: list[float]) -> list[int]:
        statuses = []
        for pause in pauses:
            statuses.append((await rig.ask())[0])
            await asyncio.sleep(pause)
        return statuses

    results = await asyncio.gather(
        chain([0.0] * 10),
        chain([random.uniform(0, 0.12) for _ in range(10)]),
    )
    assert [status for chain_ in results for status in chain_] == [200] * 20


async def test_a_full_queue_answers_429_with_a_retry_after_and_no_wait_answers_at_once(rigs: Maker) -> None:
    rig = rigs(1, bounds={"queue": 2})
    await rig.start()
    running = [asyncio.create_task(rig.ask({"delay": 1.5})) for _ in range(3)]
    await rig.until(lambda: _queue(rig, 2), "two wait")
    async with rig.post() as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "queue_full"
    async with rig.post(x_gpu_fleet_max_wait_ms="0") as response:
        assert response.status == 429
    assert {status for status, _ in await asyncio.gather(*running)} == {200}


async def test_a_request_that_waited_queue_s_gets_429_and_its_place_is_free(rigs: Maker) -> None:
    rig = rigs(1, bounds={"queue_s": 0.5})
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 2.0}))
    await rig.until_state("serving")
    began = time.monotonic()
    status, answer = await rig.ask()
    assert status == 429
    assert answer["error"]["code"] == "queue_timeout"
    assert 0.4 < time.monotonic() - began < 1.5
    assert (await rig.status())["queue"] == 0
    assert (await running)[0] == 200


@pytest.mark.parametrize("phase", ["queued", "freeing", "loading", "serving", "stream"])
async def test_a_client_that_leaves_gives_its_card_back_within_two_seconds(rigs: Maker, phase: str) -> None:
    rig = rigs(1, {"m": model("--load", "3" if phase == "loading" else "0")})
    await rig.start()
    if phase == "freeing":
        rig.fault("stop-slow")
    holder = None
    if phase == "queued":
        holder = asyncio.create_task(rig.ask({"delay": 1.0}))
        await rig.until_state("serving")
    body = {"stream": True, "gap": 0.2, "chunks": 1000} if phase == "stream" else {"delay": 60}
    task = asyncio.create_task(rig.ask(body))
    if phase == "queued":
        await rig.until(lambda: _queue(rig, 1), "it waits")
    else:
        await rig.until_state("serving" if phase == "stream" else phase)
    left = time.monotonic()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if holder is not None:
        await rig.until(lambda: _queue(rig, 0), "the place in the queue is free", 2)
        assert (await holder)[0] == 200
    else:
        await rig.until_state("mining", bound_s=3)
        assert time.monotonic() - left < 2.5
        assert not rig.workers()
    await rig.until_state("mining")
    outcomes = [event["outcome"] for event in await rig.events("request")]
    assert "client_left" in outcomes


async def test_two_hundred_resets_leave_every_card_free(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        'Content-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    ).encode()
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", rig.port)) as client:
            client.sendall(request)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        await asyncio.sleep(0)
    await rig.until_all("mining", 20)
    assert (await rig.status())["queue"] == 0
    assert not rig.workers()
    assert (await rig.ask())[0] == 200


async def test_more_requests_than_cards_are_all_answered_within_the_queue_bound(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    answers = await asyncio.gather(*(rig.ask() for _ in range(6)))
    assert [status for status, _ in answers] == [200] * 6


async def test_probes_of_agents_never_take_a_card(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    pid = rig.idle_pid()
    assert rig.session is not None
    for path in ("/api/tags", "/props", "/version", "/v1/props", "/v1/models", "/health", "/ready", "/capacity", "/metrics"):
        async with rig.session.get(f"http://127.0.0.1:{rig.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            await response.read()
    with contextlib.suppress(aiohttp.ClientError):
        await rig.ask({"model": "nobody"})
    assert rig.idle_pid() == pid
    assert not await rig.events("lease")


async def test_no_worker_gets_more_of_our_environment_than_its_card(rigs: Maker) -> None:
    rig = rigs(1, {"m": model(env={"EXTRA": "{slot}"})})
    await rig.start({"LLAMA_ARG_HOST": "1.2.3.4", "CUDA_DEVICE": "7", "NVIDIA_X": "y", "GPU_FLEET_LOG_LEVEL": "DEBUG"})
    _, answer = await rig.ask()
    env = answer["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["EXTRA"] == "c0"
    assert not {"LLAMA_ARG_HOST", "CUDA_DEVICE", "NVIDIA_X", "GPU_FLEET_LOG_LEVEL", "PYTHONPATH"} & set(env)
    assert not [value for value in env.values() if TOKEN in value]

"""A client that leaves, at any moment and in any way, takes its lease with it within two seconds; nobody else notices."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.worker_fake_core import CHAT
from tests.support.worker_rig import STREAM, Client, get, head, make_rig, post, until
from tests.support.worker_scripted import DONE, EVENTS_HEAD, Received, chunk, event, model_server, stream, then_hang


def close(client: Client) -> None:
    client.close()


def reset(client: Client) -> None:
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.reset()


def half_close(client: Client) -> None:
    client.writer.write_eof()


WAYS = [close, reset, half_close]
HANGS = {"before the first byte": b"", "after the head": EVENTS_HEAD, "mid-stream": EVENTS_HEAD + chunk(event("a"))}


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("data", [CHAT, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("phase", ["queued", "loading", "pinged", *HANGS])
async def test_a_client_that_leaves_gives_its_card_back(
    tmp_path: Path, phase: str, data: dict[str, object], leave: Callable[[Client], None]
) -> None:
    bounds = {"ping_s": 0.05 if phase == "pinged" else 30}
    async with make_rig(tmp_path, then_hang(HANGS.get(phase, b"")), bounds=bounds) as rig:
        if phase == "queued":
            rig.core.queue_gate.clear()
        elif phase in ("loading", "pinged"):
            rig.core.load_gate.clear()
        client = await rig.connect()
        await client.send(post(data))
        await until(lambda: rig.worker.received if phase in HANGS else rig.core.demands)
        if (phase == "mid-stream" and data is STREAM) or (phase == "pinged" and data is STREAM):
            await client.head()
            await client.chunk()
        leave(client)
        await rig.idle()
        assert rig.core.outcomes == {"cancelled": 1}
        assert not rig.core.failures
        await until(lambda: rig.worker.gone == len(rig.worker.received), 2)  # the worker learns it too


async def test_a_client_that_leaves_behind_a_full_pipeline_is_noticed(tmp_path: Path) -> None:
    async with make_rig(tmp_path, then_hang(b"")) as rig:
        client = await rig.connect()
        await client.send(post() + get("/health") * 3000)
        await until(lambda: rig.worker.received)
        client.close()
        await rig.idle()


async def test_a_client_that_leaves_during_its_body_takes_no_lease(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for leave in WAYS:
            client = await rig.connect()
            await client.send(head(Content_Length="100") + b'{"model"')
            await asyncio.sleep(0.02)
            leave(client)
        assert (await rig.ask(post())).status == 200
        assert len(rig.core.demands) == 1


async def test_another_clients_stream_on_the_same_worker_is_untouched(tmp_path: Path) -> None:
    async with make_rig(tmp_path, stream(["a"] * 30, 0.02)) as rig:
        stays = asyncio.ensure_future(rig.ask(post(STREAM)))
        for leave in WAYS * 4:
            client = await rig.connect()
            await client.send(post(STREAM))
            await client.head()
            leave(client)
        assert (await stays).body == event("a") * 30 + DONE
        await rig.idle()


async def test_one_request_holds_at_most_one_lease(tmp_path: Path) -> None:
    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with make_rig(tmp_path, behave) as rig:
        assert (await rig.ask(post())).status == 502
        assert len(rig.core.demands) == 1


async def test_a_kept_worker_connection_that_was_closed_meanwhile_is_replaced_without_a_word(tmp_path: Path) -> None:
    served = 0

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        if served == 2:
            writer.close()  # as a server does whose keep-alive bound passes just when the next request is on its way
            return
        await model_server()(request, writer)

    async with make_rig(tmp_path, behave) as rig:
        assert [(await rig.ask(post())).status for _ in range(3)] == [200, 200, 200]
        assert rig.worker.connections == 2
        assert not rig.core.failures

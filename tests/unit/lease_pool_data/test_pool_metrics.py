"""What /metrics says of the data plane: every answer is counted, and no client can make a label or read a name there."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

import pytest

from lease_pool import http_server, incoming
from tests.support.pool_inside import pool_inside
from tests.support.worker_fake_core import TOKEN
from tests.support.worker_rig import get, head, post, until
from tests.support.worker_scripted import EVENTS_HEAD, chunk, event, then_hang

CANARY = "canary-9d3e"
PATHS = {*incoming.ENDPOINTS, "/health", "/ready", "/v1/models", "/capacity", "/metrics", "other"}
SAMPLE = re.compile(r'gpu_fleet_http_requests_total\{endpoint="([^"]*)",status="([^"]*)"\} (\d+)')


async def test_every_answer_is_counted_by_its_path_and_status_whoever_gave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.05)
    async with pool_inside(tmp_path, 1, {"m": {}}, bounds={"body_mib": 0.01, "queue": 1}) as pool:
        chat = {"model": "m", "messages": []}
        await pool.ask(post(chat))
        await pool.ask(post(chat | {"stream": True}))
        await pool.ask(post(chat, token="wrong"))
        await pool.ask(post(b"{"))
        await pool.ask(post(chat | {"model": "nope"}))
        await pool.ask(post(chat | {"x": "y" * 20_000}))
        await pool.ask(post(chat, "/v1/embeddings"))
        await pool.ask(get("/nothing"))
        await pool.ask(get("/health", token=None))
        await pool.ask(b"GARBAGE\r\n\r\n")
        await pool.ask(b"GET /slow")
        pool.worker.behaviour = then_hang(b"")
        hung = await pool.connect()
        await hung.send(post(chat))
        await until(lambda: pool.core.state.leases)
        await pool.ask(post(chat, x_gpu_fleet_max_wait_ms="0"))
        hung.close()
        await pool.left_by_all()
        pool.core.verbs.drain(None, None)
        await pool.ask(post(chat))
        server = pool.plane._http
        assert server is not None
        await until(lambda: server.open_connections == 0)
        monkeypatch.setattr(server, "connections_max", 1)
        kept = await pool.connect()
        await until(lambda: server.open_connections == 1)
        over = await pool.connect()
        assert (await over.answer()).status == 503
        await kept.send(get("/metrics"))
        counted = {(path, status): int(count) for path, status, count in SAMPLE.findall((await kept.answer()).body.decode())}
        assert counted == {
            ("/v1/chat/completions", "200"): 2, ("/v1/chat/completions", "401"): 1, ("/v1/chat/completions", "400"): 1,
            ("/v1/chat/completions", "404"): 1, ("/v1/chat/completions", "413"): 1, ("/v1/chat/completions", "429"): 1,
            ("/v1/chat/completions", "503"): 1, ("/v1/chat/completions", "none"): 1, ("/v1/embeddings", "400"): 1,
            ("/health", "200"): 1, ("other", "400"): 1, ("other", "404"): 1, ("other", "408"): 1, ("other", "503"): 1,
        }  # fmt: skip


async def test_no_identity_no_token_and_nothing_of_a_client_s_making_is_a_label(tmp_path: Path) -> None:
    async with pool_inside(tmp_path, 1, {"m": {"aliases": ["t1-m"]}}) as pool:
        notes = {"x_gpu_fleet_principal": CANARY, "x_request_id": CANARY, "x_gpu_fleet_class": CANARY, "User_Agent": CANARY}
        for data in (
            post({"model": "t1-m", "messages": [], "user": CANARY}, **notes),
            post({"model": CANARY, "messages": []}, **notes),
            post({"model": "m"}, f"/v1/chat/completions/{CANARY}", **notes),
            post({"model": "m"}, f"/v1/chat/completions?{CANARY}={CANARY}", **notes),
            get(f"/v1/models#{CANARY}", **notes),
            get(f"/{CANARY}", token=CANARY, **notes),
            head(CANARY.upper(), f"http://{CANARY}/health", **notes),
        ):
            await pool.ask(data)
        text = (await pool.ask(get("/metrics"))).body.decode()
        assert CANARY not in text.lower()
        assert TOKEN not in text
        assert {path for path, _, _ in SAMPLE.findall(text)} <= PATHS
        labels = {name for line in text.splitlines() if not line.startswith("#") for name in re.findall(r'([a-z_]+)="', line)}
        assert labels <= {"alias", "model", "outcome", "phase", "le", "uuid", "slot", "pci", "state", "endpoint", "status"}


async def test_a_full_pool_says_when_to_come_again_from_what_requests_took_lately(tmp_path: Path) -> None:
    async with pool_inside(tmp_path, 2, {"m": {}}, then_hang(EVENTS_HEAD + chunk(event("a"))), bounds={"queue": 5}) as pool:
        ask = post({"model": "m", "messages": []}, x_gpu_fleet_max_wait_ms="60000")
        at_once = post({"model": "m", "messages": []}, x_gpu_fleet_max_wait_ms="0")
        pool.core.state.loads["m"] = deque([20.0] * 5)  # the medians of these stay what they are, whatever the loads below take
        pool.core.state.served.extend([3.5, 4.0, 60.0])
        clients = [await pool.connect() for _ in range(7)]
        for client in clients[:2]:
            await client.send(ask)
        await until(lambda: len(pool.core.state.leases) == 2)
        assert (await pool.ask(at_once)).headers["retry-after"] == "1"  # nobody is ahead
        for client in clients[2:]:
            await client.send(ask)
        await until(lambda: len(pool.core.state.queue) == 5)
        for data in (ask, at_once):
            full = await pool.ask(data)
            assert (full.status, full.headers["retry-after"]) == (429, "60")  # 5 ahead x (20 s + 4 s) / 2 cards
        pool.core.state.served.extend([500.0] * 100)
        assert (await pool.ask(ask)).headers["retry-after"] == "120"
        for client in clients:
            client.close()
        await pool.left_by_all()

"""Bodies cross the pool byte for byte in both directions; headers cross only when they are end to end and nobody's secret."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import zlib
from pathlib import Path

import pytest

from tests.support.worker_fake_core import CHAT, TOKEN
from tests.support.worker_rig import STREAM, WORKER_KEY, head, make_rig, post, until
from tests.support.worker_scripted import CHUNKED_END, EVENTS_HEAD, Received, always, chunk, response

ODD = b'{ "z":1.10, "a" : 1e3,\n\t"model" :"t3-code", "u":"\\u00e9\xc3\xa9", "a":2, "big": 123456789012345678901234567890 }  '


@pytest.mark.parametrize("body", [ODD, ODD[:1] + b'"pad": "' + b"x" * 3_000_000 + b'",' + ODD[1:]], ids=["small", "3 MB"])
async def test_request_bodies_reach_the_worker_byte_for_byte_whatever_the_framing_and_the_wait(tmp_path: Path, body: bytes) -> None:
    async with make_rig(tmp_path) as rig:
        rig.core.load_gate.clear()
        rng = random.Random(6)
        pieces, at = [], 0
        while at < len(body):
            size = rng.choice((1, 7, 1000, 70_000, 400_000))
            pieces.append(chunk(body[at : at + size]))
            at += size
        clients = [await rig.connect(), await rig.connect()]
        await clients[0].send(post(body))
        await clients[1].send(head(Transfer_Encoding="chunked") + b"".join(pieces) + CHUNKED_END)
        await until(lambda: not len(rig.core.active) < 2)
        rig.core.load_gate.set()
        assert [(await client.answer()).status for client in clients] == [200, 200]
        assert [r.body for r in rig.worker.received] == [body, body]
        assert [r.line for r in rig.worker.received] == ["POST /v1/chat/completions HTTP/1.1"] * 2


@pytest.mark.parametrize(
    ("encoding", "packed"), [("gzip", gzip.compress(ODD)), ("deflate", zlib.compress(ODD)), ("GZIP", gzip.compress(ODD)), ("identity", ODD)]
)
async def test_an_encoded_request_body_keeps_its_encoding_and_its_bytes(tmp_path: Path, encoding: str, packed: bytes) -> None:
    async with make_rig(tmp_path, always(response(b"{}"))) as rig:
        assert (await rig.ask(post(packed, Content_Encoding=encoding))).status == 200
        assert rig.worker.received[0].body == packed
        assert rig.worker.received[0].headers["content-encoding"] == encoding


async def test_broken_or_unknown_encodings_are_refused(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        assert (await rig.ask(post(b"not gzip", Content_Encoding="gzip"))).status == 400
        assert (await rig.ask(post(gzip.compress(ODD)[:-9], Content_Encoding="gzip"))).status == 400
        two = gzip.compress(ODD) + gzip.compress(b'{"model": "another"}')
        assert (await rig.ask(post(two, Content_Encoding="gzip"))).status == 400, "what the pool reads is all that the worker reads"
        assert (
            await rig.ask(post(ODD, Content_Encoding="identity, gzip").replace(b"identity, ", b"identity\r\nContent-Encoding: "))
        ).status == 415
        assert (await rig.ask(post(ODD, Content_Encoding="br"))).status == 415
        assert (await rig.ask(post(gzip.compress(gzip.compress(ODD)), Content_Encoding="gzip, gzip"))).status == 415


@pytest.mark.parametrize("size", [0, 1, 100_000, 12_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_response_bodies_reach_the_client_byte_for_byte(tmp_path: Path, size: int, framing: str) -> None:
    body = random.Random(size).randbytes(size)
    start = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nX-Own: kept\r\n"

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        if framing == "length":
            writer.write(start + b"Content-Length: %d\r\n\r\n" % size + body)
        elif framing == "chunked":
            writer.write(start + b"Transfer-Encoding: chunked\r\n\r\n")
            for at in range(0, size, 50_000):
                writer.write(chunk(body[at : at + 50_000]))
            writer.write(CHUNKED_END)
        else:
            writer.write(start + b"Connection: close\r\n\r\n" + body)
            writer.close()
        await writer.drain()

    async with make_rig(tmp_path, behave) as rig:
        for data in (CHAT, STREAM):
            answer = await rig.ask(post(data))
            assert (answer.status, answer.headers["content-type"], answer.headers["x-own"]) == (200, "image/png", "kept")
            assert answer.body == body


async def test_an_encoded_response_keeps_its_encoding_and_its_bytes(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"a": 1}' * 1000)
    async with make_rig(tmp_path, always(response(packed, extra="Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"))) as rig:
        answer = await rig.ask(post(Accept_Encoding="gzip"))
        assert (answer.headers["content-encoding"], answer.body) == ("gzip", packed)
        assert rig.worker.received[0].headers["accept-encoding"] == "gzip"


async def test_an_encoded_event_stream_passes_unread_and_none_is_asked_for(tmp_path: Path) -> None:
    packed = gzip.compress(b"data: x\n\n")
    start = EVENTS_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    async with make_rig(tmp_path, always(start + chunk(packed[:5]) + chunk(packed[5:]) + CHUNKED_END)) as rig:
        answer = await rig.ask(post(STREAM, Accept_Encoding="gzip"))
        assert (answer.headers["content-encoding"], answer.body) == ("gzip", packed)
        assert "accept-encoding" not in rig.worker.received[0].headers


async def test_only_end_to_end_headers_cross_and_credentials_and_notes_never_do(tmp_path: Path) -> None:
    secret = {
        "Connection": "close, X-Hop",
        "X-Hop": "1",
        "Keep-Alive": "5",
        "TE": "trailers",
        "Proxy-Authorization": "Basic c2VjcmV0",
        "Cookie": "a=b",
        "X-Api-Key": "k",
        "X-Request-Id": "req-1",
        "X-Gpu-Fleet-Principal": "alice",
        "X-Gpu-Fleet-Class": "restricted",
        "X-Gpu-Fleet-Max-Wait-Ms": "5000",
        "X-Data-Class": "internal",
        "X-Forwarded-For": "10.0.0.1",
    }
    kept = {"Accept": "application/json", "User-Agent": "test/1", "Traceparent": "00-1-2-01", "X-Custom": "v"}
    extra = "Connection: X-Bad\r\nX-Bad: 1\r\nKeep-Alive: timeout=5\r\nX-Gpu-Fleet-Card: forged\r\nSet-Cookie: a=b\r\nX-Good: 1\r\nServer: w\r\n"
    async with make_rig(tmp_path, always(response(b"{}", extra=extra))) as rig:
        answer = await rig.ask(post(**secret, **kept))
        got = rig.worker.received[0].headers
        assert not set(got) & ({name.lower() for name in secret} - {"connection"})
        assert "connection" not in got
        assert {name: got[name.lower()] for name in kept} == kept
        assert got["authorization"] == f"Bearer {WORKER_KEY}"
        assert TOKEN.encode() not in rig.worker.received[0].head
        demand = rig.core.demands[0]
        assert (demand.request, demand.principal, demand.data_class, demand.max_wait_s) == ("req-1", "alice", "restricted", 5.0)
        names = [name for name, _ in answer.raw_headers]
        assert not {"x-bad", "keep-alive", "set-cookie", "server"} & set(names)
        assert answer.headers["x-good"] == "1"
        assert [v for n, v in answer.raw_headers if n == "x-gpu-fleet-card"] == ["GPU-c0"]
        for name in ("content-type", "content-length", "date"):
            assert names.count(name) == 1


async def test_the_response_says_where_the_request_ran_and_what_it_waited_for(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for data in (CHAT, STREAM):
            headers = (await rig.ask(post(data))).headers
            assert (headers["x-gpu-fleet-card"], headers["x-gpu-fleet-queued-ms"], headers["x-gpu-fleet-load-ms"]) == (
                "GPU-c0",
                "12",
                "345",
            )
            assert headers["x-gpu-fleet-lease"].startswith("l")


async def test_notes_for_the_journal_are_bounded_and_printable(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        line = head(Content_Length=str(len(json.dumps(CHAT)))).replace(
            b"\r\n\r\n", b"\r\nx-gpu-fleet-principal: a\xff\xfe\tb" + b"c" * 1000 + b"\r\n\r\n"
        )
        assert (await rig.ask(line + json.dumps(CHAT).encode())).status == 200
        demand = rig.core.demands[0]
        assert len(demand.principal) == 256
        assert demand.principal.isprintable()
        assert json.dumps(demand.principal, ensure_ascii=False).encode()
        assert len(demand.request) == 24


async def test_the_catalog_lists_models_and_aliases_without_a_lease(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        answer = await rig.ask(head("GET", "/v1/models?x=1"))
        assert [m["id"] for m in answer.json()["data"]] == ["chat-model", "t3-code", "embed-model", "embed"]
        assert (await rig.ask(head("GET", "/capacity"))).json() == {"draining": False, "queue": 0, "models": {}}
        metrics = await rig.ask(head("GET", "/metrics"))
        assert metrics.headers["content-type"].startswith("text/plain")
        assert not rig.core.demands

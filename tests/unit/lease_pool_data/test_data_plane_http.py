"""What a client may do with HTTP/1.1 itself: odd but valid is served, invalid or ambiguous is refused in the envelope, slow is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from lease_pool.types import Refused

from lease_pool import http_server, incoming
from tests.support.worker_fake_core import CHAT, TOKEN
from tests.support.worker_rig import STREAM, Rig, get, head, make_rig, post, until
from tests.support.worker_scripted import CHUNKED_END, always, chunk, response

AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()
BODY = json.dumps(CHAT).encode()
LENGTH = f"Content-Length: {len(BODY)}\r\n".encode()
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\n" + AUTH

AMBIGUOUS = {
    "length and chunked": LINE + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + CHUNKED_END,
    "two lengths": LINE + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
    "two equal lengths": LINE + LENGTH + LENGTH + b"\r\n" + BODY,
    "a list of lengths": LINE + f"Content-Length: {len(BODY)}, {len(BODY)}\r\n\r\n".encode() + BODY,
    "signed length": LINE + f"Content-Length: +{len(BODY)}\r\n\r\n".encode() + BODY,
    "hex length": LINE + b"Content-Length: 0x10\r\n\r\n" + BODY,
    "unknown coding": LINE + b"Transfer-Encoding: xchunked\r\n\r\n" + BODY,
    "chunked not last": LINE + b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunk(BODY) + CHUNKED_END,
    "a coding below chunked": LINE + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(BODY) + CHUNKED_END,
    "chunked twice": LINE + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + chunk(BODY) + CHUNKED_END,
    "two coding headers": LINE + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + chunk(BODY) + CHUNKED_END,
    "chunked with a parameter": LINE + b"Transfer-Encoding: chunked;q=1\r\n\r\n" + chunk(BODY) + CHUNKED_END,
    "chunked after a vertical tab": LINE + LENGTH + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + BODY,
    "an empty coding": LINE + LENGTH + b"Transfer-Encoding:\r\n\r\n" + BODY,
    "identity beside a length": LINE + LENGTH + b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    "chunked in HTTP/1.0": LINE.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + CHUNKED_END,
    "an empty length": LINE + b"Content-Length: \r\n\r\n" + BODY,
    "a length with an underscore": LINE + b"Content-Length: 6_9\r\n\r\n" + BODY,
    "a length over 64 bits": LINE + b"Content-Length: %d\r\n\r\n" % (2**64 + len(BODY)) + BODY,
    "space before colon": LINE + b"Transfer-Encoding : chunked\r\n\r\n" + chunk(BODY) + CHUNKED_END,
    "folded header": LINE + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
    "bare LF": (LINE + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
    "bare CR in a value": LINE + b"X: a\rb\r\n" + LENGTH + b"\r\n" + BODY,
    "zero byte": LINE + b"X: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\n" + AUTH + LENGTH + b"\r\n" + BODY,
    "bad version": LINE.replace(b"HTTP/1.1", b"HTTP/9.9") + LENGTH + b"\r\n" + BODY,
    "bad chunk size": LINE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "chunk longer than it says": LINE + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "a chunk size over 64 bits": LINE + b"Transfer-Encoding: chunked\r\n\r\n1%016x\r\n" % len(BODY) + BODY + b"\r\n" + CHUNKED_END,
    "a chunk size in 0x": LINE + b"Transfer-Encoding: chunked\r\n\r\n0x%x\r\n" % len(BODY) + BODY + b"\r\n" + CHUNKED_END,
    "a chunk size and a space": LINE + b"Transfer-Encoding: chunked\r\n\r\n%x \r\n" % len(BODY) + BODY + b"\r\n" + CHUNKED_END,
    "chunks ended by bare LF": LINE + b"Transfer-Encoding: chunked\r\n\r\n%x\n" % len(BODY) + BODY + b"\n0\n\n",
    "a line end in a chunk extension": LINE + b"Transfer-Encoding: chunked\r\n\r\n%x;a\nb\r\n" % len(BODY) + BODY + b"\r\n" + CHUNKED_END,
    "framing in a trailer": LINE
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + chunk(BODY)
    + b"0\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n",
    "endless trailers": LINE + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + b"0\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
    "two hosts": LINE + b"Host: q\r\n" + LENGTH + b"\r\n" + BODY,
    "TLS hello": bytes.fromhex("16030100a5010000a10303") + b"\0" * 40,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "not HTTP": b"hello\r\n\r\n",
}


@pytest.mark.parametrize("shape", AMBIGUOUS)
async def test_invalid_and_ambiguous_requests_are_refused_in_the_envelope_and_never_reach_a_worker(tmp_path: Path, shape: str) -> None:
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        await client.send(AMBIGUOUS[shape] + get("/v1/models"))
        answer = await asyncio.wait_for(client.answer(), 5)
        assert 400 <= answer.status < 500
        assert answer.error()["type"] in ("invalid_request_error", "authentication_error")
        assert TOKEN.encode() not in answer.body
        assert answer.headers["connection"] == "close"
        assert await client.closed()
        assert not rig.worker.received
        assert not rig.core.demands


async def test_an_endless_header_or_too_many_are_refused(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for junk in (b"X: " + b"a" * 9000 + b"\r\n", b"".join(b"X%d: a\r\n" % i for i in range(200))):
            answer = await rig.ask(LINE + junk + LENGTH + b"\r\n" + BODY)
            assert answer.status == 400
            assert answer.error()
        answer = await rig.ask(get("/" + "a" * 9000))
        assert answer.status == 400


async def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        await client.send(get("/v1/models") + post() + post(STREAM) + get("/nothing") + post() + get("/health"))
        assert [(await client.answer()).status for _ in range(6)] == [200, 200, 200, 404, 200, 200]
        await client.send(get("/health") * 100)
        assert [(await client.answer()).status for _ in range(100)] == [200] * 100


async def test_chunked_requests_with_extensions_and_trailers_are_served(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        body = b"5;ext=1\r\n" + BODY[:5] + b"\r\n" + chunk(BODY[5:]) + b"0\r\nX-Trailer: t\r\n\r\n"
        client = await rig.connect()
        for _ in range(2):
            await client.send(LINE + b"Transfer-Encoding: chunked\r\nTrailer: X-Trailer\r\n\r\n" + body)
            assert (await client.answer()).status == 200
        assert [r.body for r in rig.worker.received] == [BODY, BODY]
        assert "transfer-encoding" not in rig.worker.received[0].headers
        assert "trailer" not in rig.worker.received[0].headers


async def test_expect_100_continue_is_answered_before_the_body_and_only_when_it_will_be_read(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        await client.send(LINE + LENGTH + b"Expect: 100-continue\r\n\r\n")
        assert (await client.answer()).status == 100
        await client.send(BODY)
        assert (await client.answer()).status == 200
        assert "expect" not in rig.worker.received[0].headers
        for data, status in (
            (LINE.replace(AUTH, b"") + LENGTH + b"Expect: 100-continue\r\n\r\n", 401),
            (LINE + b"Content-Length: 999999999\r\nExpect: 100-continue\r\n\r\n", 413),
            (LINE.replace(b"/v1/chat", b"/v9/chat") + LENGTH + b"Expect: 100-continue\r\n\r\n", 404),
            (LINE + LENGTH + b"Expect: something-else\r\n\r\n", 417),
            (LINE + LENGTH + b"Expect: 100-continue\r\nExpect: something-else\r\n\r\n", 417),
        ):
            assert (await rig.ask(data)).status == status


async def test_http_1_0_clients_get_unframed_bodies_and_a_close(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        old = b"POST /v1/chat/completions HTTP/1.0\r\n" + AUTH
        for data in (CHAT, STREAM):
            body = json.dumps(data).encode()
            client = await rig.connect()
            await client.send(old + b"Connection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            answer = await client.answer()
            assert answer.status == 200
            assert "transfer-encoding" not in answer.headers
            assert answer.headers["connection"] == "close"
            assert await client.closed()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert (await rig.ask(b"GET /health HTTP/1.0\r\n\r\n")).status == 200


async def test_connection_close_is_kept_and_keep_alive_is_the_default(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        for _ in range(3):
            await client.send(post())
            assert "connection" not in (await client.answer()).headers
        await client.send(post(Connection="close"))
        assert (await client.answer()).headers["connection"] == "close"
        assert await client.closed()
        assert rig.worker.connections == 1  # the worker's connection was kept as well


async def test_head_requests_have_no_body(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        for path, status in (("/health", 200), ("/v1/models", 200), ("/nothing", 404)):
            await client.send(head("HEAD", path))
            answer = await client.answer(no_body=True)
            assert answer.status == status
            assert int(answer.headers["content-length"]) > 0


async def test_an_upgrade_is_ignored_and_the_request_served(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for upgrade in ("websocket", "h2c"):
            answer = await rig.ask(post(Connection="Upgrade", Upgrade=upgrade))
            assert answer.status == 200
        assert all("upgrade" not in r.headers for r in rig.worker.received)


async def test_what_follows_an_ignored_upgrade_is_never_left_without_an_answer(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        for upgrade in (
            post(Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAA"),
            post(Connection="Upgrade", Upgrade="websocket"),
            head("CONNECT", "pool:80"),
        ):
            client = await rig.connect()
            await client.send(upgrade + get("/v1/models"))
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (404 if upgrade.startswith(b"CONNECT") else 200, "close")
            assert await asyncio.wait_for(client.closed(), 2)


HUGE = {
    name: b'{"model": "t3-code", "x": [' + value * (24 * 2**20 // len(value)) + b"0]}"
    for name, value in {"lists": b"[],", "objects": b"{},"}.items()
}


@pytest.mark.parametrize("shape", HUGE)
@pytest.mark.parametrize("ending", [b"", b"x"], ids=["valid", "invalid"])
async def test_a_body_of_millions_of_tiny_values_neither_stops_the_pool_nor_fills_its_memory(
    tmp_path: Path, shape: str, ending: bytes
) -> None:
    body = HUGE[shape] + ending
    tracemalloc.start()
    try:
        with pytest.raises(Refused) if ending else contextlib.nullcontext():
            began = time.monotonic()
            incoming._json(body)
        assert time.monotonic() - began < 1.5  # eight million values as Python objects took 3 to 4 s
        assert tracemalloc.get_traced_memory()[1] < 2 * len(body)  # they took 25 times its size
    finally:
        tracemalloc.stop()
    async with make_rig(tmp_path, always(response(b"{}"))) as rig:
        assert (await rig.ask(post(body))).status == (400 if ending else 200)


async def test_a_slow_head_is_cut_at_its_bound_and_a_slow_body_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_S", 0.3)
    monkeypatch.setattr(incoming, "BODY_STALL_S", 0.3)
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()

        async def drip() -> None:
            for byte in LINE + b"X: " + b"a" * 5000:
                await client.send(bytes([byte]))
                await asyncio.sleep(0.01)

        dripping = asyncio.ensure_future(drip())
        answer = await asyncio.wait_for(client.answer(), 2)
        dripping.cancel()
        assert (answer.status, answer.error()["code"]) == (408, "head_too_slow")
        second = await rig.ask(LINE + LENGTH + b"\r\n" + BODY[:4])
        assert (second.status, second.error()["code"]) == (408, "body_too_slow")
        third = await rig.connect()  # slow on a connection that has served before
        await third.send(get("/health"))
        assert (await third.answer()).status == 200
        await third.send(b"GET /hea")
        assert (await asyncio.wait_for(third.answer(), 2)).status == 408


async def test_a_body_that_drips_for_ever_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "BODY_S", 0.4)
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        await client.send(LINE + b"Content-Length: 100000\r\n\r\n")

        async def drip() -> None:
            while True:
                await client.send(b" ")
                await asyncio.sleep(0.02)

        dripping = asyncio.ensure_future(drip())
        answer = await asyncio.wait_for(client.answer(), 3)
        dripping.cancel()
        assert answer.status == 408


async def test_connections_over_the_limit_are_refused_and_idle_ones_in_their_thousands_do_no_harm(tmp_path: Path) -> None:
    async with make_rig(tmp_path) as rig:
        server = rig.plane._http
        assert server is not None
        server.connections_max = 300
        idle = [await rig.connect() for _ in range(300)]
        over = await rig.connect()
        answer = await over.answer()
        assert (answer.status, answer.error()["code"], answer.headers["retry-after"]) == (503, "too_many_connections", "1")
        await idle[0].send(post())
        assert (await idle[0].answer()).status == 200
        for client in idle[1:]:
            client.close()
        await _until(rig, 1)
        assert (await rig.ask(post())).status == 200


async def test_an_idle_connection_is_closed_after_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.3)
    async with make_rig(tmp_path) as rig:
        client = await rig.connect()
        assert await asyncio.wait_for(client.closed(), 2)


IDLERS = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
port, count = map(int, sys.argv[1:])
idle = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(count)]
for slow in idle[::2]:
    slow.sendall(b"POST /v1/chat/comp")  # a slow-loris: the head never ends
print(len(idle), flush=True)
sys.stdin.read()
"""


async def test_ten_thousand_idle_connections_half_of_them_in_an_endless_head_leave_the_pool_answering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle ends live in a process of their own: a process here needs one descriptor a connection, so the hard limit must allow 11,000."""
    count = 10_000
    monkeypatch.setattr(http_server, "HEAD_S", 300)  # that they are cut in time has its own test; here all of them stay
    async with make_rig(tmp_path) as rig:
        server = rig.plane._http
        assert server is not None
        assert server.connections_max > count, "the hard limit of open files (ulimit -Hn) is too low for this proof"
        idlers = await asyncio.create_subprocess_exec(
            sys.executable, "-c", IDLERS, str(rig.plane.port), str(count), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert idlers.stdout is not None
        assert int(await asyncio.wait_for(idlers.stdout.readline(), 120)) == count
        await until(lambda: server.open_connections == count)
        for _ in range(20):
            assert (await asyncio.wait_for(rig.ask(post()), 2)).status == 200
        assert server.open_connections >= count
        idlers.kill()
        await idlers.wait()
        await _until(rig, 0)


async def _until(rig: Rig, connections: int) -> None:
    server = rig.plane._http
    assert server is not None
    await until(lambda: server.open_connections <= connections)

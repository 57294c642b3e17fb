"""A grammar of HTTP requests, valid and broken in every way it knows: only answers of the error table, no traceback, and the service stays alive.

`FUZZ_S` sets the seconds (60; 600 in the long run).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.worker_fake_core import TOKEN
from tests.support.worker_rig import Rig, get, make_rig
from tests.support.worker_scripted import model_server

ALLOWED = {100, 200, 400, 401, 404, 408, 413, 415, 417, 429, 502, 503, 504}
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")

junk = st.binary(max_size=40)
token = st.sampled_from([TOKEN, "wrong", "", TOKEN + "\t", " " + TOKEN]).map(str.encode)
method = st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"TRACE", b"PRI", b"post", b"", b"G\0T"]) | junk
path = st.sampled_from([
    b"/v1/chat/completions", b"/v1/embeddings", b"/v1/models", b"/health", b"/ready", b"/capacity", b"/metrics", b"*", b"//", b"/%2e%2e/v1/models",
    b"http://x/v1/models", b"/v1/chat/completions?x=%zz", b"/v1/chat/completions#f", b"x:1", b"http://[", b"http://[::1]:99999/", b"/\xff", b"",
]) | junk  # fmt: skip
version = st.sampled_from([b"HTTP/1.1"] * 6 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/1.", b"http/1.1", b""])
value = st.dictionaries(
    st.sampled_from(["model", "messages", "stream", "input", "x"]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["t3-code", "embed", "chat-model"]) | st.lists(st.integers(), max_size=3),
    max_size=4,
)  # fmt: skip
body = (
    value.map(lambda v: json.dumps(v).encode())
    | st.booleans().map(lambda s: json.dumps({"model": "t3-code", "messages": [], "stream": s}).encode())
    | junk
    | st.sampled_from([b"{" * 500, b"[" * 5000, b"\xef\xbb\xbf{}", b'{"model":"\\ud800"}', b'{"model":"t3-code","model":7}'])
)
number = st.sampled_from([b"0", b"-1", b"+1", b"1e3", b"99999999999999999999", b"0x1", b" 3", b"3 3", b""])
header = st.sampled_from([
    (b"Connection", b"close"), (b"Connection", b"keep-alive, Host"), (b"Connection", b"Upgrade"), (b"Upgrade", b"websocket"), (b"Expect", b"100-continue"), (b"Expect", b"x"),
    (b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"gzip, chunked"), (b"Transfer-Encoding", b"identity"), (b"Content-Encoding", b"gzip"), (b"Content-Encoding", b"br"),
    (b"x-gpu-fleet-max-wait-ms", b"0"), (b"x-gpu-fleet-max-wait-ms", b"-5"), (b"x-request-id", b"\xff\xfe"), (b"Content-Type", b"multipart/form-data; boundary=x"),
    (b"Host", b"again"), (b"Content-Length", b"5"), (b"Trailer", b"X"), (b"TE", b"trailers"), (b"Sec-WebSocket-Key1", b"x"), (b"Accept-Encoding", b"gzip"),
]) | st.tuples(junk, junk) | number.map(lambda n: (b"Content-Length", n))  # fmt: skip


@st.composite
def request(draw: st.DrawFn) -> bytes:
    data = draw(body)
    lines = [b" ".join((draw(st.just(b"POST") | method), draw(st.just(b"/v1/chat/completions") | path), draw(version)))]
    if draw(st.integers(0, 9)):
        lines.append(b"Host: pool")
    if draw(st.integers(0, 5)):
        lines.append(b"Authorization: Bearer " + draw(token))
    extra = draw(st.lists(header, max_size=4))
    lines += [b"%b: %b" % pair for pair in extra]
    framing = draw(st.sampled_from(["length"] * 5 + ["chunked", "wrong", "none"]))
    if framing == "length":
        lines.append(b"Content-Length: %d" % len(data))
    elif framing == "wrong":
        lines.append(b"Content-Length: %d" % draw(st.integers(0, 60)))
    elif framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
        cut = draw(st.integers(0, len(data)))
        pieces = [piece for piece in (data[:cut], data[cut:]) if piece]
        data = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), draw(st.sampled_from([b"", b"", b";a=b", b" ", b"g"])), piece) for piece in pieces)
        data += draw(st.sampled_from([b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"0\r\n", b""]))
    end = draw(st.sampled_from([b"\r\n"] * 8 + [b"\n", b"\r"]))
    return end.join(lines) + end + end + data


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The rig on a loop of its own, because hypothesis speaks synchronously."""
    started, stop, loop = threading.Event(), asyncio.Event(), uvloop.new_event_loop()
    rigs: list[Rig] = []

    async def main(folder: Path) -> None:
        async with make_rig(folder, model_server(), bounds={"body_mib": 0.05, "request_s": 5, "first_byte_s": 5}) as rig:
            rigs.append(rig)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main(tmp_path_factory.mktemp("fuzz"))))
    thread.start()
    assert started.wait(10)
    yield rigs[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


def talk(port: int, pieces: list[bytes], leave: bool) -> bytes:
    """Send the pieces, say that no more comes only after the answers stop coming, and return everything that was answered."""
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.settimeout(0.03 if leave else 0.15)
        got = b""
        try:
            for piece in pieces:
                sock.sendall(piece)
            while data := sock.recv(65536):
                got += data
        except (TimeoutError, ConnectionError):
            pass
        return got


def _fuzz(running: Rig, caplog: pytest.LogCaptureFixture, seconds: float) -> None:
    end = time.monotonic() + seconds
    tried = 0

    @settings(max_examples=1_000_000, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(st.lists(request(), min_size=1, max_size=3), st.integers(0, 3), st.booleans())
    def shoot(requests: list[bytes], cut: int, leave: bool) -> None:
        nonlocal tried
        if time.monotonic() > end:
            raise _Enough
        tried += 1
        data = b"".join(requests)
        pieces = [data] if cut == 0 else [data[: len(data) // (cut + 1)], data[len(data) // (cut + 1) :]]
        got = talk(running.plane.port, pieces, leave)
        statuses = [int(status) for status in STATUS.findall(got)]
        assert set(statuses) <= ALLOWED, (data, got)
        assert not got or got.startswith(b"HTTP/1.1 "), (data, got)
        assert b"Traceback" not in got

    with caplog.at_level(logging.WARNING), pytest.raises(_Enough):
        shoot()
    alive = talk(running.plane.port, [get("/v1/models", Connection="close")], leave=False)
    assert b" 200 " in alive
    assert not running.core.active
    assert tried > 50
    loud: list[Any] = [record for record in caplog.records if record.levelno >= logging.ERROR and record.name != "asyncio"]
    assert not loud, [record.getMessage() for record in loud]
    assert not [record for record in caplog.records if record.exc_info and record.name.startswith("lease_pool")]


class _Enough(BaseException):
    """The time is over. A BaseException, so that hypothesis does not take it for a counterexample."""


def test_no_request_of_the_grammar_breaks_the_service(running: Rig, caplog: pytest.LogCaptureFixture) -> None:
    _fuzz(running, caplog, float(os.environ.get("FUZZ_S", "60")))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_request_of_the_grammar_breaks_the_service_in_ten_minutes(running: Rig, caplog: pytest.LogCaptureFixture) -> None:
    _fuzz(running, caplog, float(os.environ.get("FUZZ_S", "600")))

"""The load: cheap raw connections, in a process of its own. `python -m tests.bench.load PORT TOKEN KIND CONNECTIONS SECONDS MODEL` prints one JSON line.

KIND `whole`: each connection asks again as soon as it is answered; latencies in ms and requests a second.
KIND `stream`: each connection reads one paced stream after another; the age of each event on arrival (from the worker's stamp) in ms and events a second.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

import uvloop

STAMP = re.compile(rb'"t":([0-9.]+)')
EVERY_MS = 50


class Load(asyncio.Protocol):
    def __init__(self, request: bytes, stream: bool, figures: list[float]) -> None:
        self._request, self._stream, self._figures = request, stream, figures
        self._data = b""
        self._asked = 0.0
        self.failed: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.failed = self.failed or "the connection was closed"

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        self._transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._stream:
            self._figures.extend((now - float(stamp)) * 1000 for stamp in STAMP.findall(data))
            if data.endswith(b"0\r\n\r\n"):
                self._ask()
            elif b" 200 " not in data[:16] and data.startswith(b"HTTP/"):
                self._fail(data)
            return
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._data[:end].lower()
        at = head.find(b"content-length:")
        size = int(head[at + 15 : (head + b"\r\n").find(b"\r\n", at)])
        if len(self._data) - end - 4 >= size:
            if not head.startswith(b"http/1.1 200"):
                self._fail(self._data)
                return
            self._figures.append((time.perf_counter() - self._asked) * 1000)
            self._data = b""
            self._ask()

    def _fail(self, data: bytes) -> None:
        self.failed = data[:300].decode("latin-1")
        self._transport.close()


def request(token: str, kind: str, model: str) -> bytes:
    asked: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "How are you today? " * 10}]}
    if kind == "stream":
        asked |= {"stream": True, "bench_chunks": 40, "bench_every_ms": EVERY_MS, "max_tokens": 40}
    else:
        asked |= {"max_tokens": 1}
    body = json.dumps(asked).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: bench",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        "Accept: */*",
    ]
    return ("\r\n".join([*lines, f"Content-Length: {len(body)}"]) + "\r\n\r\n").encode() + body


async def main(port: int, kind: str, connections: int, seconds: float, asked: bytes) -> None:
    loop = asyncio.get_running_loop()
    figures: list[float] = []
    protocols = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(lambda: Load(asked, kind == "stream", figures), "127.0.0.1", port)
        protocols.append(protocol)
    await asyncio.sleep(min(1.0, seconds / 4))  # warm
    figures.clear()
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - start
    failed = {protocol.failed for protocol in protocols if protocol.failed}
    ordered = sorted(figures)
    result = {"rate": len(ordered) / took, "failed": sorted(failed)}
    if ordered:
        result |= {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)], "max": ordered[-1]}
    print(json.dumps(result))


if __name__ == "__main__":
    port, token, kind, connections, seconds, model = sys.argv[1:]
    uvloop.run(main(int(port), kind, int(connections), float(seconds), request(token, kind, model)))

"""A model server that costs next to nothing: a uvloop protocol that answers a fixed body, or a paced stream with a time stamp in each event.

`python -m tests.bench.standin_worker ADDRESS` where ADDRESS is a socket's path or a port. A body with `"bench_chunks": N` and `"stream": true` gets N events, one every `bench_every_ms`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

_MESSAGE = {"role": "assistant", "content": "hello " * 20}
_BODY = json.dumps(
    {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}]}
).encode()
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Worker(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = self._data[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 : (head + b"\r\n").find(b"\r\n", at)]) if at >= 0 else 0
            if len(self._data) < end + 4 + size:
                return
            body = self._data[end + 4 : end + 4 + size]
            self._data = self._data[end + 4 + size :]
            if b"bench_chunks" in body:
                asked = json.loads(body)
                self._stream(asked["bench_chunks"], asked["bench_every_ms"] / 1000)
            else:
                self._transport.write(ANSWER)  # type: ignore[attr-defined]

    def _stream(self, left: int, every_s: float, first: bool = True) -> None:
        if self._transport.is_closing():
            return
        if left == 0:
            self._transport.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")  # type: ignore[attr-defined]
            return
        event = b'data: {"t":%.6f,"choices":[{"delta":{"content":"word "}}]}\n\n' % time.monotonic()
        self._transport.write((EVENTS if first else b"") + b"%x\r\n%b\r\n" % (len(event), event))  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_later(every_s, self._stream, left - 1, every_s, False)


async def main(address: str) -> None:
    loop = asyncio.get_running_loop()
    if address.isdigit():
        server = await loop.create_server(Worker, "127.0.0.1", int(address), backlog=1024)
    else:
        server = await loop.create_unix_server(Worker, address, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))

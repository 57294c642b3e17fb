"""A worker whose every byte a test decides: a raw server on a unix socket, one behaviour (an async function) for each request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Received:
    """One request as it came: the raw head, its lines in lower case, and the body's bytes."""

    head: bytes
    headers: dict[str, str]
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode()


Behaviour = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class ScriptedWorker:
    """Keeps what it received; `gone` counts connections that the other side closed before the behaviour had finished."""

    socket: Path
    behaviour: Behaviour
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    gone: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedWorker]:
        server = await asyncio.start_unix_server(self._client, str(self.socket), limit=2**26)
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while (request := await read_request(reader)) is not None:
                self.received.append(request)
                behaving = asyncio.ensure_future(self.behaviour(request, writer))
                watching = asyncio.ensure_future(_closed(reader))
                try:
                    await asyncio.wait((behaving, watching), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    watching.cancel()
                    cut = not behaving.done()
                    behaving.cancel()
                    await asyncio.gather(behaving, return_exceptions=True)
                if cut:
                    self.gone += 1
                    return
                if isinstance(behaving.exception(), (ConnectionError, RuntimeError)):
                    return  # uvloop says RuntimeError for a write to a closed transport
                behaving.result()
                if writer.transport.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)


async def _closed(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():  # noqa: ASYNC110  a StreamReader tells nobody about its EOF
        await asyncio.sleep(0.005)


async def read_request(reader: asyncio.StreamReader) -> Received | None:
    """The next request of a connection, None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(head, headers, body)


def response(body: bytes, status: str = "200 OK", content_type: str = "application/json", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


EVENTS_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


LAST = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def always(data: bytes) -> Behaviour:
    """Answer every request with these bytes."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return behave


def then_close(data: bytes) -> Behaviour:
    """Send these bytes and die: the connection ends without more."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.close()

    return behave


def then_hang(data: bytes) -> Behaviour:
    """Send these bytes, then nothing, for ever."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.Event().wait()

    return behave


def stream(texts: list[str], pause_s: float = 0.0, last: bool = False) -> Behaviour:
    """A well-behaved event stream, one event a chunk; `last` adds the event with a finish reason that strict clients want."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENTS_HEAD)
        for text in texts:
            writer.write(chunk(event(text)))
            await writer.drain()
            if pause_s:
                await asyncio.sleep(pause_s)
        writer.write((chunk(LAST) if last else b"") + chunk(DONE) + CHUNKED_END)
        await writer.drain()

    return behave


def model_server(reply_text: str = "hello", pause_s: float = 0.0) -> Behaviour:
    """Chat (whole and stream), completions and embeddings, as an OpenAI client expects them."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(request.body)
        if pause_s:
            await asyncio.sleep(pause_s)
        if asked.get("stream"):
            await stream([reply_text] * 3, pause_s, last=True)(request, writer)
        elif "embeddings" in request.line:
            data = {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -0.5]}], "usage": {}}
            await always(response(json.dumps(data).encode()))(request, writer)
        else:
            message = {"role": "assistant", "content": reply_text}
            data = {
                "id": "x",
                "object": "chat.completion",
                "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            }
            await always(response(json.dumps(data).encode()))(request, writer)

    return behave

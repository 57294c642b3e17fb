"""The data plane on a real port, with a fake core and a scripted worker behind it, and raw sockets in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lease_pool.data_plane import DataPlane, make_server
from lease_pool.types import Endpoint

from tests.support.worker_fake_core import CHAT, TOKEN, FakeCore, make_config
from tests.support.worker_scripted import Behaviour, ScriptedWorker, model_server

WORKER_KEY = "worker-key-77aa"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    raw_headers: list[tuple[str, str]]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        data = self.json()
        assert set(data) == {"error"}
        assert set(data["error"]) == {"message", "type", "param", "code"}
        assert isinstance(data["error"]["message"], str)
        assert data["error"]["message"]
        result: dict[str, Any] = data["error"]
        return result


class Client:
    """One raw connection: sends the bytes it is given and reads whole answers, both framings undone and checked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")[:-2]
        status = int(lines[0].split(" ")[1])
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]
        return status, headers

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body; b"" is its proper end."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def answer(self, no_body: bool = False) -> Answer:
        status, raw = await self.head()
        headers = dict(raw)
        if no_body or status < 200:
            body = b""
        elif "chunked" in headers.get("transfer-encoding", ""):
            pieces = []
            while piece := await self.chunk():
                pieces.append(piece)
            body = b"".join(pieces)
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        return Answer(status, headers, raw, body)

    async def closed(self) -> bool:
        """Whether the server closes without another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


def head(method: str = "POST", path: str = "/v1/chat/completions", token: str | None = TOKEN, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: pool"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post(data: Any = CHAT, path: str = "/v1/chat/completions", token: str | None = TOKEN, **headers: str) -> bytes:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return head("POST", path, token, Content_Type="application/json", Content_Length=str(len(body)), **headers) + body


def get(path: str, token: str | None = TOKEN, **headers: str) -> bytes:
    return head("GET", path, token, **headers)


STREAM = CHAT | {"stream": True}


async def connected(plane: DataPlane) -> Client:
    """A client on a new connection to the data plane."""
    return Client(*await asyncio.open_connection("127.0.0.1", plane.port, limit=2**26))


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Return when the condition holds; fails after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  what is looked at has no event of its own
            await asyncio.sleep(0.005)


@dataclass
class Rig:
    core: FakeCore
    plane: DataPlane
    worker: ScriptedWorker
    folder: Path

    async def connect(self) -> Client:
        return await connected(self.plane)

    async def ask(self, data: bytes, no_body: bool = False) -> Answer:
        """One request on a connection of its own."""
        client = await self.connect()
        try:
            await client.send(data)
            return await asyncio.wait_for(client.answer(no_body), 20)
        finally:
            client.close()

    async def idle(self, seconds: float = 2.0) -> None:
        """Return when no lease and no waiter is left; fails after `seconds`: the contract's two by default."""
        await until(lambda: not (self.core.active or self.core.waiting), seconds)


@contextlib.asynccontextmanager
async def make_rig(folder: Path, behaviour: Behaviour | None = None, cards: int = 1000, **changes: Any) -> AsyncIterator[Rig]:
    config = make_config(folder, **changes)
    worker = ScriptedWorker(folder / "worker.sock", behaviour or model_server())
    async with worker.running():
        core = FakeCore(config, Endpoint(worker.socket, api_key=WORKER_KEY), cards)
        plane = make_server(core)
        await plane.start("127.0.0.1", 0)
        try:
            yield Rig(core, plane, worker, folder)
        finally:
            await plane.close(0.1)

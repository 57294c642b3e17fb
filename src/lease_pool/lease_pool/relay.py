"""Passes connections of a unix socket on to a loopback port, byte for byte: for servers that cannot listen on a socket."""

from __future__ import annotations

import asyncio
import os
import socket


def run(listener: socket.socket, host: str, port: int, parent: int) -> None:
    """Relay until the parent (the server) is gone."""
    asyncio.run(_serve(listener, host, port, parent))


async def _serve(listener: socket.socket, host: str, port: int, parent: int) -> None:
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
        try:
            await _relay(reader, writer, host, port)
        finally:
            if task is not None:
                connections.discard(task)

    server = await asyncio.start_unix_server(accept, sock=listener)
    async with server:
        descriptor = os.pidfd_open(parent)
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, gone.set)
        await gone.wait()
    for task in connections:
        task.cancel()


async def _relay(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, host: str, port: int) -> None:
    try:
        server_in, server_out = await asyncio.open_connection(host, port)
    except OSError:
        client_out.close()  # the server does not listen yet: for the pool that is "not ready"
        return
    # HTTP clients never half-close: whichever side ends first ends the connection, so that a client that left is seen by the server.
    ways = [asyncio.create_task(_copy(client_in, server_out)), asyncio.create_task(_copy(server_in, client_out))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        server_out.close()
        client_out.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()

"""The wire between a gateway and one host's pool: a forwarder that can be cut like the wire of a host that is powered off, or refuse like one without its pool."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # classic BPF: `ret #0`, keep nothing of any packet


class Link:
    """Forwards 127.0.0.1:`port` to `target`. Use one event loop for all of it."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = self._listen(0)
        self.port = int(self._listener.getsockname()[1])
        self._ends: list[socket.socket] = []  # the gateway's side of every connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self.works = False

    async def start(self) -> None:
        self._accepting = asyncio.create_task(self._accept())
        self.works = True

    async def stop(self) -> None:
        """Refuse connections, and reset those that are open: the host is up, what listened on it is gone."""
        self.works = False
        self._listener.close()
        await self._end_tasks()
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
        self._ends = []

    async def cut(self) -> None:
        """From now on nothing arrives and nothing is sent, neither an acknowledgement nor a reset: the kernel drops every packet."""
        self.works = False
        await self._end_tasks()
        for end in (self._listener, *self._ends):
            program = ctypes.create_string_buffer(_DROP_ALL)
            end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))

    async def restore(self) -> None:
        """The host is on again, and knows nothing of the connections that it had."""
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        await self.stop()
        self._listener = self._listen(self.port)
        await self.start()

    @staticmethod
    def _listen(port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
        listener.setblocking(False)
        return listener

    async def _end_tasks(self) -> None:
        tasks = [*self._tasks, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            end, _ = await loop.sock_accept(self._listener)
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.append(end)
            task = asyncio.create_task(self._connect(end))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, end: socket.socket) -> None:
        """Forward both ways until either side ends; the gateway's end stays open when the wire is cut (this task is cancelled then)."""
        loop = asyncio.get_running_loop()
        with socket.socket() as pool:
            pool.setblocking(False)
            with contextlib.suppress(OSError):
                await loop.sock_connect(pool, ("127.0.0.1", self._target))
                ways = [asyncio.ensure_future(_copy(end, pool)), asyncio.ensure_future(_copy(pool, end))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)
        self._ends.remove(end)
        end.close()


async def _copy(source: socket.socket, sink: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(source, 65536):
            await loop.sock_sendall(sink, data)

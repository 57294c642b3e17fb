"""A child process that asks the driver, one question at a time: a call that hangs costs that child and nothing else.

A driver call can block for ever in C (gpu-monitoring-tools#46). A thread in it cannot be ended, a process can, and then the card can be asked again once the
driver is well. A child that not even SIGKILL ends (it sits in the kernel) is waited for, so that nothing piles up behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

CALL_S = 5.0  # one call, however long its asker would wait
REST_S = 30.0  # after a call that hung, the driver is let alone for so long
_DEATH_S = 0.2  # an ordinary process dies of SIGKILL much sooner
_ROOM = 1 << 16  # bytes of one message; an answer is the facts of one card, or the list of them
_PR_SET_PDEATHSIG = 1


class Hangs(Exception):
    """The driver did not answer within the bound, or an earlier call still hangs; the message says since when."""


class Lane:
    """At most one child, made at the first question. `answer` runs in it: what it returns for a question is sent back (both are JSON values)."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self._answer = answer
        self._turn = asyncio.Lock()
        self._call: asyncio.Task[Any] | None = None
        self._pid = 0
        self._pipe: socket.socket | None = None
        self._hung_at: float | None = None  # when the first of the calls that hung was made
        self._rests_until = 0.0

    async def ask(self, question: Any, bound_s: float) -> Any:
        """The child's answer. Raises Hangs after `bound_s`, or at once while a call that hung is let rest; EOFError when the child died."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(bound_s), self._turn:
                if self._call is not None:
                    await asyncio.wait([self._call])  # its asker may have given up; it has its own bound
                await self._ready_to_ask()
                self._call = asyncio.create_task(self._exchange(question))
                self._call.add_done_callback(lambda call: call.cancelled() or call.exception())  # seen, also when its asker has left
                return await asyncio.shield(self._call)
        except TimeoutError:
            raise Hangs(f"no answer within {time.monotonic() - began:.1f} s") from None

    def close(self) -> None:
        """End the child; it is not waited for."""
        self._kill()

    async def rest(self) -> None:
        """End the child, which nobody is asking; the next question makes another."""
        self._kill()
        await self._gone()

    async def _ready_to_ask(self) -> None:
        """Return when a child is there, or none is left over. Raises Hangs."""
        now = time.monotonic()
        if self._hung_at is not None and now < self._rests_until:
            raise Hangs(f"not asked, a driver call hangs since {now - self._hung_at:.0f} s")
        if self._pipe is None and not await self._gone():
            raise Hangs(f"not asked, process {self._pid} hangs in the driver and cannot be killed")

    async def _gone(self) -> bool:
        """Wait a moment for a child that was killed: whether none is left."""
        end = time.monotonic() + _DEATH_S
        while not self._reaped():
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _exchange(self, question: Any) -> Any:
        loop, readable, began = asyncio.get_running_loop(), asyncio.Event(), time.monotonic()
        try:
            pipe = self._pipe or self._start()
            fd = pipe.fileno()
            pipe.send(json.dumps(question).encode())
            loop.add_reader(fd, readable.set)
            try:
                async with asyncio.timeout(CALL_S):
                    await readable.wait()
            finally:
                loop.remove_reader(fd)
            reply = pipe.recv(_ROOM)
            if not reply:
                raise EOFError
        except TimeoutError:
            self._hung_at = began if self._hung_at is None else self._hung_at
            self._rests_until = time.monotonic() + REST_S
            self._kill()
            raise Hangs(f"a driver call hangs since {time.monotonic() - self._hung_at:.0f} s") from None
        except (OSError, EOFError):
            self._kill()
            raise EOFError from None
        self._hung_at = None
        return json.loads(reply)

    def _start(self) -> socket.socket:
        self._pipe, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps messages apart
        parent = os.getpid()
        # Not exec'd: a lane a card would cost 15 MB each. The child calls nothing but `answer`, and never comes back from here.
        self._pid = os.fork()  # an OSError (no process or descriptor to be had) is told as a child that died
        if self._pid == 0:
            _serve(theirs, self._answer, parent)
        theirs.close()
        return self._pipe

    def _kill(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._pid and not self._reaped():
            os.kill(self._pid, signal.SIGKILL)

    def _reaped(self) -> bool:
        """Whether no child is left."""
        if self._pid:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                    return False
            self._pid = 0
        return True


def _serve(pipe: socket.socket, answer: Callable[[Any], Any], parent: int) -> NoReturn:
    """The child's whole life. It keeps nothing of the pool open (sockets, locks), and ends with it."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the pool ends it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        keep = pipe.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
        gc.disable()  # a collection would write to every page that is still shared with the pool
        while os.getppid() == parent:
            pipe.send(json.dumps(answer(json.loads(pipe.recv(_ROOM)))).encode())
    finally:
        os._exit(0)

"""`lease-pool run`: borrow cards for a command. The open connection to the pool is the loan; a keeper process holds the occupant locks.

The keeper is the subreaper of the command's whole tree. It ends that tree when `run` dies, SIGKILL included, or the loan is ended, and it holds
the locks until the tree is gone. A command that ends by itself may leave children: they keep the card, as with flock(1). One that ends after
`run` was told to end may not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
from http.client import HTTPException, HTTPResponse
from typing import Any, NoReturn

from lease_pool.client import Client, ClientError
from lease_pool.guard import PR_SET_CHILD_SUBREAPER, _prctl, descendants

LOCK_S = 5.0
STOP_S = 5.0
TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*TO_END, signal.SIGUSR1, signal.SIGUSR2)


def run(client: Client, command: list[str], memory_mib: int | None, cards: int) -> int:
    """The command's exit status, 128 + n after signal n. Raises ClientError when there is no card to be had."""
    while True:
        response = client.open("/borrow", {"memory_mib": memory_mib, "cards": cards})
        line = response.readline()
        if not line:
            raise ClientError("the pool closed the connection before it lent a card")
        lent = json.loads(line)["cards"]
        locks = _take_all([card["lock"] for card in lent])
        if locks is not None:
            return _Borrower(response, lent, locks, command).run()
        # Another pool was faster. This one sees that by the lock, and refuses in its own time.
        print("lease-pool: someone else took the card first; asking for another", file=sys.stderr)
        response.close()


class _Borrower:
    """The process that the user sees."""

    def __init__(self, response: HTTPResponse, cards: list[dict[str, str]], locks: list[int], command: list[str]) -> None:
        self._response = response
        self._cards = cards
        self._locks = locks
        self._command = command

    def run(self) -> int:
        orders_read, orders = os.pipe2(os.O_CLOEXEC)
        told, tell = os.pipe2(os.O_CLOEXEC)
        keeper = os.fork()
        if keeper == 0:
            os.close(orders)
            os.close(told)
            _keep(self._cards, self._locks, self._command, orders_read, tell)
        for fd in (orders_read, tell, *self._locks):
            os.close(fd)
        for number in FORWARDED:
            signal.signal(number, lambda n, _: os.write(orders, f"signal {n}\n".encode()))
        ended, ended_write = os.pipe2(os.O_CLOEXEC)
        threading.Thread(target=self._watch_loan, args=(ended_write,), daemon=True).start()
        reason = ""
        poller = select.poll()
        poller.register(told, select.POLLIN)
        poller.register(ended, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == ended:
                    reason = os.read(ended, 4096).decode()
                    poller.unregister(ended)
                    if reason:
                        print(f"lease-pool: the loan was ended: {reason}", file=sys.stderr)
                        os.write(orders, b"end\n")
                elif fd == told:
                    return self._status(os.read(told, 65536), reason)

    def _status(self, data: bytes, reason: str) -> int:
        if not data:
            print("lease-pool: the keeper of the borrowed card died", file=sys.stderr)
            return 1
        answer = json.loads(data)
        if "error" in answer:
            print(f"lease-pool: {answer['error']}", file=sys.stderr)
            return int(answer["status"])
        return 1 if reason else int(answer["status"])

    def _watch_loan(self, ended: int) -> None:
        """A pool that is killed does not end the loan (the lock does not care); a pool that says so does."""
        reason = ""
        with contextlib.suppress(OSError, HTTPException, ValueError):
            for line in self._response:
                if line.strip():
                    reason = str(json.loads(line).get("ended", ""))
        if reason:
            os.write(ended, reason.encode())


def _keep(cards: list[dict[str, str]], locks: list[int], command: list[str], orders: int, tell: int) -> NoReturn:
    """The keeper: the locks it was forked with, the command, and the end of its tree."""
    code = 1
    try:
        code = _Keeper(orders, tell).keep(cards, locks, command)
    finally:
        os._exit(code)


class _Keeper:
    def __init__(self, orders: int, tell: int) -> None:
        self._orders = orders
        self._tell = tell
        self._status: int | None = None
        self._abandoned = False
        self._told_to_end = False
        self._command_pid = 0
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (*FORWARDED, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)

    def keep(self, cards: list[dict[str, str]], locks: list[int], command: list[str]) -> int:
        failure_read, failure = os.pipe2(os.O_CLOEXEC)
        self._command_pid = os.fork()
        if self._command_pid == 0:
            _become(command, cards, locks, failure)
        os.close(failure)
        number = os.read(failure_read, 64)
        if number:
            error = int(number)
            self._say(error=f"{command[0]}: {os.strerror(error)}", status=127 if error == 2 else 126)
            return 1
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        self._watch()
        return 0

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._orders, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        deadline = float("inf")
        while True:
            for fd, _ in poller.poll(50 if self._status is not None or self._abandoned else None):
                if fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif self._obey():
                    poller.unregister(self._orders)
            self._reap()
            alive = descendants() if self._status is not None or self._abandoned else {self._command_pid}
            if not alive:
                return
            if self._abandoned:
                now = time.monotonic()
                if deadline == float("inf"):
                    deadline = now + STOP_S
                    _signal_all(alive, signal.SIGTERM)
                elif now >= deadline:
                    _signal_all(alive, signal.SIGKILL)

    def _obey(self) -> bool:
        """Read orders; True at the end of `run`."""
        data = os.read(self._orders, 4096)
        for line in data.decode().split("\n"):
            if line.startswith("signal ") and self._status is None:
                number = int(line[7:])
                self._told_to_end |= number in TO_END
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._command_pid, number)
            elif line == "end":
                self._abandoned = True
        if not data and self._status is None:
            self._abandoned = True
        return not data

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._command_pid:
                self._status = os.waitstatus_to_exitcode(status)
                self._abandoned |= self._told_to_end
                self._say(status=self._status if self._status >= 0 else 128 - self._status)

    def _say(self, **answer: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(self._tell, json.dumps(answer).encode())


def _take_all(paths: list[str]) -> list[int] | None:
    """All the locks or, where one cannot be had, none."""
    locks: list[int] = []
    for path in paths:
        lock = _take(path)
        if lock is None:
            for taken in locks:
                os.close(taken)
            return None
        locks.append(lock)
    return locks


def _take(path: str) -> int | None:
    """The occupant lock, within a moment: the pool has just given it up for us."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.01)
        else:
            return fd


def _become(command: list[str], cards: list[dict[str, str]], locks: list[int], failure: int) -> NoReturn:
    number = 0
    try:
        for forwarded in (*FORWARDED, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(forwarded, signal.SIG_DFL)
        for lock in locks:
            os.set_inheritable(lock, True)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "NVIDIA_"))}
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(card["uuid"] for card in cards), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        os.execvpe(command[0], command, env)  # noqa: S606  no shell, on purpose
    except OSError as error:
        number = error.errno or 1
    os.write(failure, str(number).encode())
    os._exit(127)


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

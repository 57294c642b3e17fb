"""One occupancy of one card without systemd: a process of its own, so that it survives its pool's SIGKILL and takes the card home.

Run as a script by path with `python -I -S`: standard library only. The pool writes one JSON line (`_Job`) to its standard input, then commands
(`go`, `end`, `home`, `handover`); the end of the input means that the pool is gone. It answers with one JSON line an event.

The guard holds the occupant lock from before the idle workload's stop until after its start, is the subreaper of everything the worker starts,
and ends that whole tree (SIGTERM, `stop_s`, SIGKILL) before the idle workload may run. It never signals the idle workload.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOG_BYTES = 1 << 20
UNFINISHED = " did not finish within"
ALIVE_S = 5.0  # one `alive` command; a check that hangs is a "no"


class _Busy(Exception):
    """Someone else holds the occupant lock."""


class Guard:
    """The life of one occupancy, straight down: lock, stop, worker, ladder, start."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.lock: int | None = None
        self.commands: set[str] = set()
        self.orphaned = False  # the pool is gone
        self.statuses: dict[int, int] = {}
        self.buffer = b""
        self.output: int | None = None
        self.log: int | None = None
        self.log_size = 0
        self.idle_off = False
        self.poller = select.poll()
        self.poller.register(0, select.POLLIN)
        self.wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.poller.register(self.wake, select.POLLIN)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        os.set_blocking(0, False)

    # --- talking to the pool and to children ---

    def tell(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(1, json.dumps({"event": event, **fields}).encode() + b"\n")

    def pump(self, timeout_s: float) -> None:
        """Wait for anything: a command, the pool's end, output, a child's end."""
        for fd, _ in self.poller.poll(max(0, int(timeout_s * 1000))):
            if fd == 0:
                self._read_commands()
            elif fd == self.wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake, 4096)
            elif fd == self.output:
                self._read_output(fd)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.statuses[pid] = status

    def _read_commands(self) -> None:
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.orphaned = True
            self.poller.unregister(0)
            return
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        self.commands.update(line.decode() for line in lines)

    def _read_output(self, fd: int) -> None:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(fd, 65536)
            if not data:
                self.poller.unregister(fd)
                os.close(fd)
                self.output = None
        if self.log is not None and data:
            # A chatty server must neither block on a full pipe nor fill the disk: the newest part is kept, within two files' worth.
            if self.log_size + len(data) > LOG_BYTES:
                os.ftruncate(self.log, 0)
                os.lseek(self.log, 0, os.SEEK_SET)
                self.log_size = 0
            with contextlib.suppress(OSError):
                self.log_size += os.write(self.log, data)

    @property
    def unwanted(self) -> bool:
        return self.orphaned or "end" in self.commands

    def run(self, argv: list[str], bound_s: float) -> str:
        """Run a command of the idle workload to completion: '' when it exits 0, else what happened. Its group is killed at the bound."""
        deadline = time.monotonic() + bound_s
        failed_read, failed = os.pipe2(os.O_CLOEXEC)
        guard, pid = os.getpid(), os.fork()
        if pid == 0:
            self._become_command(argv, guard, failed)
        os.close(failed)
        number = os.read(failed_read, 16)
        os.close(failed_read)
        if number:
            os.waitpid(pid, 0)
            return f"{argv[0]}: {os.strerror(int(number))}"
        while pid not in self.statuses:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                return f"{argv[0]}{UNFINISHED} {bound_s:.1f} s"
            self.pump(min(remaining, 0.5))
        return "" if (how := ended(self.statuses.pop(pid))) == "exit 0" else f"{argv[0]}: {how}"

    def _become_command(self, argv: list[str], guard: int, failed: int) -> NoReturn:
        """A command of the idle workload: with default signal handling, without the guard's descriptors, and dead with the guard.

        Half a start must not go on beside the next guard's. What the command leaves behind is its child, and lives.
        """
        number = errno.EPIPE
        try:
            os.setsid()
            _default_signals()
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.execvpe(argv[0], argv, self.job["idle_env"])  # noqa: S606  no shell, on purpose
        except OSError as error:
            number = error.errno or number
        finally:
            os.write(failed, str(number).encode())
            os._exit(127)

    def sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            self.pump(remaining)

    # --- the phases ---

    def take_lock(self, wait_s: float) -> None:
        fd = os.open(self.job["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    raise _Busy from None
                self.pump(0.01)
            else:
                self.lock = fd
                return

    def drop_lock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def alive(self, deadline: float) -> bool:
        command = self.job["alive"]
        return bool(command) and self.run(command, max(0.1, min(ALIVE_S, deadline - time.monotonic()))) == ""

    def stop_idle(self) -> str:
        """'' once the idle workload is gone, else the reason; a failing stop is retried until `free_s`."""
        if not self.job["stop"]:
            self.idle_off = True
            return ""
        deadline = time.monotonic() + self.job["free_s"]
        pause, before = 0.05, ""
        while True:
            reason = self.run(self.job["stop"], max(0.1, deadline - time.monotonic()))
            before = reason = telling(before, reason)
            if not reason:
                self.idle_off = True
                if not self.alive(deadline):
                    return ""
                reason = "the idle workload still works after its stop"
            if time.monotonic() + pause >= deadline:
                return f"{reason} (free_s {self.job['free_s']:g} passed)"
            self.sleep(pause)
            pause = min(pause * 2, 1.0)

    def start_idle(self) -> str:
        """'' once the idle workload runs and works, else the reason; a failing start is retried until `free_s`."""
        if not self.job["start"]:
            return ""
        deadline = time.monotonic() + self.job["free_s"]
        if not self.idle_off and self.alive(deadline):
            return ""
        if self.job["unsure"]:  # a guard was killed here, perhaps in the middle of a start
            self.run(self.job["stop"], max(0.1, deadline - time.monotonic()))
        pause, before = 0.05, ""
        while True:
            if os.path.exists(self.job["hold"]):
                return ""
            reason = self.run(self.job["start"], max(0.1, deadline - time.monotonic()))
            before = reason = telling(before, reason)
            if not reason:
                reason = self._works(deadline)
                if not reason:
                    return ""
                # It was started and does not work: only a stop makes a second start safe.
                self.run(self.job["stop"], max(0.1, deadline - time.monotonic()))
            if time.monotonic() + pause >= deadline:
                return f"{reason} (free_s {self.job['free_s']:g} passed)"
            self.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _works(self, deadline: float) -> str:
        patience = min(deadline, time.monotonic() + max(1.0, self.job["free_s"] / 2))
        pause = 0.02
        while not self.alive(patience):
            if time.monotonic() + pause >= patience:
                return "the idle workload was started but does not work"
            self.sleep(pause)
            pause = min(pause * 2, 0.25)
        return ""

    def launch(self) -> int:
        """Start the worker, which inherits the lock, and nothing else of the guard's."""
        read, write = os.pipe2(os.O_CLOEXEC)
        self.log = os.open(self.job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(write, guard)
        os.close(write)
        os.set_blocking(read, False)
        self.output = read
        self.poller.register(read, select.POLLIN)
        return pid

    def _become_worker(self, output: int, guard: int) -> NoReturn:
        try:
            os.setsid()
            _default_signals()
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(1)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if null > 2:
                os.close(null)
            if self.lock is not None:
                os.set_inheritable(self.lock, True)
            os.execvpe(self.job["argv"][0], self.job["argv"], self.job["env"])  # noqa: S606  no shell, on purpose
        except OSError as error:
            os.write(2, f"{self.job['argv'][0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def end_tree(self) -> None:
        """SIGTERM, `stop_s`, SIGKILL; returns when no descendant is left, however long a process stuck in the kernel takes."""
        deadline = time.monotonic() + self.job["stop_s"]
        asked: set[int] = set()
        pause = 0.002
        while True:
            self.pump(0)
            alive = descendants()
            if not alive:
                return
            if time.monotonic() >= deadline:
                for pid in alive:
                    _signal(pid, signal.SIGKILL)
            else:
                for pid in alive - asked:
                    _signal(pid, signal.SIGTERM)
                asked |= alive
            self.pump(pause)
            pause = min(pause * 2, 0.05)

    def occupy(self) -> None:
        self.take_lock(self.job["lock_wait_s"])
        self.pump(0)
        if self.job["handed_over"] and not self.unwanted:
            self.idle_off = True  # the former guard has stopped it, and did not go home: else our input would have ended too
        reason = "" if self.unwanted or self.idle_off else self.stop_idle()
        how = "not started"
        if reason:
            self.tell("failed", phase="freeing", reason=reason)
        else:
            self._tell_off()
            while not self.unwanted and "go" not in self.commands:
                self.pump(1.0)
            if not self.unwanted:
                how = self._serve()
        self.end_tree()
        self._unlink("key_file")
        self._unlink("socket")
        self.tell("gone", how=how)
        self._part()

    def _tell_off(self) -> None:
        """Given up before the stop, the idle workload still runs: the next guard, which goes by this, must stop it."""
        if self.idle_off:
            self.tell("off")

    def _part(self) -> None:
        """Take the card home, or leave it to the next guard as it is."""
        while not self.orphaned and not self.commands & {"home", "handover"}:
            self.pump(1.0)
        if "handover" in self.commands and not self.orphaned:
            self.drop_lock()
            self.tell("returned")
            return
        self.home()

    def _serve(self) -> str:
        self._unlink("socket")  # a killed worker's: ours to remove only now that the lock is ours
        worker = self.launch()
        self.tell("started", pid=worker)
        while worker not in self.statuses and not self.unwanted:
            self.pump(1.0)
        if worker not in self.statuses:
            self.end_tree()
        while worker not in self.statuses:
            self.pump(0.05)
        while self.output is not None and self.poller.poll(0):  # the last words of a server that died
            before = self.log_size
            self._read_output(self.output)
            if self.log_size == before:
                break
        return ended(self.statuses[worker])

    def _unlink(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.job[key])

    def loan(self) -> None:
        """Idle workload off, lock to the borrower; home when the loan is over and the lock is free, without bound.

        `lent`: a former guard of this loan was killed, the borrower has the lock already.
        """
        if self.job["lent"] or self._lend():
            while not self.unwanted:
                self.pump(1.0)
            while self.lock is None:
                with contextlib.suppress(_Busy):
                    self.take_lock(1.0)
        self.tell("gone", how="loan over")
        self._part()

    def _lend(self) -> bool:
        self.take_lock(self.job["lock_wait_s"])
        self.pump(0)
        if self.job["handed_over"] and not self.unwanted:
            self.idle_off = True
        reason = "" if self.unwanted or self.idle_off else self.stop_idle()
        if reason:
            self.tell("failed", phase="freeing", reason=reason)
            return False
        self._tell_off()
        while not self.unwanted and "go" not in self.commands:
            self.pump(1.0)
        if not self.unwanted:
            self.drop_lock()
            self.tell("started", pid=None)
        return True

    def home(self) -> None:
        reason = self.start_idle()
        self.drop_lock()
        if reason:
            self.tell("failed", phase="returning", reason=reason)
        else:
            self.tell("returned")

    def only_stop(self) -> None:
        self.take_lock(self.job["lock_wait_s"])
        reason = self.stop_idle()
        self.drop_lock()
        self.tell("failed", phase="freeing", reason=reason) if reason else self.tell("returned")

    def only_start(self) -> None:
        self.take_lock(self.job["lock_wait_s"])
        self.home()


def telling(before: str, now: str) -> str:
    """The reason worth telling: a last try that the bound cut short says less than a former one that failed by itself."""
    return before if before and UNFINISHED in now else now


def ended(status: int) -> str:
    """A wait status in words: `exit 1`, `signal 9`."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}" if code >= 0 else f"signal {-code}"


def descendants() -> set[int]:
    """All live processes below this one, those in their own session included (this process is their subreaper)."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in (b"Z", b"X"):
            zombies.add(int(name))
    found: set[int] = set()
    queue = [os.getpid()]
    while queue:
        below = [pid for pid in children.get(queue.pop(), []) if pid not in found]
        found.update(below)
        queue += below
    return found - zombies


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def read_job() -> dict[str, Any]:
    """The first line of standard input, read byte by byte so that commands behind it stay in the pipe."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(1)  # the pool died before it said what to do: nothing was touched
        line += byte
    job: dict[str, Any] = json.loads(line)
    return job


def main() -> int:
    # The pool's event loop may leave copies of our pipes open here; a worker or an idle workload that inherited one would hide our end.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = Guard(read_job())
    mode = {"occupy": guard.occupy, "loan": guard.loan, "stop": guard.only_stop, "start": guard.only_start}[guard.job["mode"]]
    try:
        mode()
    except _Busy:
        guard.tell("busy")
    except OSError as error:
        guard.tell("failed", phase="guard", reason=f"{errno.errorcode.get(error.errno or 0, '?')}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The supervisor without systemd: one guard process an occupancy (guard.py), commands for the idle workload, an ordinary user.

A pool that is killed leaves its guards, which take their cards home. A guard that is killed is cleaned up after by the pool: its worker's
tree is found by an environment mark and verified by start time and boot id before anything is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lease_pool import guard, strays
from lease_pool.config import CardConfig, PoolConfig
from lease_pool.launch import hold_path, lock_path
from lease_pool.nvml import FreeCheck
from lease_pool.ports import free_port
from lease_pool.types import Endpoint, Found, IdleState, LaunchSpec, Occupancy, OccupiedElsewhere, SupervisorError

log = logging.getLogger(__name__)

LOCK_WAIT_S = 0.3  # longer than any look at the lock takes
HANDOVER_WAIT_S = 5.0
SPAWN_RETRY_S = 0.2
SPAWN_FDS = 16  # more than a process and the pipes to it take
ALIVE_S = guard.ALIVE_S
SCRUBBED = ("CUDA_", "NVIDIA_", "LLAMA_", "GPU_FLEET_", "LISTEN_", "WATCHDOG_")
SCRUBBED_NAMES = ("NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM", "PYTHONPATH")
MARK = strays.MARK


class GuardedOccupancy:
    """One running guard, seen from the pool."""

    def __init__(
        self,
        supervisor: ProcessSupervisor,
        card: CardConfig,
        endpoint: Endpoint,
        *,
        mark: str = "",
        need_mib: int = 0,
        free_s: float,
        key_file: Path | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._supervisor = supervisor
        self._card = card
        self._endpoint = endpoint
        self._mark = mark
        self._need_mib = need_mib
        self._free_s = free_s
        self._key_file = key_file
        self._job: dict[str, Any] = {}
        self._until = 0.0
        self._went = False
        self._pid: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._off: asyncio.Future[None] = loop.create_future()
        self._started: asyncio.Future[None] = loop.create_future()
        self._gone: asyncio.Future[str] = loop.create_future()
        self._returned: asyncio.Future[None] = loop.create_future()
        self._lost: asyncio.Future[None] = loop.create_future()  # the guard was killed: the card's owner says where the card goes
        self._ended = False
        for future in (self._off, self._started, self._gone, self._returned):
            future.add_done_callback(_seen)
        self._reader: asyncio.Task[None] | None = None

    async def begin(self, job: dict[str, Any]) -> None:
        self._job = job
        self._until = time.monotonic() + self._free_s
        while True:
            try:
                return await self._spawn(job)
            except OSError as error:  # no process, descriptor or memory to be had at this moment
                if time.monotonic() + SPAWN_RETRY_S >= self._until:
                    if self._key_file is not None:
                        self._key_file.unlink(missing_ok=True)
                    where = f"card {self._card.uuid} ({self._card.slot})"
                    raise SupervisorError(f"{where}: its guard process could not be started: {error}") from None
            await asyncio.sleep(SPAWN_RETRY_S)

    async def _spawn(self, job: dict[str, Any]) -> None:
        _room_for_pipes()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            guard.__file__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
        self._reader = asyncio.create_task(self._follow(self._process), name=f"guard {self._card.slot}")
        self._send(json.dumps(job))

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def freed_idle(self) -> bool:
        """The guard has stopped the idle workload, for certain."""
        return self._off.done() and self._off.exception() is None and not self._lost.done()

    @property
    def over(self) -> bool:
        """The guard has left the card."""
        return self._returned.done()

    async def freed(self) -> None:
        await _first(self._off, self._gone)
        if not self._off.done():
            raise SupervisorError(f"card {self._card.uuid} ({self._card.slot}): given up before its idle workload was off")
        await asyncio.shield(self._off)
        await self._supervisor.free_check.wait(self._card, self._need_mib, self._free_s)
        if self._ended:
            return
        self._went = True
        self._send("go")
        await _first(self._started, self._gone)

    async def exited(self) -> str:
        return await asyncio.shield(self._gone)

    async def end(self) -> None:
        self._ended = True
        self._send("end")
        await asyncio.shield(self._gone)

    async def returned(self) -> None:
        await asyncio.shield(self._gone)
        await self._supervisor.free_check.wait_back(self._card, self._free_s)
        self._send("home")
        await _first(self._returned, self._lost)
        if self._returned.done():
            await asyncio.shield(self._returned)
        else:
            _done(self._returned, None)
            await self._supervisor.run_guard(self._card, "start", self._free_s, unsure=True)

    async def leave(self) -> None:
        """Let go of the card without starting its idle workload: a next worker, a drain or a quarantine follows."""
        self._send("end")
        self.hand_over()
        await _first(self._returned, self._lost)
        self.hand_over()
        await asyncio.shield(self._returned)

    def hand_over(self) -> None:
        if self._lost.done():
            _done(self._returned, None)
        else:
            self._send("handover")

    def _send(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(line.encode() + b"\n")

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101  for the type checker: the caller has seen to it
        async for line in process.stdout:
            self._on(json.loads(line))
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if not self._returned.done():
            await self._after_lost_guard()

    def _on(self, message: dict[str, Any]) -> None:
        where = f"card {self._card.uuid} ({self._card.slot})"
        match message["event"]:
            case "off":
                _done(self._off, None)
            case "started":
                self._pid = message["pid"]
                _done(self._started, None)
            case "gone":
                self._pid = None
                _done(self._gone, message["how"])
            case "returned":
                for future in (self._off, self._started, self._returned):
                    _done(future, None)
                _done(self._gone, "not started")
            case "busy":
                error: SupervisorError = OccupiedElsewhere(f"{where}: its occupant lock is held by another pool or by `run`")
                self._fail_all(error)
            case "failed" if message["phase"] == "freeing" and self._job["mode"] != "stop":
                _fail(self._off, SupervisorError(f"{where}: {message['reason']}"))
            case "failed":
                self._fail_all(SupervisorError(f"{where}: {message['reason']}"))

    def _fail_all(self, error: SupervisorError) -> None:
        _fail(self._off, error)
        _fail(self._started, error)
        _done(self._gone, "not started")
        _fail(self._returned, error)

    async def _after_lost_guard(self) -> None:
        """The guard itself was killed. Its worker's tree goes by its mark; what had not begun yet begins again, with a new guard."""
        where = f"card {self._card.uuid} ({self._card.slot})"
        log.error("%s: its guard process died; cleaning up after it", where)
        if self._mark:
            await strays.clear(self._mark, self._free_s)
        left_s = self._until - time.monotonic()
        lent = self._job["mode"] == "loan" and self._started.done() and not self._gone.done()
        if lent or (left_s > 0 and not (self._started.done() or self._ended or self._gone.done())):
            again = {"handed_over": False, "unsure": True, "lent": lent, "free_s": self._free_s if lent else left_s}
            with contextlib.suppress(OSError):
                await self._spawn(self._job | again)
                if self._ended:
                    self._send("end")
                elif self._went:
                    self._send("go")
                return
        if self._key_file is not None:
            self._key_file.unlink(missing_ok=True)
        error = SupervisorError(f"{where}: its guard process died")
        _done(self._lost, None)
        _fail(self._off, error)
        _done(self._started, None)
        _done(self._gone, "the guard process died")
        if self._job["mode"] in ("stop", "start"):
            _fail(self._returned, error)


class ProcessSupervisor:
    """`supervisor: process`."""

    def __init__(self, config: PoolConfig, free_check: FreeCheck | None = None) -> None:
        self._config = config
        self.free_check = free_check or FreeCheck(config)
        self._current: dict[str, GuardedOccupancy] = {}
        # Marks name this pool (its state folder), so that pools which share cards never touch each other's workers.
        digest = hashlib.sha256(str(config.state_dir).encode()).hexdigest()
        self._pool_mark = f"{guard_boot_id()}/{digest[:16]}"
        self._tag = digest[:6]  # the same, shorter, for the names of key files

    async def open(self) -> None:
        killed = await strays.clear(self._pool_mark, 10.0)
        for key_file in (self._config.runtime_dir / "launch").glob(f"*.{self._tag}*.key"):
            key_file.unlink(missing_ok=True)
        if killed:
            log.warning("killed %d stray worker processes of a former pool: %s", len(killed), ", ".join(map(str, killed)))

    def reconfigure(self, config: PoolConfig) -> None:
        self._config = config

    async def close(self) -> None:
        for occupancy in self._current.values():
            if occupancy._reader is not None and not occupancy._reader.done():
                occupancy._reader.cancel()

    async def occupy(self, card: CardConfig, spec: LaunchSpec) -> Occupancy:
        former = self._former(card)
        lease_mark = f"{self._pool_mark}/{card.slot}/{secrets.token_hex(6)}"
        # The socket belongs to whoever has the card's lock: the guard unlinks it, never we, who may share this folder with another pool.
        socket = self._config.runtime_dir / f"{card.slot}.sock"
        key_file = self._config.runtime_dir / "launch" / f"{card.slot}.{self._tag}{secrets.token_hex(2)}.key"
        endpoint = Endpoint(
            socket=None if spec.needs_port else socket, port=free_port() if spec.needs_port else 0, api_key=secrets.token_urlsafe(32)
        )
        _write_private(key_file, endpoint.api_key)
        known = {"{api_key_file}": str(key_file), "{socket}": str(socket), "{host}": endpoint.host, "{port}": str(endpoint.port)}
        env = _inherited() | _card_env(card) | {k: _fill(v, known) for k, v in spec.env.items()} | {MARK: lease_mark}
        occupancy = GuardedOccupancy(self, card, endpoint, mark=lease_mark, need_mib=spec.memory_mib, free_s=spec.free_s, key_file=key_file)
        job = self._job(card, "occupy", spec.free_s, former) | {
            "argv": [_fill(a, known) for a in spec.argv],
            "env": env,
            "stop_s": spec.stop_s,
            "key_file": str(key_file),
            "socket": str(socket),
            "log": str(self._config.runtime_dir / f"worker-{card.slot}.log"),
        }
        await occupancy.begin(job)
        self._current[card.slot] = occupancy  # one that could not begin has no card: its former still has
        if former is not None:
            former.hand_over()
        return occupancy

    async def lend(self, card: CardConfig, free_s: float) -> Occupancy:
        former = self._former(card)
        occupancy = GuardedOccupancy(self, card, Endpoint(socket=None), free_s=free_s)
        await occupancy.begin(self._job(card, "loan", free_s, former))
        self._current[card.slot] = occupancy
        if former is not None:
            former.hand_over()
        return occupancy

    async def survey(self, card: CardConfig) -> Found:
        current = self._current.get(card.slot)
        pid = current.pid if current is not None and not current.over else None
        locked = self._locked(card)
        idle = IdleState(active=False, alive=None) if locked else await self._idle(card)
        return Found(slot=card.slot, locked=locked, worker_pid=pid, idle=idle)

    async def stop_worker(self, card: CardConfig) -> None:
        current = self._current.get(card.slot)
        if current is not None and not current.over:
            await current.end()
        await strays.clear(f"{self._pool_mark}/{card.slot}/", self._config.bounds.free_s)

    async def stop_idle(self, card: CardConfig) -> None:
        await self._leave_former(card)
        await self.run_guard(card, "stop", self._config.bounds.free_s)

    async def start_idle(self, card: CardConfig) -> None:
        former = self._former(card)
        if former is None:
            await self.run_guard(card, "start", self._config.bounds.free_s)
        else:  # it takes the card home itself: between it and another guard a kill of the pool would leave the card with nobody
            await former.end()
            await former.returned()

    async def hold(self, card: CardConfig, held: bool) -> None:
        path = self._hold_path(card)
        if held:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.unlink(missing_ok=True)

    async def run_guard(self, card: CardConfig, mode: str, free_s: float, *, unsure: bool = False) -> None:
        """One stop or start of the idle workload, under the occupant lock and safe from a kill of the pool."""
        if not self._config.idle_workload.start:
            return
        runner = GuardedOccupancy(self, card, Endpoint(socket=None), free_s=free_s)
        await runner.begin(self._job(card, mode, free_s) | {"unsure": unsure})
        await _first(runner._returned, runner._off)
        await asyncio.shield(runner._off)
        await asyncio.shield(runner._returned)

    def _former(self, card: CardConfig) -> GuardedOccupancy | None:
        """The slot's occupancy that has ended and waits to be told where the card goes."""
        current = self._current.get(card.slot)
        return current if current is not None and not current.over else None

    async def _leave_former(self, card: CardConfig) -> None:
        former = self._former(card)
        if former is not None:
            with contextlib.suppress(SupervisorError):
                await former.leave()

    def _job(self, card: CardConfig, mode: str, free_s: float, former: GuardedOccupancy | None = None) -> dict[str, Any]:
        idle = self._config.idle_workload
        known = {"{uuid}": card.uuid, "{slot}": card.slot}
        return {
            "mode": mode,
            "lock": str(lock_path(self._config.locks_dir, card.slot)),
            "hold": str(self._hold_path(card)),
            "start": [_fill(a, known) for a in idle.start],
            "stop": [_fill(a, known) for a in idle.stop],
            "alive": [_fill(a, known) for a in idle.alive],
            "idle_env": _inherited() | _card_env(card),
            "free_s": free_s,
            "lock_wait_s": HANDOVER_WAIT_S if former is not None else LOCK_WAIT_S,
            "handed_over": former is not None and former.freed_idle,
            "unsure": False,
            "lent": False,
        }

    def _hold_path(self, card: CardConfig) -> Path:
        return hold_path(self._config.state_dir, card.slot)

    def _locked(self, card: CardConfig) -> bool:
        return is_locked(lock_path(self._config.locks_dir, card.slot))

    async def _idle(self, card: CardConfig) -> IdleState:
        alive = self._config.idle_workload.alive
        if not alive:
            return IdleState(active=False, alive=None)
        known = {"{uuid}": card.uuid, "{slot}": card.slot}
        try:
            process = await asyncio.create_subprocess_exec(
                *[_fill(a, known) for a in alive],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                env=_inherited() | _card_env(card),
            )
        except OSError as error:
            log.error("card %s (%s): idle_workload.alive: %s: %s", card.uuid, card.slot, alive[0], error.strerror)
            return IdleState(active=False, alive=False)
        try:
            async with asyncio.timeout(ALIVE_S):
                works = await process.wait() == 0
        except TimeoutError:
            works = False
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return IdleState(active=works, alive=works)


def is_locked(path: Path) -> bool:
    """Whether someone holds this occupant lock; looking takes it for an instant, which every taker allows for."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def _room_for_pipes() -> None:
    """Raises OSError while a process could not be made for want of descriptors: uvloop would lose some of them each time, and not say why."""
    spare: list[int] = []
    try:
        while len(spare) < SPAWN_FDS:
            spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for fd in spare:
            os.close(fd)


def guard_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _inherited() -> dict[str, str]:
    """The pool's environment without anything of the pool's, or of another card's, in it."""
    return {k: v for k, v in os.environ.items() if not k.startswith(SCRUBBED) and k not in SCRUBBED_NAMES}


def _card_env(card: CardConfig) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": card.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _fill(text: str, known: Mapping[str, str]) -> str:
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    return text


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _done(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _seen(future: asyncio.Future[Any]) -> None:
    """An error nobody waits for is not worth asyncio's own complaint: the owner task has moved on."""
    if not future.cancelled():
        future.exception()


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)

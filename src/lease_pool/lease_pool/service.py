"""`lease-pool serve`: the wiring, the signals, the order of start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import logging
import os
import signal
import socket
from typing import Any

from lease_pool import __version__
from lease_pool.admin import Admin
from lease_pool.config import ConfigError, PoolConfig, load
from lease_pool.core import PoolCore
from lease_pool.data_plane import DataPlane, make_server
from lease_pool.holds import Holds
from lease_pool.journal import Journal
from lease_pool.lock_holder import holder
from lease_pool.nvml import FreeCheck, Nvml, NvmlError
from lease_pool.reconcile import Reconciler
from lease_pool.supervisors import make as make_supervisor
from lease_pool.types import SupervisorError

log = logging.getLogger(__name__)

FIXED = ("listen", "admin_socket", "state_dir", "runtime_dir", "locks_dir", "supervisor", "card_source", "cards", "idle_workload")


class CannotStart(Exception):
    """Said to the operator in one line; nothing was touched."""


class Claims:
    """What makes a second instance refuse: locks on the state folder and the admin socket, and the port."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def take(self, config: PoolConfig) -> None:
        """Raises CannotStart, having changed nothing: neither what another instance uses nor anything of one's own."""
        _port_is_free(config.listen.host, config.listen.port)
        claims = (
            (config.state_dir / ".pool.lock", f"state_dir {config.state_dir}"),
            (config.admin_socket.with_name(config.admin_socket.name + ".lock"), f"admin_socket {config.admin_socket}"),
        )
        for path, what in claims:
            if holder(path) is not None:
                raise CannotStart(f"{what}: another lease-pool is running with it")
        for path, what in claims:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            except OSError as error:
                raise CannotStart(f"{what}: cannot be used: {error.strerror}") from None
            self._fds.append(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotStart(f"{what}: another lease-pool is running with it") from None

    def release(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def _port_is_free(host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotStart(f"listen: {host!r} is no address of this host: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                raise CannotStart(f"listen: cannot listen on {host}:{port}: {error.strerror}") from None


class Service:
    """One run of the pool."""

    def __init__(self, config_path: str, config: PoolConfig) -> None:
        self._path = config_path
        self._config = config
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._failed = False
        self._reloading: asyncio.Task[None] | None = None

    async def run(self) -> int:
        config = self._config
        claims = Claims()
        claims.take(config)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_error)
        for folder in (config.state_dir, config.runtime_dir, config.locks_dir, config.runtime_dir / "launch"):
            folder.mkdir(parents=True, exist_ok=True)
        nvml = Nvml() if config.card_source == "nvml" else None
        supervisor = make_supervisor(config, FreeCheck(config, nvml))
        journal = Journal(config.state_dir)
        holds = Holds(config.state_dir, {card.uuid: card.slot for card in config.cards})
        holds.load()
        journal.open()
        core = PoolCore(config, supervisor, journal, holds, nvml)
        data_plane = make_server(core)
        reconciler = Reconciler(core.state, core.reports)
        admin = Admin(core, reconciler)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload, core, data_plane)
        background: asyncio.Task[Any] | None = None
        try:
            await supervisor.open()
            _share_memory()
            if nvml is not None:
                await _require_cards(nvml, config)
            await core.start()
            if nvml is not None:
                await nvml.list_rests()  # not before each card's own child keeps the driver awake
            await data_plane.start(config.listen.host, config.listen.port)
            await admin.start(config.admin_socket)
            background = asyncio.create_task(reconciler.forever(), name="reconciler")
            journal.write("start", outcome=__version__)
            log.info("lease-pool %s serves %d cards on %s:%d", __version__, len(config.cards), config.listen.host, config.listen.port)
            notify("READY=1")
            await self._stop.wait()
            notify("STOPPING=1")
            await self._shut_down(core)
            journal.write("stop")
        finally:
            if background is not None:
                background.cancel()
            await admin.close()
            await data_plane.close()
            await core.stop()
            await supervisor.close()
            await journal.close()
            if nvml is not None:
                nvml.close()
            config.admin_socket.unlink(missing_ok=True)
            claims.release()
        return 1 if self._failed else 0

    async def _shut_down(self, core: PoolCore) -> None:
        """Queued requests are refused at once, running ones get `drain_s`, then the workers are ended. A second signal ends them at once."""
        core.begin_stop()
        done = asyncio.ensure_future(core.idle())
        forced = asyncio.ensure_future(self._force.wait())
        await asyncio.wait((done, forced), timeout=self._config.bounds.drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            core.end_all("the pool is stopping")
            bounds = self._config.bounds
            await asyncio.wait((done,), timeout=bounds.stop_s + 2 * bounds.free_s + 5)
        for future in (done, forced):
            future.cancel()

    def _on_stop(self) -> None:
        if self._stop.is_set():
            log.warning("second signal: ending everything now")
            self._force.set()
        self._stop.set()

    def _on_reload(self, core: PoolCore, data_plane: DataPlane) -> None:
        """Synchronous from read to use: two quick reloads cannot interleave."""
        notify("RELOADING=1")
        try:
            config = load(self._path)
            changed = [key for key in FIXED if getattr(config, key) != getattr(self._config, key)]
            if changed:
                raise ConfigError([f"{self._path}: {key}: changed: needs a restart of the pool" for key in changed])
            data_plane.reload_tokens(config.token_file)  # the last that may refuse: what `reconfigure` does has no way back
            self._config = config
            core.reconfigure(config)
        except ConfigError as error:
            for fault in error.faults:
                log.error("reload refused, the running configuration stays: %s", fault)
            core.state.journal.write("reload", outcome="refused", reason="; ".join(error.faults))
        else:
            log.info("configuration reloaded")
            core.state.journal.write("reload", outcome="ok")
        notify("READY=1")

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("fatal"):
            self._failed = True
            self._stop.set()
            self._force.set()
            return
        loop.default_exception_handler(context)


async def _require_cards(nvml: Nvml, config: PoolConfig) -> None:
    """A pool without a driver would answer 503 for ever in silence (gpustack#4314)."""
    try:
        found = await nvml.uuids()
    except NvmlError as error:
        # One card that hangs hangs the list too, and must not keep the others out of service.
        asked = await asyncio.gather(*(nvml.card(card.uuid) for card in config.cards), return_exceptions=True)
        if all(isinstance(answer, NvmlError) for answer in asked):
            raise SupervisorError(f"card_source: nvml: {error}") from None
        log.error("%s", error)
        return
    if not found:
        raise SupervisorError("card_source: nvml: the driver lists no card at all")


def _share_memory() -> None:
    """Before the first fork: every page that is unused goes back to the system, and no collection writes to what children share with us."""
    gc.collect()
    gc.freeze()
    ctypes.CDLL(None).malloc_trim(0)


def notify(state: str) -> None:
    """sd_notify(3): one datagram to the socket that systemd names; nothing without systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + address[1:] if address.startswith("@") else address)
        channel.send(state.encode())


def serve(config_path: str) -> int:
    """Exit status: 0 stopped as asked, 1 failed, 2 bad configuration."""
    import sys  # noqa: PLC0415

    import uvloop  # noqa: PLC0415

    try:
        config = load(config_path)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Service(config_path, config).run())
    except ConfigError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
        return 2
    except (CannotStart, SupervisorError) as error:
        print(f"lease-pool: {error}", file=sys.stderr)
        return 1

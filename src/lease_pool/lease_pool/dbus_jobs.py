"""PID 1 over D-Bus: unit properties kept up to date by signals, and jobs awaited to their result.

Only what the pool needs of org.freedesktop.systemd1 (man org.freedesktop.systemd1): StartUnit, StopUnit, ResetFailedUnit, their jobs'
results, and the properties of the few units of our slots. Every call has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dbus_fast import BusType, Message, MessageType
from dbus_fast.aio import MessageBus

from lease_pool.types import SupervisorError

_NAME = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_BUS = "org.freedesktop.DBus"
_UNIT = "org.freedesktop.systemd1.Unit"
_SERVICE = "org.freedesktop.systemd1.Service"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_KEPT_RESULTS = 256
# Workers are ordered to stop after the pool, so that its streams survive a shutdown; the pool itself, stopping, must not wait for itself.
NOW = "ignore-dependencies"
CALL_S = 25.0  # a polkit stall of 15 s was seen once

DONE = "done"
CANCELED = "canceled"


@dataclass(slots=True)
class UnitState:
    """What PID 1 last said of a unit; `changed` wakes whoever waits for the next word."""

    name: str
    path: str
    properties: dict[str, Any] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def active(self) -> str:
        return str(self.properties.get("ActiveState", "inactive"))

    @property
    def down(self) -> bool:
        """No process of it is left and none is being started."""
        return self.active in ("inactive", "failed")

    @property
    def busy(self) -> bool:
        """A job of it is queued or running."""
        job = self.properties.get("Job") or (0, "/")
        return bool(job[0])

    @property
    def main_pid(self) -> int | None:
        return int(self.properties.get("MainPID", 0)) or None

    @property
    def status(self) -> str:
        return str(self.properties.get("StatusText", ""))

    @property
    def ending(self) -> str:
        """How the main process ended last: `exit 0`, `signal 9`, or PID 1's own word where there was none."""
        code, status = int(self.properties.get("ExecMainCode", 0)), int(self.properties.get("ExecMainStatus", 0))
        if code == 1:  # CLD_EXITED
            return f"exit {status}"
        if code in (2, 3):  # CLD_KILLED, CLD_DUMPED
            return f"signal {status}"
        return str(self.properties.get("Result", "unknown"))

    @property
    def exit_status(self) -> int | None:
        return int(self.properties.get("ExecMainStatus", 0)) if int(self.properties.get("ExecMainCode", 0)) == 1 else None


def unit_path(name: str) -> str:
    """The object path of a unit: every character but letters and digits is escaped (sd_bus_path_encode(3))."""
    escaped = "".join(c if c.isascii() and (c.isalpha() or (c.isdigit() and i)) else f"_{ord(c):02x}" for i, c in enumerate(name))
    return f"{_PATH}/unit/{escaped}"


class Systemd:
    """One connection to PID 1, made again when it breaks."""

    def __init__(self) -> None:
        self._bus: MessageBus | None = None
        self._watching: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._units: dict[str, UnitState] = {}
        self._by_path: dict[str, UnitState] = {}
        self._waiters: dict[str, list[asyncio.Future[str]]] = {}
        self._results: OrderedDict[str, str] = OrderedDict()

    async def watch(self, names: Iterable[str]) -> None:
        """Follow these units from now on."""
        for name in names:
            state = UnitState(name, unit_path(name))
            self._units[name] = self._by_path[state.path] = state
        await self._connected()

    async def close(self) -> None:
        if self._bus is not None:
            bus, self._bus = self._bus, None
            bus.disconnect()
            with contextlib.suppress(Exception):
                await asyncio.wait_for(bus.wait_for_disconnect(), 1)  # type: ignore[no-untyped-call]

    def state(self, name: str) -> UnitState:
        return self._units[name]

    # --- jobs ---------------------------------------------------------------------------------------------------------

    async def start(self, name: str) -> str:
        """Queue a start, await its job, return PID 1's result (`done`, `canceled`, `failed`, `timeout`, `dependency`, …)."""
        return await self._job("StartUnit", name)

    async def stop(self, name: str, *, mode: str = "replace") -> str:
        """Queue a stop, await its job, return its result. `done` for a unit that is not loaded."""
        try:
            return await self._job("StopUnit", name, mode)
        except _DbusError as error:
            if error.name == "org.freedesktop.systemd1.NoSuchUnit":
                return DONE
            raise

    async def restart(self, name: str) -> str:
        """Queue a restart, await its job, return its result."""
        return await self._job("RestartUnit", name)

    async def reset_failed(self, name: str) -> None:
        with contextlib.suppress(_DbusError):
            await self._call(_PATH, f"{_MANAGER}.ResetFailedUnit", name)

    async def host_stops(self) -> bool:
        """The host is shutting down: nothing can be started any more, and that is nobody's fault."""
        (state,) = await self._call(_PATH, f"{_PROPERTIES}.Get", _MANAGER, "SystemState")
        return bool(state.value == "stopping")

    async def _job(self, method: str, name: str, mode: str = "replace") -> str:
        (path,) = await self._call(_PATH, f"{_MANAGER}.{method}", name, mode)
        # The signal may have come before the reply; PID 1 merges jobs, so several callers may wait for one path.
        if path in self._results:
            return self._results[path]
        waiter: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(path, []).append(waiter)
        try:
            return await waiter
        finally:
            waiting = self._waiters.get(path, [])
            if waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self._waiters[path]

    # --- state --------------------------------------------------------------------------------------------------------

    async def refresh(self, name: str) -> UnitState:
        """Ask PID 1 now (signals keep the state current; this is for the start and after a broken connection)."""
        state = self._units[name]
        await self._connected()
        fresh: dict[str, Any] = {}
        for interface in (_UNIT, _SERVICE):
            (found,) = await self._call(state.path, f"{_PROPERTIES}.GetAll", interface)
            fresh.update({key: variant.value for key, variant in found.items() if key in _KEPT})
        state.properties.update(fresh)
        self._announce(state)
        return state

    async def until(self, name: str, condition: Callable[[UnitState], bool], recheck_s: float = 5.0) -> UnitState:
        """Return when the condition holds. Woken by signals; asks anew every `recheck_s` in case one was lost."""
        state = self._units[name]
        while not condition(state):
            changed = state.changed
            try:
                await asyncio.wait_for(changed.wait(), recheck_s)
            except TimeoutError:
                await self.refresh(name)
        return state

    def _announce(self, state: UnitState) -> None:
        changed, state.changed = state.changed, asyncio.Event()
        changed.set()

    # --- the bus ------------------------------------------------------------------------------------------------------

    async def _connected(self) -> MessageBus:
        async with self._connecting:
            if self._bus is not None and self._bus.connected:
                return self._bus
            try:
                async with asyncio.timeout(CALL_S):
                    bus = await MessageBus(bus_type=BusType.SYSTEM).connect()
                    bus.add_message_handler(self._on_message)
                    self._bus = bus
                    rules = [f"type='signal',sender='{_NAME}',path='{_PATH}',interface='{_MANAGER}',member='JobRemoved'"]
                    rules += [
                        f"type='signal',sender='{_NAME}',path='{state.path}',interface='{_PROPERTIES}',member='PropertiesChanged'"
                        for state in self._units.values()
                    ]
                    for rule in rules:
                        await _ask(bus, _BUS, "/org/freedesktop/DBus", f"{_BUS}.AddMatch", rule)
                    await _ask(bus, _NAME, _PATH, f"{_MANAGER}.Subscribe")
                    for state in self._units.values():
                        for interface in (_UNIT, _SERVICE):
                            (found,) = await _ask(bus, _NAME, state.path, f"{_PROPERTIES}.GetAll", interface)
                            state.properties.update({key: variant.value for key, variant in found.items() if key in _KEPT})
                        self._announce(state)
            except (OSError, TimeoutError, EOFError) as error:
                raise SupervisorError(f"the system bus does not answer: {error or 'deadline passed'}") from None
            self._drop_waiters()
            self._watching = asyncio.create_task(self._until_broken(bus), name="system bus")
            return bus

    async def _until_broken(self, bus: MessageBus) -> None:
        """A job's waiter makes no call of its own that would notice."""
        with contextlib.suppress(Exception):
            await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]
        self._drop_waiters()

    def _drop_waiters(self) -> None:
        # Signals of a broken connection are lost: who waits for a job looks at the unit itself.
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result("lost")
        self._waiters.clear()

    async def _call(self, path: str, method: str, *body: str) -> list[Any]:
        bus = await self._connected()
        try:
            async with asyncio.timeout(CALL_S):
                return await _ask(bus, _NAME, path, method, *body)
        except TimeoutError:
            raise SupervisorError(f"{_short(method, body)}: PID 1 did not answer in {CALL_S:g} s") from None
        except (OSError, EOFError) as error:
            raise SupervisorError(f"{_short(method, body)}: the system bus broke: {error}") from None

    def _on_message(self, message: Message) -> None:
        if message.message_type is not MessageType.SIGNAL:
            return
        if message.member == "JobRemoved":
            _, path, _, result = message.body
            waiters = self._waiters.pop(path, [])
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(result)
            self._results[path] = result
            while len(self._results) > _KEPT_RESULTS:
                self._results.popitem(last=False)
        elif message.member == "PropertiesChanged" and message.path in self._by_path:
            state = self._by_path[message.path]
            changed = {key: variant.value for key, variant in message.body[1].items() if key in _KEPT}
            if changed:
                state.properties.update(changed)
                self._announce(state)


_KEPT = frozenset(
    {
        "ActiveState",
        "SubState",
        "Job",
        "LoadState",
        "InvocationID",
        "MainPID",
        "ExecMainCode",
        "ExecMainStatus",
        "Result",
        "StatusText",
    }
)


class _DbusError(SupervisorError):
    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


async def _ask(bus: MessageBus, name: str, path: str, method: str, *body: str) -> list[Any]:
    """Call a method (interface and member joined by a dot); all that we call take strings."""
    interface, member = method.rsplit(".", 1)
    call = Message(destination=name, path=path, interface=interface, member=member, signature="s" * len(body), body=list(body))
    reply = await bus.call(call)
    if reply is None:
        raise EOFError
    if reply.message_type is MessageType.ERROR:
        text = reply.body[0] if reply.body else reply.error_name
        raise _DbusError(str(reply.error_name), f"{_short(method, body)}: {text}")
    return list(reply.body)


def _short(method: str, body: tuple[str, ...]) -> str:
    return " ".join([method.rsplit(".", 1)[1], *body[:1]])

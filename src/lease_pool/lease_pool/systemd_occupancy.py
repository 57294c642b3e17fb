"""One worker's time on one card, as units of PID 1: the miner's stop, the worker's start, its end, the miner's return."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lease_pool import launch
from lease_pool.dbus_jobs import DONE, NOW, Systemd, UnitState
from lease_pool.idle_drivers import IdleDriver
from lease_pool.lock_holder import holder
from lease_pool.types import Endpoint, LaunchSpec, OccupiedElsewhere, SupervisorError

if TYPE_CHECKING:
    from lease_pool.config import CardConfig, PoolConfig

_POLL_S = 0.02
_RETRY_S = 0.1


def worker_unit(slot: str) -> str:
    return f"gpu-worker@{slot}.service"


class SystemdOccupancy:
    """See `lease_pool.types.Occupancy`. The start runs in a task of its own, so that whoever awaits a phase may give up on it."""

    def __init__(self, config: PoolConfig, systemd: Systemd, idle: IdleDriver, card: CardConfig, spec: LaunchSpec) -> None:
        self._config = config
        self._systemd = systemd
        self._idle = idle
        self._card = card
        self._spec = spec
        self._unit = worker_unit(card.slot)
        self._endpoint = Endpoint(socket=Path(launch.socket_path(card.slot)), api_key=secrets.token_urlsafe(32))
        self._ended = False
        self._started = False
        self._gone: str | None = None
        self._start = asyncio.create_task(self._bring_up(), name=f"worker {card.slot}")
        # Nobody may be waiting when it fails: the failure is told to whoever asks, not to the event loop.
        self._start.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._exit: asyncio.Task[str] | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def pid(self) -> int | None:
        return self._systemd.state(self._unit).main_pid if self._started and self._gone is None else None

    async def freed(self) -> None:
        await asyncio.shield(self._start)
        if not self._started:
            raise SupervisorError(f"card {self._card.uuid}: the start was cancelled")

    async def exited(self) -> str:
        if self._exit is None:
            self._exit = asyncio.create_task(self._until_gone(), name=f"exit {self._card.slot}")
        return await asyncio.shield(self._exit)

    async def end(self) -> None:
        self._ended = True
        if self._gone is None:
            # Whoever takes the spec away decides: not consumed, the start finishes by itself without a worker (stopping a unit whose
            # start is still queued would leave neither worker nor miner running); consumed, the unit has begun and can be stopped.
            if not launch.withdraw(self._config.runtime_dir, self._card.slot):
                await self._stop()
            await self.exited()

    async def returned(self) -> None:
        await self._idle.start(self._card, self._config.bounds.free_s)

    # --- start --------------------------------------------------------------------------------------------------------

    async def _bring_up(self) -> None:
        """Retry until the card is ours and free, the start is cancelled, or `free_s` has passed (SupervisorError with the last reason)."""
        reason = "the idle workload did not stop"
        deadline = time.monotonic() + self._spec.free_s
        try:
            async with asyncio.timeout(self._spec.free_s) as bound:
                while not self._ended:
                    try:
                        await self._refuse_foreign_holder()
                        if await self._one_start(deadline):
                            self._started = True
                            return
                        reason = self._failure()
                    except OccupiedElsewhere:
                        raise
                    except SupervisorError as error:
                        reason = str(error)
                    if await self._systemd.host_stops():
                        raise OccupiedElsewhere(f"card {self._card.uuid} ({self._card.slot}): the host is shutting down")
                    if not self._ended:
                        await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            if not bound.expired():
                raise
            launch.withdraw(self._config.runtime_dir, self._card.slot)
            if (
                pid := self._foreign_holder()
            ) is not None:  # it came after our last look; a bound that its tenancy used up is no fault of the card
                raise self._occupied(pid) from None
            status = self._systemd.state(self._unit).status
            detail = f"{reason}; {status}" if status and status not in reason else reason
            raise SupervisorError(f"card {self._card.uuid}: not free in {self._spec.free_s:g} s: {detail}") from None

    async def _refuse_foreign_holder(self) -> None:
        """Raises OccupiedElsewhere when another pool or `run` has the card: then nothing is touched. Looks twice: a miner may be coming up."""
        for wait_s in (_RETRY_S, 0.0):
            pid = self._foreign_holder()
            if pid is None:
                return
            await asyncio.sleep(wait_s)
        raise self._occupied(pid)

    def _foreign_holder(self) -> int | None:
        pid = holder(self._lock())
        ours = pid is None or self._idle.holds(self._card) or pid == self._systemd.state(self._unit).main_pid
        return None if ours else pid

    def _occupied(self, pid: int | None) -> OccupiedElsewhere:
        return OccupiedElsewhere(f"card {self._card.uuid} ({self._card.slot}): its occupant lock is held by process {pid}")

    async def _one_start(self, deadline: float) -> bool:
        await self._systemd.until(self._unit, lambda state: state.down)
        await self._idle.before_worker(self._card)
        if self._ended:
            return False
        left = max(0.1, deadline - time.monotonic())
        launch.publish(self._config.runtime_dir, self._card.slot, self._launch(left), self._endpoint.api_key)
        result = await self._systemd.start(self._unit)
        if result == DONE and not self._ended:
            return True
        launch.withdraw(self._config.runtime_dir, self._card.slot)
        # The unit was already running when it was ended: it is a worker all the same until it has been stopped.
        return result == DONE and not self._systemd.state(self._unit).down

    def _launch(self, free_s: float) -> launch.Launch:
        spec = self._spec
        check = "nvml" if self._config.card_source == "nvml" else "none"
        return launch.Launch(spec.uuid, spec.argv, dict(spec.env), spec.memory_mib, free_s, spec.needs_port, check)

    def _failure(self) -> str:
        state = self._systemd.state(self._unit)
        if state.exit_status == launch.LOCK_HELD:
            return f"the occupant lock of {self._card.slot} is held by process {holder(self._lock())}"
        return state.status or f"{self._unit} is {state.active} ({state.ending})"

    # --- end ----------------------------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        while not self._systemd.state(self._unit).down:
            with contextlib.suppress(SupervisorError):
                await self._systemd.stop(self._unit, mode=NOW)
            if not (await self._systemd.refresh(self._unit)).down:
                await asyncio.sleep(_RETRY_S)

    async def _until_gone(self) -> str:
        try:
            await asyncio.shield(self._start)
        except SupervisorError:
            await self._systemd.refresh(self._unit)  # its start may still be queued
        state = await self._systemd.until(self._unit, _at_rest)
        ending = state.ending
        # PID 1 gives up on a process that survives SIGKILL; the lock does not.
        while holder(self._lock()) is not None and not self._idle.holds(self._card):  # noqa: ASYNC110  the kernel announces no release
            await asyncio.sleep(_POLL_S)
        self._gone = ending
        return ending

    def _lock(self) -> Path:
        return launch.lock_path(self._config.locks_dir, self._card.slot)


def _at_rest(state: UnitState) -> bool:
    return state.down and not state.busy

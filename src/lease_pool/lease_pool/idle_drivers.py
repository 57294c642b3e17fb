"""What runs on an unleased card, under systemd: one miner a card, one miner for all idle cards, or nothing.

A driver stops and starts; who owns the card is decided by the occupant lock alone.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lease_pool import launch
from lease_pool.dbus_jobs import Systemd, UnitState
from lease_pool.lock_holder import holder
from lease_pool.types import IdleState, OccupiedElsewhere, SupervisorError

if TYPE_CHECKING:
    from lease_pool.config import CardConfig, PoolConfig

REFRESH_UNIT = "gpu-miner-refresh.service"
_POLL_S = 0.02
_RETRY_S = 0.2
_ALIVE_RUN_S = 3.0


class IdleDriver(Protocol):
    @property
    def units(self) -> list[str]: ...

    async def before_worker(self, card: CardConfig) -> None:
        """Whatever must happen before the worker's unit is started."""

    async def stop(self, card: CardConfig) -> None:
        """Stop it on this card; returns when nothing of it holds the card."""

    async def start(self, card: CardConfig, bound_s: float) -> None:
        """Start it on this card and wait until it works. Raises SupervisorError with the reason after the bound."""

    def holds(self, card: CardConfig) -> bool:
        """The lock of this card is held, and by the idle workload."""

    async def state(self, card: CardConfig) -> IdleState: ...


class Nothing:
    """Driver `none`: cards idle."""

    units: list[str] = []  # noqa: RUF012  never written

    async def before_worker(self, card: CardConfig) -> None:
        return

    async def stop(self, card: CardConfig) -> None:
        return

    async def start(self, card: CardConfig, bound_s: float) -> None:
        return

    def holds(self, card: CardConfig) -> bool:
        return False

    async def state(self, card: CardConfig) -> IdleState:
        return IdleState(active=False, alive=None)


class _Miner:
    """What both miner drivers share: an idle workload that holds the card's occupant lock through its unit's main process."""

    def __init__(self, config: PoolConfig, systemd: Systemd) -> None:
        self._config = config
        self._systemd = systemd

    def _unit(self, card: CardConfig) -> str:
        return self._config.idle_workload.unit_template.replace("{slot}", card.slot)

    def _unit_state(self, card: CardConfig) -> UnitState:
        return self._systemd.state(self._unit(card))

    def _lock(self, card: CardConfig) -> Path:
        return launch.lock_path(self._config.locks_dir, card.slot)

    def holds(self, card: CardConfig) -> bool:
        pid = holder(self._lock(card))
        return pid is not None and pid == self._unit_state(card).main_pid

    async def state(self, card: CardConfig) -> IdleState:
        active = self._unit_state(card).active == "active" and self.holds(card)
        return IdleState(active=active, alive=await self._alive(card) if active else None)

    async def _alive(self, card: CardConfig) -> bool | None:
        """The configured command's word; None without one. A command that hangs means no."""
        argv = [a.replace("{slot}", card.slot).replace("{uuid}", card.uuid) for a in self._config.idle_workload.alive]
        if not argv:
            return None
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            raise SupervisorError(f"card {card.uuid}: idle_workload.alive: {argv[0]}: {error.strerror}") from None
        try:
            return await asyncio.wait_for(process.wait(), _ALIVE_RUN_S) == 0
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def _refuse_foreign_holder(self, card: CardConfig) -> None:
        pid = holder(self._lock(card))
        if pid is not None and not self.holds(card):
            raise OccupiedElsewhere(f"card {card.uuid} ({card.slot}): its occupant lock is held by process {pid}")

    async def _until_working(self, card: CardConfig, deadline: float, still: str) -> str:
        """Wait until it holds the card and works; returns the reason when it does not (any more)."""
        while True:
            state = self._unit_state(card)
            if state.active == "active" and self.holds(card):
                still = "is active but does not work (idle_workload.alive)"
                if await self._alive(card) in (True, None):
                    return ""
            elif state.down and not state.busy:
                return f"{state.name} is {state.active} ({state.ending})"
            if time.monotonic() >= deadline:
                return f"{state.name} {still}"
            await asyncio.sleep(_POLL_S if state.active != "active" else _RETRY_S / 2)


class PerCard(_Miner):
    """One miner unit a card: PID 1 stops it for the worker (`Conflicts=`) and starts it again (`OnSuccess=`, `OnFailure=`)."""

    @property
    def units(self) -> list[str]:
        return [self._unit(card) for card in self._config.cards]

    async def before_worker(self, card: CardConfig) -> None:
        return

    async def stop(self, card: CardConfig) -> None:
        unit = self._unit(card)
        while True:
            result = await self._systemd.stop(unit)
            state = await self._systemd.refresh(unit)
            if state.down and not state.busy and not self.holds(card):
                return
            await asyncio.sleep(_RETRY_S if result == "done" else _POLL_S)

    async def start(self, card: CardConfig, bound_s: float) -> None:
        unit, deadline = self._unit(card), time.monotonic() + bound_s
        while True:
            if launch.hold_path(self._config.state_dir, card.slot).exists():
                return
            try:
                result = await self._systemd.start(unit)
                reason = await self._until_working(card, deadline, f"does not hold the card (start: {result})")
            except SupervisorError as error:
                reason = str(error)
            if not reason:
                return
            self._refuse_foreign_holder(card)
            if await self._systemd.host_stops():
                return  # it starts with the next boot
            if time.monotonic() >= deadline:
                raise SupervisorError(f"card {card.uuid}: {reason}")
            await asyncio.sleep(_RETRY_S)


class Shared(_Miner):
    """One miner process for all idle cards. A refresh restarts it; its start step leaves out slots that are held, wanted or in use."""

    @property
    def units(self) -> list[str]:
        return [self._config.idle_workload.unit_template, REFRESH_UNIT]

    def _away(self, card: CardConfig) -> Path:
        return launch.away_path(self._config.runtime_dir, card.slot)

    async def before_worker(self, card: CardConfig) -> None:
        await self.stop(card)

    async def stop(self, card: CardConfig) -> None:
        self._away(card).touch()
        while True:
            if holder(self._lock(card)) is None:
                return
            await self._systemd.start(REFRESH_UNIT)
            await self._systemd.refresh(self._unit(card))
            if not self.holds(card):
                return
            await asyncio.sleep(_RETRY_S)

    async def start(self, card: CardConfig, bound_s: float) -> None:
        deadline = time.monotonic() + bound_s
        while True:
            self._away(card).unlink(missing_ok=True)
            if launch.hold_path(self._config.state_dir, card.slot).exists():
                return
            try:
                if not self.holds(card):
                    await self._systemd.start(REFRESH_UNIT)
                reason = await self._until_working(card, deadline, "does not hold the card")
            except SupervisorError as error:
                reason = str(error)
            if not reason:
                return
            self._refuse_foreign_holder(card)
            if await self._systemd.host_stops():
                return  # it starts with the next boot
            if time.monotonic() >= deadline:
                raise SupervisorError(f"card {card.uuid}: {reason}")
            await asyncio.sleep(_RETRY_S)


def driver_of(config: PoolConfig, systemd: Systemd) -> IdleDriver:
    """The configured driver. Raises SupervisorError for one that has no meaning under systemd."""
    name = config.idle_workload.driver
    if name == "none":
        return Nothing()
    if name == "per_card":
        return PerCard(config, systemd)
    if name == "shared":
        return Shared(config, systemd)
    raise SupervisorError(f"idle_workload.driver: {name}: needs supervisor: process")

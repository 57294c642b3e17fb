"""The supervisor where PID 1 is systemd (DESIGN.md section 3): units of a slot, started and stopped over D-Bus, excluded by the occupant lock."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lease_pool import launch
from lease_pool.dbus_jobs import NOW, Systemd
from lease_pool.idle_drivers import IdleDriver, driver_of
from lease_pool.lock_holder import holder
from lease_pool.prepare_cards import drop_in
from lease_pool.systemd_occupancy import SystemdOccupancy, worker_unit
from lease_pool.types import Found, LaunchSpec, SupervisorError

if TYPE_CHECKING:
    from lease_pool.config import CardConfig, PoolConfig

CARDS_UNIT = "gpu-cards.service"


class SystemdSupervisor:
    """See `lease_pool.types.Supervisor`."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._systemd = Systemd()
        self._idle: IdleDriver = driver_of(config, self._systemd)

    async def open(self) -> None:
        """Connect and verify what the role must have installed. Raises SupervisorError naming what is missing."""
        workers = [worker_unit(card.slot) for card in self._config.cards]
        await self._systemd.watch([*workers, *self._idle.units])
        for unit in workers:
            if self._systemd.state(unit).properties.get("LoadState") != "loaded":
                raise SupervisorError(f"{unit} is not installed; the role lease_pool installs gpu-worker@.service")
        folder = launch.folder(self._config.runtime_dir)
        if not folder.is_dir():
            raise SupervisorError(f"{folder} does not exist; systemd-tmpfiles makes it (/etc/tmpfiles.d/gpu-fleet.conf)")

    async def close(self) -> None:
        await self._systemd.close()

    def reconfigure(self, config: PoolConfig) -> None:
        self._config = config

    async def occupy(self, card: CardConfig, spec: LaunchSpec) -> SystemdOccupancy:
        return SystemdOccupancy(self._config, self._systemd, self._idle, card, spec)

    async def survey(self, card: CardConfig) -> Found:
        for unit in (worker_unit(card.slot), *self._idle.units):
            if unit == worker_unit(card.slot) or f"@{card.slot}." in unit or "@" not in unit:
                await self._systemd.refresh(unit)
        worker = self._systemd.state(worker_unit(card.slot))
        worker_pid = None if worker.down else worker.main_pid
        pid = holder(launch.lock_path(self._config.locks_dir, card.slot))
        return Found(
            slot=card.slot,
            locked=pid is not None and pid != worker_pid and not self._idle.holds(card),
            worker_pid=worker_pid,
            idle=await self._idle.state(card),
        )

    async def stop_worker(self, card: CardConfig) -> None:
        launch.withdraw(self._config.runtime_dir, card.slot)
        unit = worker_unit(card.slot)
        await self._systemd.stop(unit, mode=NOW)
        await self._systemd.until(unit, lambda state: state.down and not state.busy)

    async def stop_idle(self, card: CardConfig) -> None:
        await self._idle.stop(card)

    async def start_idle(self, card: CardConfig) -> None:
        await self._tie(card)
        await self._idle.start(card, self._config.bounds.free_s)

    async def _tie(self, card: CardConfig) -> None:
        """A card that was not there at boot has no drop-in, and its units would be skipped: now that it is back, have it made."""
        if not drop_in(worker_unit(card.slot)).exists():
            await self._systemd.restart(CARDS_UNIT)

    async def hold(self, card: CardConfig, held: bool) -> None:
        path = launch.hold_path(self._config.state_dir, card.slot)
        if held:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

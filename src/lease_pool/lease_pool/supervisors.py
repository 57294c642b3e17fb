"""The supervisor that the configuration names."""

from __future__ import annotations

from lease_pool.config import PoolConfig
from lease_pool.nvml import FreeCheck
from lease_pool.types import Supervisor


def make(config: PoolConfig, free_check: FreeCheck) -> Supervisor:
    # Imported here: dbus-fast is not needed without systemd, and the other way round.
    if config.supervisor == "systemd":
        from lease_pool.supervisor_systemd import SystemdSupervisor  # noqa: PLC0415

        systemd: Supervisor = SystemdSupervisor(config)
        return systemd
    from lease_pool.supervisor_process import ProcessSupervisor  # noqa: PLC0415

    return ProcessSupervisor(config, free_check)

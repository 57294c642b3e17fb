"""`lease-pool start-idle` (gpu-idle.service, root): starts the idle workload of every slot that is free and not held down.

Runs at boot, after a rollout and whenever the pool's unit stops. Says on standard output what it started.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lease_pool import launch
from lease_pool.idle_drivers import REFRESH_UNIT

if TYPE_CHECKING:
    from lease_pool.config import CardConfig, PoolConfig


def main(config_path: str) -> int:
    from lease_pool.config import ConfigError, load  # noqa: PLC0415

    try:
        config = load(config_path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    driver = config.idle_workload.driver
    if driver == "per_card":
        return max([_start_slot(config, card) for card in config.cards], default=0)
    if driver == "shared" and any(_free(config, card) for card in config.cards):
        return _systemctl("start", REFRESH_UNIT)
    return 0


def _start_slot(config: PoolConfig, card: CardConfig) -> int:
    unit = config.idle_workload.unit_template.replace("{slot}", card.slot)
    if launch.hold_path(config.state_dir, card.slot).exists() or _is(unit, "active") or not _installed(unit):
        return 0
    with _lock(launch.lock_path(config.locks_dir, card.slot)) as free:
        # With the lock in our hand no worker can begin meanwhile; a miner waits for it, a worker that tries is started again by the pool.
        if not free or _is(f"gpu-worker@{card.slot}.service", "active"):
            return 0
        return _systemctl("start", "--no-block", unit)


def _free(config: PoolConfig, card: CardConfig) -> bool:
    if launch.hold_path(config.state_dir, card.slot).exists():
        return False
    with _lock(launch.lock_path(config.locks_dir, card.slot)) as free:
        return free


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """The occupant lock for a moment; False when someone has it, or it does not exist (cards were not prepared)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _is(unit: str, word: str) -> bool:
    state = subprocess.run(
        ["systemctl", "show", "--property=ActiveState", "--value", unit], check=False, capture_output=True, text=True
    ).stdout.strip()
    return state == word or (word == "active" and state in ("activating", "reloading"))


def _installed(unit: str) -> bool:
    """The unit can run: its file is there and its card was found at boot."""
    shown = subprocess.run(
        ["systemctl", "show", "--property=LoadState", "--value", unit], check=False, capture_output=True, text=True
    ).stdout.strip()
    return shown == "loaded"


def _systemctl(*arguments: str) -> int:
    status = subprocess.run(["systemctl", *arguments], check=False).returncode
    if status == 0:
        print(f"started {arguments[-1]}", flush=True)
    return status

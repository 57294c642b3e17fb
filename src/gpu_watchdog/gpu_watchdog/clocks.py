"""Clocks and boot identity of this host."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpu_watchdog.state import Now

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def now() -> Now:
    """Uptime counts from the start of PID 1, so that it is also right in a container that boots systemd."""
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        started = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        started = 0.0
    return Now(time.time(), max(0.0, boot_s - started))

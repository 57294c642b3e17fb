"""Workers that outlived their guard: found by an environment mark, verified, killed, and waited for.

A process is ours when its environment holds our mark (boot id, pool, slot, occupancy). Between looking and killing a PID could be reused:
the process is pinned with a pidfd first, and only then its mark is read again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "GPU_FLEET_WORKER"


def marked(prefix: str) -> list[int]:
    """PIDs whose mark begins with `prefix`."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _has_mark(int(name), prefix)]


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat (proc(5)): clock ticks after boot; with the PID and the boot id it names one process for ever."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat.rpartition(b")")[2].split()[19])


def kill_if_marked(pid: int, prefix: str) -> bool:
    """SIGKILL the process if it still is the one with the mark."""
    try:
        before = start_time(pid)
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        if before is None or start_time(pid) != before or not _has_mark(pid, prefix):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            return True
        return False
    finally:
        os.close(fd)


async def clear(prefix: str, bound_s: float) -> list[int]:
    """Kill everything marked with `prefix` and wait until it is gone, at most `bound_s`. Returns the PIDs that were killed."""
    deadline = time.monotonic() + bound_s
    killed: set[int] = set()
    while True:
        alive = marked(prefix)
        if not alive or time.monotonic() >= deadline:
            return sorted(killed)
        killed.update(pid for pid in alive if kill_if_marked(pid, prefix))
        await asyncio.sleep(0.02)


def _has_mark(pid: int, prefix: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    wanted = f"{MARK}={prefix}".encode()
    return any(entry.startswith(wanted) for entry in environment.split(b"\0"))

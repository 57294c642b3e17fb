"""Who holds an occupant lock, read from /proc/locks: looking must never take the lock, not for an instant (a worker starts with `flock -n`)."""

from __future__ import annotations

import os
from pathlib import Path

_TABLE = Path("/proc/locks")


def holder(lock: Path) -> int | None:
    """The process that took the lock (its children may hold it after it ended); None when nobody holds it or the file is missing."""
    try:
        found = lock.stat()
    except FileNotFoundError:
        return None
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in _TABLE.read_text().splitlines():
        # `12: FLOCK  ADVISORY  WRITE 4711 00:1a:1234 0 EOF`; a line with `->` is a waiter.
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == wanted:
            return int(fields[4])
    return None

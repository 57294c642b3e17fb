"""Runs on a simulated host: looks 50 times a second whether processes of two units ever use one card together.

sampler.py RESULT UUID… — writes each finding as a line to RESULT, and "samples N" when it gets SIGTERM. A process uses a card when its
unit may (miners, workers, what a test lends a card to) and its environment names the card. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SLICE = Path("/sys/fs/cgroup/system.slice")
UNITS = ("gpu-miner", "gpu-worker@", "borrower", "second-pool")
# What holds a place in a unit's control group without using a card: the lock's waiter and our own start steps.
OURS = (b"flock", b"lease-pool", b"lease_pool", b"systemd-executor", b"(")


class User(NamedTuple):
    """A process that uses a card; its start time tells it from a later one of the same id."""

    unit: str
    pid: int
    start: bytes
    cards: str


def look() -> set[User]:
    """Every process that uses a card now."""
    found = set()
    for folder in (*SLICE.glob("*.service"), *SLICE.glob("system-gpu*.slice/*.service")):
        if not folder.name.startswith(UNITS):
            continue
        for pid in _lines(folder / "cgroup.procs"):
            try:
                line = Path("/proc", pid, "cmdline").read_bytes()
                variables = Path("/proc", pid, "environ").read_bytes().split(b"\0")
                start = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()[19]
            except (OSError, IndexError):
                continue
            cards = next((v[21:] for v in variables if v.startswith(b"CUDA_VISIBLE_DEVICES=")), b"")
            words = [os.path.basename(word) for word in line.split(b"\0")[:4]]
            if line and cards and not any(mark in word for word in words for mark in OURS):
                found.add(User(folder.name, int(pid), start, cards.decode()))
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def together(uuid: str, before: Iterable[User], between: Iterable[User], after: Iterable[User]) -> str:
    """Names processes of two units that used the card at one instant: one of them before and after the other was seen."""
    stayed = {user for user in before if user in set(after) and uuid in user.cards}
    for user in stayed:
        for other in between:
            if uuid in other.cards and other.unit != user.unit:
                return f"card {uuid}: {user.unit} (process {user.pid}) beside {other.unit} (process {other.pid})"
    return ""


def main() -> int:
    result, cards = Path(sys.argv[1]), sys.argv[2:]
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    samples = users = 0
    with result.open("w", buffering=1) as log:
        while not stopped:
            looks = look(), look(), look()
            samples += 1
            users += len(looks[1])
            for uuid in cards:
                finding = together(uuid, *looks)
                if finding:
                    print(finding, file=log)
            time.sleep(0.02)
        print(f"samples {samples} users {users}", file=log)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs on a simulated host: looks 50 times a second whether a worker and a miner of one slot are ever alive together.

sampler.py RESULT SLOT… — writes each finding as a line to RESULT, and "samples N" when it gets SIGTERM. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup/system.slice")
# What holds a place in a unit's control group without being a worker or a miner: the lock's waiter and our own start steps.
OURS = (b"flock", b"lease-pool", b"lease_pool", b"systemd-executor", b"(")


def processes(kind: str, slot: str) -> dict[int, bytes]:
    """Process ids of a unit with their start times, without those that only wait for the card."""
    found = {}
    for folder in (CGROUPS / f"system-gpu\\x2d{kind}.slice" / f"gpu-{kind}@{slot}.service", CGROUPS / f"gpu-{kind}@{slot}.service"):
        try:
            pids = (folder / "cgroup.procs").read_text().split()
        except OSError:
            continue
        for pid in pids:
            try:
                line = Path("/proc", pid, "cmdline").read_bytes()
                start = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()[19]
            except (OSError, IndexError):
                continue
            words = line.split(b"\0")[:3]
            if line and not any(mark in os.path.basename(word) for word in words for mark in OURS):
                found[int(pid)] = start
    return found


def together(slot: str) -> str:
    """Names a miner and a worker that were alive at one instant: the miner before and after the worker was seen."""
    miners = processes("miner", slot)
    workers = processes("worker", slot) if miners else {}
    if workers:
        still = processes("miner", slot)
        for pid, start in miners.items():
            if still.get(pid) == start:
                return f"slot {slot}: miner {pid} beside worker {min(workers)}"
    return ""


def main() -> int:
    result, slots = Path(sys.argv[1]), sys.argv[2:]
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    samples = 0
    with result.open("w", buffering=1) as log:
        while not stopped:
            samples += 1
            for slot in slots:
                finding = together(slot)
                if finding:
                    print(finding, file=log)
            time.sleep(0.02)
        print(f"samples {samples}", file=log)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""An idle workload for the `command` driver: `idle.py start|stop|alive SLOT FOLDER`. Standard library only.

`start` leaves a process behind whose PID is in `<folder>/<slot>.pid`; faults come from `<folder>/<slot>.fault` (one word a line):
stop-hangs, stop-slow, stop-fails, start-slow, start-fails, dead-hash (alive says no). Each start and stop is a line in `<folder>/<slot>.log`,
each workload's PID one in `<folder>/<slot>.started`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    verb, slot, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    pid_file = folder / f"{slot}.pid"
    fault_file = folder / f"{slot}.fault"
    faults = fault_file.read_text().split() if fault_file.exists() else []
    pid = int(pid_file.read_text()) if pid_file.exists() else 0
    if verb == "alive":
        return 0 if pid and running(pid) and "dead-hash" not in faults else 1
    with (folder / f"{slot}.log").open("a") as log:
        log.write(f"{verb} {time.time()}\n")
    if verb == "start":
        if "start-slow" in faults:
            time.sleep(1.0)
        if "start-fails" in faults:
            return 5
        if pid and running(pid):
            return 0
        child = subprocess.Popen(
            ["/bin/sleep", "100000"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with (folder / f"{slot}.started").open("a") as started:
            started.write(f"{child.pid}\n")
        fresh = pid_file.with_suffix(f".{os.getpid()}")
        fresh.write_text(str(child.pid))
        fresh.rename(pid_file)
        return 0
    if "stop-hangs" in faults:
        time.sleep(3600)
    if "stop-slow" in faults:
        time.sleep(1.0)
    if "stop-fails" in faults:
        return 6
    if pid and running(pid):
        os.kill(pid, signal.SIGKILL)
        while running(pid):
            time.sleep(0.002)
    pid_file.unlink(missing_ok=True)
    return 0


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


if __name__ == "__main__":
    sys.exit(main())

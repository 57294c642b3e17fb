#!/usr/bin/env python3
"""Keeps the simulated NVML's processes in step with the real ones (unit gpu-sim.service on a simulated host).

A model server on a CPU does not register with NVML. This watches for processes that have a card's UUID in CUDA_VISIBLE_DEVICES and
writes cards/<nn>/procs/<pid>: $GPU_SIM_MIB of that process's environment, else its resident memory. Launchers that only pass the
variable on do not count, nor do processes that write their own file (the stand-in miner). It also gives back the memory that a
process kept beyond its end (cards/<nn>/held_until: "<pid> <seconds>", or "forever"). Standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

INTERVAL_S = 0.15
PAGES_A_MIB = (1 << 20) // os.sysconf("SC_PAGE_SIZE")
# holders of the occupant lock and shells: they have the variable, but never a CUDA context
LAUNCHERS = {"flock", "sh", "bash", "dash", "env", "timeout", "sleep", "setpriv", "systemd", "(sd-executor)"}
OUR_HELPERS = ("lease-pool", "lease_pool")  # also as python -m lease_pool.…
MINER = "standin_miner.py"  # writes its own file


def program(cmdline: bytes) -> str:
    """The name of what runs: the script where an interpreter runs one, else the executable."""
    words = [word.decode(errors="replace") for word in cmdline.split(b"\0") if word]
    names = [os.path.basename(word) for word in words]
    if names and names[0].startswith("python"):
        scripts = [name for word, name in zip(words[1:], names[1:], strict=True) if not word.startswith("-")]
        return scripts[0] if scripts else names[0]
    return names[0] if names else ""


def visible(environ: bytes) -> dict[str, str]:
    """The two variables that matter, of one process."""
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0"))
    wanted = {b"CUDA_VISIBLE_DEVICES", b"GPU_SIM_MIB"}
    return {key.decode(): value.decode(errors="replace") for key, _, value in pairs if key in wanted}


def users(proc: Path = Path("/proc")) -> dict[str, dict[int, int]]:
    """MiB by pid, by UUID, of every process that really uses a card."""
    found: dict[str, dict[int, int]] = {}
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        process = proc / entry
        try:
            environ = (process / "environ").read_bytes()
            if b"CUDA_VISIBLE_DEVICES=" not in environ:
                continue
            name = program((process / "cmdline").read_bytes())
            if name in LAUNCHERS | {MINER, ""} or name.startswith(OUR_HELPERS):
                continue
            variables = visible(environ)
            mib = int(variables.get("GPU_SIM_MIB", 0)) or int((process / "statm").read_text().split()[1]) // PAGES_A_MIB
        except (OSError, ValueError):
            continue  # it ended, or is nothing that runs on a card
        for uuid in variables["CUDA_VISIBLE_DEVICES"].split(","):
            found.setdefault(uuid.strip(), {})[int(entry)] = mib
    return found


class Occupancy:
    """Owns the files it wrote, and no others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.written: dict[Path, int] = {}
        self.ended: dict[Path, float] = {}  # when the owner of a card's kept memory was first seen to be gone

    def scan(self) -> None:
        now = users()
        wanted: dict[Path, int] = {}
        for card in sorted((self.directory / "cards").glob("*")):
            try:
                uuid = (card / "uuid").read_text().strip()
            except OSError:
                continue
            for pid, mib in now.get(uuid, {}).items():
                wanted[card / "procs" / str(pid)] = mib
            self._remove_ended(card / "procs")
            self._free_kept(card)
        for file in self.written.keys() - wanted.keys():
            file.unlink(missing_ok=True)
        for file, mib in wanted.items():
            if self.written.get(file) != mib:
                fresh = file.with_name(f".{file.name}")
                fresh.write_text(f"{mib}\n")
                fresh.replace(file)
        self.written = wanted

    @staticmethod
    def _remove_ended(procs: Path) -> None:
        """A pid is used again one day; a file of a process that ended must be gone by then."""
        for file in procs.glob("[0-9]*"):
            if not Path(f"/proc/{file.name}").exists():
                file.unlink(missing_ok=True)

    def _free_kept(self, card: Path) -> None:
        try:
            pid, seconds = (card / "held_until").read_text().split()
        except OSError:
            self.ended.pop(card, None)
            return
        if Path(f"/proc/{pid}").exists() or seconds == "forever":
            return
        if time.monotonic() - self.ended.setdefault(card, time.monotonic()) >= float(seconds):
            (card / "held").unlink(missing_ok=True)
            (card / "held_until").unlink(missing_ok=True)


def main() -> None:
    occupancy = Occupancy(Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GPU_SIM_DIR") or "/run/gpu-sim"))
    while True:
        occupancy.scan()
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main()

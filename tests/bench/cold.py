"""`python -m tests.bench.cold [--leases N] [--idle-s S] [--cards N,N…]`: a cold request by phase, what of it is ours, and what the idle pool costs.

The real `lease-pool serve` under `supervisor: process` with the stand-in miner on a card of the simulated NVML. Phases are the journal's; what is
not ours is what the miner and the worker stamped themselves, without their interpreters' start (so that is counted as ours). Memory is the
proportional share (PSS) of the pool and of its children that ask the driver, once for each number of cards.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.support.nvml_sim import library
from tests.support.nvml_sim.cards import Card, Cards
from tests.support.pool_rig import PYTHON, ROOT, PoolRig, free_port

PARTS = ROOT / "tests" / "bench" / "cold_parts.py"
OURS_S = 0.150
MIB = 70
CORE = 0.002
ASKED_AGAIN_S = 12  # by then the pool has asked about each card a second time


@dataclass(frozen=True)
class Round:
    """One lease: seconds by phase (the journal's), the stamps of both ends, and what the client saw (both monotonic)."""

    phases: Mapping[str, float]
    stamps: Mapping[str, float]
    sent: float
    first: float
    last: float

    def took(self, begin: str, end: str) -> float:
        return self.stamps[end] - self.stamps[begin]


def rows(found: Round) -> dict[str, float]:
    """Every line of the table for one lease, in seconds."""
    miner_stop, ready = found.took("stop_began", "stop_done"), found.took("worker_began", "worker_ready")
    left, started = found.took("worker_told", "worker_left"), found.stamps["miner_started"]
    return {
        "freeing": found.phases["freeing"],
        "  of it the miner's own stop": miner_stop,
        "loading": found.phases["loading"],
        "  of it the server's own time to ready": ready,
        "first byte, from a ready worker": found.phases["first_byte"],
        "unloading": found.phases["unloading"],
        "  of it the worker's own exit": left,
        "returning": found.phases["returning"],
        "  of it the miner's own start": found.took("start_began", "miner_started"),
        "  of it miner started -> seen to hash": found.took("miner_started", "hashes"),
        "ours: request sent -> first byte": added(found.sent, found.first, miner_stop, ready),
        "ours: last byte -> miner started": added(found.last, started, left),
    }


def added(begin: float, end: float, *theirs: float) -> float:
    """What is ours between two moments."""
    return end - begin - sum(theirs)


def line(name: str, values: Iterable[float]) -> str:
    sorted_ms = sorted(1000 * value for value in values)
    at90 = sorted_ms[int(0.9 * (len(sorted_ms) - 1))]
    return f"{name:42}{statistics.median(sorted_ms):9.1f}{at90:9.1f}   [{sorted_ms[0]:.1f}..{sorted_ms[-1]:.1f}]"


def verdict(what: str, value: float, bound: float, unit: str) -> str:
    return f"  {'met   ' if value <= bound else 'MISSED'} {what} <= {bound:g} {unit}: {value:.3g}"


def rig_with(number: int = 1) -> tuple[PoolRig, dict[str, str]]:
    """The pool, its cards and their miners, and the environment it is started with."""
    port = str(free_port())
    rig = PoolRig(number, card_source="nvml", memory=[12288] * number)
    argv = [PYTHON, "-I", "-S", str(PARTS)]
    commands = {verb: [*argv, verb, "{slot}", str(rig.folder), *([port] if verb != "stop" else [])] for verb in ("start", "stop", "alive")}
    rig.config["idle_workload"] = {"driver": "command"} | commands
    rig.config["models"] = {
        "m": {
            "backend": "command",
            "memory_mib": 10000,
            "argv": [*argv, "worker", "c0", str(rig.folder), "{socket}"],
            "endpoints": ["chat"],
        }
    }
    rig.write()
    cards = Cards(rig.folder / "sim")
    cards.lay_out([Card(f"GPU-{n}", 12288) for n in range(number)])
    folder_of_library = library.build(ROOT / "build" / "nvml_sim").parent
    env = {"GPU_SIM_DIR": str(cards.directory), "LD_LIBRARY_PATH": str(folder_of_library), "GPU_FLEET_LOG_LEVEL": "warning"}
    return rig, env


async def lease(rig: PoolRig, follow: aiohttp.StreamReader) -> Round:
    """One request on a mining card, and the card home again."""
    stamps = rig.folder / "stamps"
    stamps.unlink(missing_ok=True)
    sent = time.monotonic()
    async with rig.post() as response:
        first = time.monotonic()
        await response.read()
        last = time.monotonic()
        assert response.status == 200, await response.text()
    phases: dict[str, float] = {}
    while True:  # the request's event, the lease's, and the card's own that it is mining again
        event = json.loads(await asyncio.wait_for(follow.readline(), 30))
        phases |= {name: value for name, value in event["seconds"].items() if value is not None}
        if event["event"] == "lease":
            break
    await rig.until_state("mining")
    pairs = (text.split() for text in stamps.read_text().splitlines())
    return Round(phases, {what: float(moment) for what, moment in pairs}, sent, first, last)


def cpu_s(pid: int) -> float:
    """CPU seconds so far of a process, its threads and the children it has waited for."""
    own = sum(int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) for task in os.listdir(f"/proc/{pid}/task"))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return own / 1e9 + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Of a process, those included that ended and were not waited for yet."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(name))
    return found


def memory_mib(pid: int) -> float:
    """A process's proportional share of memory."""
    lines = (text.split() for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return next(int(words[1]) for words in lines if words[0] == "Pss:") / 1024


async def measure(leases: int, idle_s: float) -> tuple[list[dict[str, float]], float]:
    """The leases' tables, and what part of a core the pool takes when idle."""
    rig, env = rig_with()
    try:
        await rig.start(env)
        assert rig.process is not None
        pid = rig.process.pid
        connector = aiohttp.UnixConnector(path=str(rig.folder / "run" / "pool.sock"))
        unbounded = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=unbounded) as session,
            session.get("http://pool/events?since=0&follow=1") as events,
        ):
            await lease(rig, events.content)  # the first imports and connects what the others find
            found = [rows(await lease(rig, events.content)) for _ in range(leases)]
        # A guard's CPU time is its pool's from when it is waited for, and the last lease's must not count as idle.
        await rig.until(lambda: len(children(pid)) == 1, "only the child that asks about the card is left")
        family = (pid, *children(pid))
        before, began = sum(map(cpu_s, family)), time.monotonic()
        await asyncio.sleep(idle_s)
        return found, (sum(map(cpu_s, family)) - before) / (time.monotonic() - began)
    finally:
        left = await rig.end()
        assert not left, f"workers left behind: {left}"


async def weigh(number: int) -> float:
    """MiB of a pool with so many cards and no request yet, and of its children, after each card was asked again."""
    rig, env = rig_with(number)
    rig.config["idle_workload"] = {"driver": "none"}
    rig.write()
    try:
        await rig.start(env)
        assert rig.process is not None
        await asyncio.sleep(ASKED_AGAIN_S)
        pid = rig.process.pid
        return sum(map(memory_mib, (pid, *children(pid))))
    finally:
        await rig.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cold")
    parser.add_argument("--leases", type=int, default=20)
    parser.add_argument("--idle-s", type=float, default=30)
    parser.add_argument("--cards", type=lambda text: list(map(int, text.split(","))), default=[1, 4, 8])
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found, core = asyncio.run(measure(options.leases, options.idle_s))
    weights = {number: asyncio.run(weigh(number)) for number in options.cards}
    print(f"cold path, {options.leases} leases, {os.cpu_count()} cores, load {load:.1f} before; ms")
    print(f"{'':42}{'median':>9}{'p90':>9}   [least..most]")
    for name in found[0]:
        print(line(name, (each[name] for each in found)))
    print(f"idle pool over {options.idle_s:g} s, with its children: {100 * core:.3f} % of a core")
    print("targets:")
    for name in (name for name in found[0] if name.startswith("ours")):
        print(verdict(name, 1000 * statistics.median(each[name] for each in found), 1000 * OURS_S, "ms"))
    for number, mib in weights.items():
        print(verdict(f"idle pool with {number} cards", mib, MIB, "MiB"))
    print(verdict("idle pool CPU", 100 * core, 100 * CORE, "% of a core"))


if __name__ == "__main__":
    main()

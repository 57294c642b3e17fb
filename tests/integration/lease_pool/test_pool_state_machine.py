"""Random operations against the real service; after each step the invariants hold.

Never two owners of a card; no worker beside an idle workload; every card back within its bound, or held with a reason; no stray process; no leaked
descriptor; no lease without a worker. The pool is killed, its guards are killed, workers die, idle workloads die or refuse, `run` borrows cards and is
killed, cards are drained and released.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.support.pool_rig import PYTHON, ROOT, PoolRig, alive, model

SLOTS = ("c0", "c1")
PARALLEL = 3
MODELS = {
    "good": model(),
    "shared": model(parallel=PARALLEL),
    "stubborn": model("--mode", "ignore-term"),
    "forks": model("--mode", "grandchild"),
    "dies-start": model("--mode", "die-start"),
    "dies-loading": model("--mode", "die-loading", "--load", "0.2"),
    "dies-request": model("--mode", "die-request"),
    "never-ready": model("--mode", "never-ready"),
    "big": model(memory_mib=9000),
}
ANSWERS = {200, 429, 502, 503, 504}
SETTLE_S = 25


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.rig: PoolRig = None  # type: ignore[assignment]
        self.requests: list[asyncio.Task[None]] = []
        self.statuses: list[int] = []
        self.both: list[object] = []
        self.watcher: asyncio.Task[None] | None = None
        self.killed = 0
        self.runs: list[subprocess.Popen[bytes]] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(window=st.sampled_from([0, 0.3]))
    def begin(self, window: float) -> None:
        bounds = {"free_s": 4, "ready_s": 1.5, "stop_s": 0.4, "queue_s": 6, "drain_s": 1, "queue": 6}
        self.rig = PoolRig(2, MODELS, memory=[10000, 5000], bounds=bounds, window_s=window)
        self.do(self.rig.start())
        self.watcher = self.loop.create_task(self._watch())

    async def _watch(self) -> None:
        """A worker and the idle workload on one card at one moment is the one thing that must never be seen."""
        while True:
            for slot in SLOTS:
                idle = self.rig.idle_pid(slot)
                mine = [pid for pid in self.rig.workers() if self._slot_of(pid) == slot]
                lent = self._borrowers(slot)
                if idle and (mine or lent) and self.rig.idle_pid(slot) == idle and any(map(alive, (*mine, *lent))):
                    self.both.append((slot, idle, mine, lent))
                if mine and lent and any(map(alive, mine)) and any(map(alive, lent)):
                    self.both.append((slot, mine, lent))
            await asyncio.sleep(0.01)

    def _slot_of(self, pid: int) -> str:
        with contextlib.suppress(OSError, IndexError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            return environ.split(b"GPU_FLEET_WORKER=")[1].split(b"\0")[0].split(b"/")[2].decode()
        return ""

    def _borrowers(self, slot: str) -> list[int]:
        """Processes of commands that `run` runs on this card."""
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                environ = Path(f"/proc/{int(name)}/environ").read_bytes().split(b"\0")
                cards = next((entry for entry in environ if entry.startswith(b"CUDA_VISIBLE_DEVICES=")), b"")
                if f"STORM={self.rig.folder}".encode() in environ and f"GPU-{slot[1]}".encode() in cards and alive(int(name)):
                    found.append(int(name))
        return found

    async def _ask(self, name: str, delay: float, stream: bool) -> None:
        killed = self.killed
        try:
            status, _ = await self.rig.ask({"model": name, "delay": delay, "stream": stream, "chunks": 5})
        except (aiohttp.ClientError, OSError):
            assert self.killed != killed, "a connection broke although the pool was not killed"
        else:
            assert status in ANSWERS
            self.statuses.append(status)

    @rule(name=st.sampled_from(sorted(MODELS)), count=st.integers(1, 4), delay=st.sampled_from([0, 0.05, 0.3]), stream=st.booleans())
    def requests_come(self, name: str, count: int, delay: float, stream: bool) -> None:
        self.requests += [self.loop.create_task(self._ask(name, delay, stream)) for _ in range(count)]

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 100))
    def a_client_leaves(self, pick: int) -> None:
        self.requests[pick % len(self.requests)].cancel()

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.3, 0.7]))
    def time_passes(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @rule(pick=st.integers(0, 10))
    def a_worker_is_killed(self, pick: int) -> None:
        workers = self.rig.workers()
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(workers[pick % len(workers)], signal.SIGKILL)

    @rule(slot=st.sampled_from(SLOTS))
    def an_idle_workload_dies(self, slot: str) -> None:
        pid = self.rig.idle_pid(slot)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @rule(slot=st.sampled_from(SLOTS), fault=st.sampled_from(["", "", "start-fails", "stop-fails", "start-slow", "dead-hash"]))
    def an_idle_workload_refuses(self, slot: str, fault: str) -> None:
        self.rig.fault(*([fault] if fault else []), slot=slot)

    @rule(cards=st.integers(1, 2), seconds=st.sampled_from(["0.05", "0.4", "3"]), child=st.booleans())
    def a_borrower_comes(self, cards: int, seconds: str, child: bool) -> None:
        script = f"setsid sleep 0.3 & exec sleep {seconds}" if child else f"exec sleep {seconds}"
        argv = [PYTHON, "-m", "lease_pool", "run", "--config", str(self.rig.path), "--cards", str(cards), "--", "/bin/sh", "-c", script]
        env = os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool"), "STORM": str(self.rig.folder)}
        self.runs.append(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    @precondition(lambda self: self.runs)
    @rule(number=st.sampled_from([signal.SIGKILL, signal.SIGTERM]))
    def a_borrower_is_killed(self, number: signal.Signals) -> None:
        self.runs[-1].send_signal(number)

    @rule(uuid=st.sampled_from(["GPU-0", "GPU-1"]))
    def an_operator_releases(self, uuid: str) -> None:
        with contextlib.suppress(AssertionError):  # 409: it has no lease
            self.do(self.rig.admin("POST", f"/release/{uuid}"))

    @rule(restart_at_once=st.booleans())
    def the_pool_is_killed(self, restart_at_once: bool) -> None:
        self.killed += 1
        self.rig.kill()
        self.do(self.rig.ended())
        if not restart_at_once:
            self.do(asyncio.sleep(0.3))
        self.do(self.rig.start(settled=False))

    @rule()
    def the_pool_is_restarted(self) -> None:
        self.killed += 1
        self.rig.kill(signal.SIGTERM)
        assert self.do(self.rig.ended(40)) == 0
        assert not self.rig.workers(), "serve exits only when its workers are gone"
        self.do(self.rig.start(settled=False))

    @rule(card=st.sampled_from(["GPU-0", "GPU-1", None]), verb=st.sampled_from(["drain", "resume", "resume"]))
    def an_operator_acts(self, card: str | None, verb: str) -> None:
        self.do(self.rig.admin("POST", f"/{verb}", {"card": card}))

    @invariant()
    def nothing_is_shared_and_the_counts_are_true(self) -> None:
        if self.rig is None:
            return
        assert not self.both, self.both
        for task in [task for task in self.requests if task.done()]:
            self.requests.remove(task)
            if not task.cancelled():
                task.result()
        status = self.do(self.rig.status())
        assert 0 <= status["queue"] <= 6 + 2 * PARALLEL  # who was on a card that missed its bound goes back to the head of the line
        leases = [card["lease"]["id"] for card in status["cards"] if card["lease"]]
        assert len(leases) == len(set(leases))
        for card in status["cards"]:
            assert (card["state"] in ("quarantined", "missing")) <= bool(card["reason"])

    def teardown(self) -> None:
        try:
            if self.rig is not None:
                self.do(self._settle())
        finally:
            if self.watcher is not None:
                self.watcher.cancel()
            left = self.do(self.rig.end()) if self.rig is not None else []
            self.loop.close()
        assert not left
        assert not self.both, self.both

    async def _settle(self) -> None:
        """Everyone leaves, faults are over: each card comes home or is held, and nothing of the storm is left."""
        for slot in SLOTS:
            self.rig.fault(slot=slot)
        for task in self.requests:
            task.cancel()
        await asyncio.gather(*self.requests, return_exceptions=True)
        for run in self.runs:
            run.kill()
            await asyncio.to_thread(run.wait, 10)
        await self.rig.admin("POST", "/resume", {})
        await self.rig.until(self._at_rest, "every card is at rest", SETTLE_S)
        for card in (await self.rig.status())["cards"]:
            if card["state"] != "mining":
                await self.rig.admin("POST", "/resume", {"card": card["uuid"]})
        await self.rig.admin("POST", "/reconcile", {})
        await self.rig.until_all("mining", SETTLE_S)
        status = await self.rig.status()
        assert status["queue"] == 0
        assert all(card["lease"] is None for card in status["cards"])
        await self.rig.until(lambda: all(map(self.rig.idle_pid, SLOTS)) and not self.rig.workers(), "all idle, no worker")
        assert not any(map(self._borrowers, SLOTS))
        assert self.rig.process is not None
        fds = len(os.listdir(f"/proc/{self.rig.process.pid}/fd"))
        assert fds < 60, f"{fds} descriptors are open in an idle pool"
        assert (await self.rig.ask({"model": "good"}))[0] == 200

    async def _at_rest(self) -> bool:
        return all(card["state"] in ("mining", "drained", "quarantined") for card in (await self.rig.status())["cards"])


def machine(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # shrinking real processes takes minutes and tells little more
        print_blob=True,
    )


@pytest.mark.timeout(300)
def test_random_operations_never_break_an_invariant() -> None:
    run_state_machine_as_test(PoolMachine, settings=machine(2, 12))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_random_operations_never_break_an_invariant() -> None:
    run_state_machine_as_test(PoolMachine, settings=machine(30, 60))

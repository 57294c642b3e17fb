"""Idle workloads that misbehave: bounded, never beside a worker, and quarantined with a reason where they cannot be kept."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from tests.support.pool_rig import Maker, model


async def test_a_stop_that_hangs_quarantines_the_card_at_free_s_and_the_request_runs_elsewhere(rigs: Maker) -> None:
    rig = rigs(2, bounds={"free_s": 1.5})
    await rig.start()
    rig.fault("stop-hangs", slot="c0")
    other = rig.idle_pid("c1")
    assert other
    async with rig.post() as response:
        assert response.status == 200
        assert response.headers["x-gpu-fleet-card"] == "GPU-1"
    card = await rig.until_state("quarantined", "c0")
    assert "freeing" in card["reason"]
    assert "free_s" in card["reason"]
    await rig.until_state("mining", "c1")
    rig.fault(slot="c0")
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.until_state("mining", "c0")


async def test_a_failing_stop_is_retried_until_it_works(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    rig.fault("stop-fails")
    asked = asyncio.create_task(rig.ask())
    await rig.until(lambda: (rig.idle / "c0.log").read_text().count("stop") >= 2, "it was retried")
    rig.fault()
    assert (await asked)[0] == 200
    await rig.until_state("mining")


async def test_a_start_that_fails_beyond_its_bound_quarantines_the_card_with_the_reason(rigs: Maker) -> None:
    rig = rigs(1, bounds={"free_s": 1})
    await rig.start()
    rig.fault("start-fails")
    assert (await rig.ask())[0] == 200
    card = await rig.until_state("quarantined")
    assert "returning" in card["reason"]
    assert "exit 5" in card["reason"]
    status, answer = await rig.ask()
    assert status == 503
    assert answer["error"]["code"] == "no_usable_card"
    assert (await rig.get("/ready"))[0] == 503
    rig.fault()
    assert rig.cli("resume", "--card", "GPU-0", "--wait", "10").returncode == 0
    assert (await rig.ask())[0] == 200


async def test_a_start_that_fails_twice_is_retried_within_its_bound(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    rig.fault("start-fails")
    assert (await rig.ask())[0] == 200
    await rig.until(lambda: (rig.idle / "c0.log").read_text().count("start") >= 3, "it was retried")
    rig.fault()
    await rig.until_state("mining")
    assert rig.idle_pid()


async def test_active_at_zero_hashrate_is_not_returned(rigs: Maker) -> None:
    rig = rigs(1, bounds={"free_s": 1.5})
    await rig.start()
    rig.fault("dead-hash")
    assert (await rig.ask())[0] == 200
    card = await rig.until_state("quarantined")
    assert "does not work" in card["reason"]
    await rig.until(lambda: rig.idle_pid() is None, "a quarantined card's idle workload is down")


async def test_an_idle_workload_that_dies_alone_is_noticed_by_the_reconciler_and_started_again(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    pid, other = rig.idle_pid("c0"), rig.idle_pid("c1")
    assert pid
    os.kill(pid, signal.SIGKILL)
    result = rig.cli("reconcile")
    assert result.returncode == 0
    assert "c0: its idle workload does not work" in result.stdout
    await rig.until(lambda: rig.idle_pid("c0") not in (None, pid), "it runs again")
    await rig.until_all("mining")
    assert rig.idle_pid("c1") == other


async def test_an_idle_workload_is_never_alive_beside_a_worker(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "grandchild")}, bounds={"stop_s": 0.3})
    await rig.start()
    seen: list[object] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            idle, workers = rig.idle_pid(), rig.workers()
            if idle and idle == rig.idle_pid() and workers:
                seen.append((idle, workers))
            await asyncio.sleep(0.003)

    watcher = asyncio.create_task(watch())
    for pause in (0.0, 0.3, 0.0, 0.8):
        assert (await rig.ask())[0] == 200
        await asyncio.sleep(pause)
    await rig.until_state("mining")
    done.set()
    await watcher
    assert not seen


async def test_the_journal_counts_the_seconds_without_the_idle_workload(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    began = time.monotonic()
    assert (await rig.ask({"delay": 0.5}))[0] == 200
    await rig.until_state("mining")
    elapsed = time.monotonic() - began
    lease = (await rig.events("lease"))[-1]
    seconds = lease["seconds"]
    assert 0.5 < seconds["idle_workload_off"] <= elapsed
    parts = [seconds[name] for name in ("freeing", "loading", "serving", "unloading", "returning")]
    assert all(part is not None for part in parts)
    assert abs(sum(parts) - seconds["idle_workload_off"]) < 0.2
    text = (await rig.get("/metrics"))[1]
    assert 'gpu_fleet_card_state{pci="",slot="c0",state="mining",uuid="GPU-0"} 1.0' in text
    assert 'gpu_fleet_leases_total{alias="m",outcome="ok"} 1.0' in text

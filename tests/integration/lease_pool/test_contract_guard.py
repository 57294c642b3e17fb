"""The guard process killed in every phase: nothing of the card's owner is at fault, so the card is not quarantined and the request is served."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.support.pool_rig import Maker, PoolRig, alive, model


def idle_workloads(rig: PoolRig) -> list[int]:
    """Every idle workload that was ever started for this pool and still runs (each start leaves a line with its PID)."""
    pids = [int(line) for line in (rig.idle / "c0.started").read_text().split()] if (rig.idle / "c0.started").exists() else []
    return [pid for pid in pids if alive(pid)]


async def kill_guard(rig: PoolRig) -> None:
    for pid in await rig.until(rig.guards, "a guard runs"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("phase", ["freeing", "loading", "serving", "unloading", "returning"])
async def test_a_guard_killed_in_any_phase_quarantines_nothing_and_its_card_comes_home(rigs: Maker, phase: str) -> None:
    modes = {"loading": ("--load", "5"), "unloading": ("--mode", "ignore-term")}.get(phase, ())
    rig = rigs(1, {"m": model(*modes), "n": model()}, bounds={"stop_s": 2})
    await rig.start()
    if phase == "freeing":
        rig.fault("stop-slow")
    if phase == "returning":
        rig.fault("start-slow")
    asking = asyncio.create_task(rig.ask({"delay": 60 if phase == "serving" else 0}))
    await rig.until_state(phase)
    if phase in ("freeing", "returning"):
        await asyncio.sleep(0.3)
    await kill_guard(rig)
    status, answer = await asking
    assert status == (502 if phase in ("loading", "serving") else 200), answer
    card = await rig.until_state("mining")
    assert card["reason"] is None
    assert rig.idle_pid()
    assert len(idle_workloads(rig)) == 1
    assert not await rig.events("quarantine")
    assert (await rig.ask({"model": "n"}))[0] == 200


async def test_a_guard_killed_while_a_drained_card_is_emptied_leaves_no_idle_workload_there(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    rig.fault("stop-slow")
    await rig.admin("POST", "/drain", {"card": "GPU-0"})
    await kill_guard(rig)
    await rig.until_state("drained")
    assert rig.idle_pid() is None


async def test_a_guard_killed_with_a_next_request_in_line_brings_no_idle_workload_beside_its_worker(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "ignore-term"), "n": model()}, bounds={"stop_s": 3})
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("unloading")
    following = asyncio.create_task(rig.ask({"model": "n", "delay": 0.8}))
    await asyncio.sleep(0.1)
    await kill_guard(rig)

    async def served() -> bool:
        lease = (await rig.card())["lease"]
        return bool(lease and lease["model"] == "n" and (await rig.card())["state"] == "serving")

    await rig.until(served, "the next request is served")
    assert idle_workloads(rig) == []
    assert (await following)[0] == 200
    await rig.until_state("mining")
    assert len(idle_workloads(rig)) == 1

"""A card that is taken out of service while it serves: its idle workload stays down from that moment, whatever then becomes of the pool."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest
from lease_pool.supervisor_process import is_locked

from tests.support.pool_rig import Maker, PoolRig


async def serving(rig: PoolRig) -> asyncio.Task[object]:
    async def ask() -> object:
        with contextlib.suppress(aiohttp.ClientError):
            return await rig.ask({"delay": 60})
        return None

    task = asyncio.create_task(ask())
    await rig.until_state("serving")
    return task


@pytest.mark.parametrize("verb", ["drain", "quarantine/GPU-0"])
async def test_a_pool_killed_before_a_held_card_s_lease_was_over_leaves_its_idle_workload_down(rigs: Maker, verb: str) -> None:
    rig = rigs(1)
    await rig.start()
    task = await serving(rig)
    await rig.admin("POST", f"/{verb}", {"reason": "fan"} | ({"card": "GPU-0"} if verb == "drain" else {}))
    rig.kill()
    await rig.ended()
    await task
    await rig.until(lambda: not is_locked(rig.folder / "run" / "cards" / "c0.use"), "the guard has left")
    assert rig.idle_pid() is None
    await rig.start(settled=False)
    assert (await rig.until_state("drained" if verb == "drain" else "quarantined"))["reason"] == "fan"
    assert rig.idle_pid() is None


async def test_a_card_resumed_before_its_lease_was_over_mines_again(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    task = await serving(rig)
    await rig.admin("POST", "/drain", {"card": "GPU-0"})
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.admin("POST", "/release/GPU-0")
    await task
    await rig.until_state("mining")
    assert rig.idle_pid()
    assert not (rig.folder / "state" / "hold" / "c0").exists()


@pytest.mark.parametrize("verb", ["drain", "quarantine/GPU-0"])
async def test_a_held_card_s_idle_worker_is_ended_and_its_model_loads_on_another(rigs: Maker, verb: str) -> None:
    rig = rigs(2, window_s=60)
    await rig.start()
    _, first = await rig.ask()
    assert (await rig.card())["state"] == "serving"
    await rig.admin("POST", f"/{verb}", {"reason": "fan"} | ({"card": "GPU-0"} if verb == "drain" else {}))
    async with rig.post() as response:
        assert (response.status, response.headers["x-gpu-fleet-card"]) == (200, "GPU-1")
        assert (await response.json())["pid"] != first["pid"]
    await rig.until_state("drained" if verb == "drain" else "quarantined", bound_s=4)
    assert first["pid"] not in rig.workers()
    assert rig.idle_pid("c0") is None

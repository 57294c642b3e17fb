"""Kills at any instant: of the pool, of the guard, of the worker. The card goes home unaided, or by the next pool, and nobody is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from tests.support.pool_rig import Maker, PoolRig, alive, model


def guards(rig: PoolRig) -> list[int]:
    """Guard processes of this pool, known by the occupant lock they hold open."""
    lock = str(rig.folder / "run" / "cards")
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if b"guard.py" in (entry / "cmdline").read_bytes():
                    held = [os.readlink(fd) for fd in (entry / "fd").iterdir()]
                    if any(link.startswith(lock) for link in held):
                        found.append(int(entry.name))
    return found


async def home(rig: PoolRig, slot: str = "c0", bound_s: float = 8) -> float:
    began = time.monotonic()
    await rig.until(lambda: not rig.workers() and rig.idle_pid(slot), f"{slot} is home", bound_s)
    return time.monotonic() - began


async def begin(rig: PoolRig, body: dict[str, object]) -> asyncio.Task[object]:
    async def ask() -> object:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            return await rig.ask(body)
        return None

    return asyncio.create_task(ask())


@pytest.mark.parametrize("phase", ["freeing", "loading", "serving", "unloading", "returning"])
async def test_kill_9_of_the_pool_in_any_phase_leaves_no_worker_and_the_idle_workload_back_unaided(rigs: Maker, phase: str) -> None:
    modes = {"loading": ("--load", "5"), "unloading": ("--mode", "ignore-term")}.get(phase, ())
    rig = rigs(1, {"m": model(*modes)})
    await rig.start()
    if phase == "freeing":
        rig.fault("stop-slow")
    if phase == "returning":
        rig.fault("start-slow")
    task = await begin(rig, {"delay": 60 if phase == "serving" else 0})
    await rig.until_state(phase)
    rig.kill()
    await rig.ended()
    await home(rig)
    # A guard is done once the idle workload works; then the lock is free for the next pool.
    await rig.until(lambda: not guards(rig), "the guard has left", 5)
    await task
    await rig.start()
    assert (await rig.ask())[0] == 200


async def test_a_new_pool_waits_for_a_card_that_the_old_one_s_guard_still_takes_home(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "ignore-term")}, bounds={"stop_s": 3})
    await rig.start()
    task = await begin(rig, {"delay": 60})
    await rig.until_state("serving")
    await rig.until(rig.workers, "a worker runs")
    rig.kill()
    await rig.ended()
    await rig.start(settled=False)
    await rig.until_state("mining", bound_s=10)
    assert rig.idle_pid()
    assert not rig.workers()
    await task


async def test_a_worker_that_is_killed_answers_502_and_the_card_goes_home(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--load", "1")})
    await rig.start()
    for phase in ("loading", "serving"):
        task = asyncio.create_task(rig.ask({"delay": 30}))
        await rig.until_state(phase)
        worker = await rig.until(rig.workers, "a worker runs")
        os.kill(worker[0], signal.SIGKILL)
        status, answer = await task
        assert status == 502, answer
        assert answer["error"]["code"] == "worker_failed"
        await rig.until_state("mining")
    assert (await rig.ask())[0] == 200


async def test_a_killed_guard_s_worker_is_ended_and_its_card_comes_home(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "grandchild")})
    await rig.start()
    task = await begin(rig, {"delay": 30})
    await rig.until_state("serving")
    await rig.until(lambda: len(rig.workers()) == 2, "worker and grandchild run")
    for pid in guards(rig):
        os.kill(pid, signal.SIGKILL)
    await home(rig)
    await rig.until_state("mining")
    status, _ = await task  # type: ignore[misc]
    assert status == 502
    assert (await rig.ask())[0] == 200


async def test_a_pool_at_start_kills_the_strays_of_a_pool_and_guard_that_were_killed_together(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "grandchild")})
    await rig.start()
    task = await begin(rig, {"delay": 30})
    await rig.until_state("serving")
    await rig.until(lambda: len(rig.workers()) == 2, "worker and grandchild run")
    rig.kill(signal.SIGSTOP)  # it must not clean up in between
    for pid in guards(rig):
        os.kill(pid, signal.SIGKILL)
    rig.kill()
    await rig.ended()
    assert rig.workers(), "the grandchild in its own session is a stray now"
    bystander = await asyncio.create_subprocess_exec("/bin/sleep", "60")
    await rig.start()
    assert rig.idle_pid()
    assert not rig.workers()
    assert alive(bystander.pid)
    bystander.kill()
    await bystander.wait()
    await task


async def test_a_lock_held_at_start_is_waited_for_without_bound_and_shown_as_serving_by_nobody(rigs: Maker) -> None:
    rig = rigs(2, bounds={"free_s": 1})
    cards = rig.folder / "run" / "cards"
    cards.mkdir(parents=True)
    with (cards / "c0.use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await rig.start(settled=False)
        assert (await rig.card("c0"))["state"] in ("returning", "serving")
        card = await rig.until_state("serving", "c0")
        assert card["lease"] == {"id": None, "alias": None, "model": None, "worker_pid": None, "since": None, "requests": 0}
        await rig.until_state("mining", "c1")
        async with rig.post() as response:  # the other card serves meanwhile
            assert response.headers["x-gpu-fleet-card"] == "GPU-1"
        assert rig.idle_pid("c0") is None
    await rig.until_state("mining", "c0")
    assert rig.idle_pid("c0")


async def test_two_pools_share_cards_without_ever_sharing_one(rigs: Maker) -> None:
    one = rigs(1)
    two = rigs(1, locks_dir=str(one.folder / "run" / "cards"))
    two.config["idle_workload"] = one.config["idle_workload"]
    two.write()
    await one.start()
    await two.start()
    both_seen: list[object] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            workers = len(one.workers()) + len(two.workers())
            if workers > 1 or (workers and one.idle_pid()):
                both_seen.append((one.workers(), two.workers(), one.idle_pid()))
            await asyncio.sleep(0.005)

    watcher = asyncio.create_task(watch())
    results = await asyncio.gather(*(rig.ask({"delay": 0.05}) for _ in range(6) for rig in (one, two)))
    done.set()
    await watcher
    assert [status for status, _ in results] == [200] * 12
    assert not both_seen
    await one.until_state("mining")
    await two.until_state("mining")
    assert one.idle_pid()


async def test_a_second_instance_refuses_before_it_touches_anything(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    pid = rig.idle_pid()
    for change in ({}, {"listen": {"host": "127.0.0.1", "port": 1 + rig.port}}):
        other = rig.folder / "other.yml"
        import yaml

        other.write_text(yaml.safe_dump(rig.config | change))
        result = rig.cli_with(other, "serve")
        assert result.returncode == 1
        assert "another lease-pool" in result.stderr or "cannot listen" in result.stderr
    assert rig.idle_pid() == pid
    assert (await rig.ask())[0] == 200

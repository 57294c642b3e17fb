"""Stops, kills, loans and tokens, as an operator's bad day brings them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from typing import Any

import aiohttp
import pytest

from tests.support.pool_rig import PYTHON, ROOT, TOKEN, Maker, PoolRig, alive, model


def borrow(rig: PoolRig, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON, "-m", "lease_pool", "run", "--config", str(rig.path), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool")},
        stdout=subprocess.PIPE,
        text=True,
    )


async def streamed(rig: PoolRig, body: dict[str, Any]) -> str:
    """A stream's whole text; raises when its chunked body is not closed properly."""
    async with rig.post({"stream": True} | body) as response:
        assert response.status == 200, await response.text()
        return await response.text()


def last_error(text: str) -> dict[str, Any]:
    assert "[DONE]" not in text
    error = json.loads(text.rstrip().rpartition("data: ")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


@pytest.mark.parametrize("how", ["drain_s", "second signal", "release"])
async def test_a_stream_that_is_cut_by_the_pool_ends_with_an_error_event(rigs: Maker, how: str) -> None:
    rig = rigs(1, bounds={"drain_s": 0.5 if how == "drain_s" else 60, "ping_s": 0.1})
    await rig.start()
    stream = asyncio.create_task(streamed(rig, {"gap": 0.2, "chunks": 100}))
    await rig.until_state("serving")
    queued = asyncio.create_task(streamed(rig, {}))
    await asyncio.sleep(0.4)
    if how == "release":
        await rig.admin("POST", "/release/GPU-0")
        assert last_error(await stream)["code"]
        assert "[DONE]" in await queued
        return
    rig.kill(signal.SIGTERM)
    error = last_error(await queued)
    assert error["code"] == "stopping"
    if how == "second signal":
        assert not stream.done()
        rig.kill(signal.SIGTERM)
    assert last_error(await stream)["code"]
    assert await rig.ended() == 0
    assert rig.idle_pid()


async def test_a_killed_guard_of_a_loan_ends_no_loan(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    run = borrow(rig, "--", "/bin/sh", "-c", "echo up; sleep 2; exit 4")
    assert run.stdout is not None
    await asyncio.to_thread(run.stdout.readline)
    await rig.until_state("serving")
    for pid in await rig.until(rig.guards, "the loan's guard runs"):
        os.kill(pid, signal.SIGKILL)
    rig.fault("start-slow")
    assert await asyncio.to_thread(run.wait, 10) == 4
    run.stdout.close()
    await rig.until_state("returning")
    for pid in await rig.until(rig.guards, "a guard takes the card home"):
        os.kill(pid, signal.SIGKILL)
    card = await rig.until_state("mining")
    assert card["reason"] is None
    assert rig.idle_pid()


async def test_sigkill_of_run_ends_the_whole_tree_on_every_card_it_borrowed(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    run = borrow(rig, "--cards", "2", "--", "/bin/sh", "-c", "setsid sleep 600 & trap '' TERM; echo $! $$; while :; do sleep 1; done")
    assert run.stdout is not None
    pids = [int(word) for word in (await asyncio.to_thread(run.stdout.readline)).split()]
    await rig.until_all("serving")
    for slot in ("c0", "c1"):
        assert rig.idle_pid(slot) is None
    run.kill()
    run.wait()
    run.stdout.close()
    await rig.until(lambda: not any(map(alive, pids)), "the tree is gone", 10)
    await rig.until_all("mining")
    assert rig.idle_pid("c0")
    assert rig.idle_pid("c1")


async def test_idle_workers_give_way_to_run_on_several_cards(rigs: Maker) -> None:
    rig = rigs(2, window_s=60)
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("serving")
    result = await asyncio.to_thread(rig.cli, "run", "--cards", "2", "--", "/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (result.returncode, sorted(result.stdout.strip().split(","))) == (0, ["GPU-0", "GPU-1"])
    await rig.until_all("mining")


async def test_run_takes_a_card_that_is_large_enough_waits_in_the_queue_and_is_refused_by_a_draining_pool(rigs: Maker) -> None:
    rig = rigs(2, memory=[5000, 9000])
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 1.5}))  # the smallest fitting card
    await rig.until_state("serving", "c0")
    result = await asyncio.to_thread(rig.cli, "run", "--memory-mib", "6000", "--", "/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (result.returncode, result.stdout) == (0, "GPU-1\n")
    result = await asyncio.to_thread(rig.cli, "run", "--cards", "2", "--", "/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (result.returncode, sorted(result.stdout.strip().split(","))) == (0, ["GPU-0", "GPU-1"])
    assert running.done()
    assert (await running)[0] == 200
    await rig.admin("POST", "/drain")
    result = await asyncio.to_thread(rig.cli, "run", "--", "/bin/true")
    assert (result.returncode, "draining" in result.stderr) == (1, True)


async def test_an_idle_workload_killed_in_any_phase_is_back_after_the_lease(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    os.kill(rig.idle_pid() or 0, signal.SIGKILL)
    assert (await rig.ask())[0] == 200
    await rig.until_state("mining")
    assert rig.idle_pid()
    rig.fault("start-slow")
    assert (await rig.ask())[0] == 200
    await rig.until_state("returning")
    rig.fault()
    assert rig.idle_pid() is None
    await rig.until_state("mining")
    pid = rig.idle_pid()
    os.kill(pid or 0, signal.SIGKILL)
    assert "does not work" in (await asyncio.to_thread(rig.cli, "reconcile")).stdout
    await rig.until(lambda: rig.idle_pid() not in (None, pid), "it is started again")


async def test_two_tokens_are_valid_while_rotating_and_an_empty_line_never_is(rigs: Maker) -> None:
    rig = rigs(1)
    (rig.folder / "token").write_text(f"\n{TOKEN}\n\nsecond\n")
    await rig.start()

    async def status(token: str) -> int:
        assert rig.session is not None
        async with rig.session.get(f"http://127.0.0.1:{rig.port}/v1/models", headers={"Authorization": f"Bearer {token}"}) as response:
            return response.status

    assert [await status(t) for t in (TOKEN, "second", "", " ", "third")] == [200, 200, 401, 401, 401]
    (rig.folder / "token").write_text("second\nthird\n")
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: "reloaded" in rig.log.read_text(), "reloaded")
    assert [await status(t) for t in (TOKEN, "second", "third", "")] == [401, 200, 200, 401]
    (rig.folder / "token").unlink()
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: "reload refused" in rig.log.read_text(), "refused")
    assert await status("second") == 200
    (rig.folder / "token").write_text("")
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: rig.log.read_text().count("reloaded") == 2, "reloaded")
    assert await status("") == 401


async def test_a_wait_is_at_most_the_caller_s_and_a_quarantined_last_card_ends_it_at_once(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 2.5}))
    await rig.until_state("serving")
    began = time.monotonic()
    status, _ = await rig.ask(x_gpu_fleet_max_wait_ms="400")
    assert (status, 0.35 < time.monotonic() - began < 1.2) == (429, True)
    waiting = asyncio.create_task(rig.ask())
    await asyncio.sleep(0.2)
    began = time.monotonic()
    assert (await asyncio.to_thread(rig.cli, "quarantine", "GPU-0", "--reason", "smoke")).returncode == 0
    assert (await waiting)[0] == 503
    assert (await running)[0] == 200
    await rig.until_state("quarantined")
    assert rig.idle_pid() is None
    assert (await rig.get("/ready"))[0] == 503
    rig.kill()
    await rig.ended()
    await rig.start(settled=False)
    assert (await rig.until_state("quarantined"))["reason"] == "smoke"
    assert rig.idle_pid() is None
    assert (await asyncio.to_thread(rig.cli, "resume", "--card", "GPU-0", "--wait", "10")).returncode == 0
    assert (await rig.ask())[0] == 200


async def test_events_since_a_time_are_those_after_it(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("mining")
    everything = await rig.events()
    middle = everything[len(everything) // 2]["time"]
    connector = aiohttp.UnixConnector(path=str(rig.folder / "run" / "pool.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get("http://pool/events", params={"since": middle}) as response:
            lines = [json.loads(line) for line in (await response.text()).splitlines()]
        assert lines == [event for event in everything if event["time"] >= middle]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3), session.get("http://pool/events", params={"since": "0", "follow": "1"}) as response:
                seen = [json.loads(await response.content.readline()) for _ in everything]
                assert seen == everything
                await rig.admin("POST", "/drain")
                assert json.loads(await response.content.readline())["event"] == "drain"
                return
    raise AssertionError("the follower saw no drain")


@pytest.mark.parametrize(("level", "ok"), [("DEBUG", True), ("Warning", True), ("eRRor", True), ("", True), ("verbose", False)])
async def test_the_log_level_is_taken_in_any_case_and_refused_when_unknown(rigs: Maker, level: str, ok: bool) -> None:
    rig = rigs(1)
    result = await asyncio.to_thread(
        subprocess.run,
        [PYTHON, "-m", "lease_pool", "check", str(rig.path)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool"), "GPU_FLEET_LOG_LEVEL": level},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == (0 if ok else 2), result.stderr
    assert ok or len(result.stderr.splitlines()) == 1


async def test_a_reload_during_a_load_touches_no_lease_and_the_new_bounds_hold_for_the_next(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--load", "1.2")}, bounds={"ready_s": 8})
    await rig.start()
    first = asyncio.create_task(rig.ask())
    await rig.until_state("loading")
    rig.config["bounds"]["ready_s"] = 0.4
    rig.write()
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: "reloaded" in rig.log.read_text(), "reloaded")
    assert (await first)[0] == 200
    await rig.until_state("mining")  # a request that comes sooner may still be served by the first one's worker
    status, answer = await rig.ask()
    assert (status, "ready_s" in answer["error"]["message"]) == (504, True)


async def test_the_smallest_stop_s_still_ends_a_worker_and_gives_its_card_back(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "ignore-term", "--mode", "grandchild")}, bounds={"stop_s": 0.05})
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("mining")
    assert rig.workers() == []

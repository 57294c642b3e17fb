"""Several things go wrong at once, or the same thing again and again: each card pays for itself only, and nobody's turn is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from tests.support.pool_rig import Maker, PoolRig, model


async def queued(rig: PoolRig, size: int) -> bool:
    return bool((await rig.status())["queue"] == size)


async def test_an_idle_workload_that_dies_again_and_again_costs_its_card_in_the_end(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    other = rig.idle_pid("c1")
    for deaths in range(1, 6):
        pid = await rig.until(lambda: rig.idle_pid("c0"), "it runs")
        await rig.until_state("mining", "c0")
        os.kill(pid, signal.SIGKILL)
        await rig.until(lambda: rig.idle_pid("c0") is None, "it died")
        assert "c0: its idle workload does not work" in (await rig.admin("POST", "/reconcile", {}))["findings"]
        if deaths < 5:
            await rig.until(lambda: rig.idle_pid("c0"), "it is started again")
    card = await rig.until_state("quarantined", "c0")
    assert card["reason"] == "its idle workload stopped working 5 times in a row"
    assert rig.idle_pid("c0") is None
    assert rig.idle_pid("c1") == other
    async with rig.post() as response:
        assert (response.status, response.headers["x-gpu-fleet-card"]) == (200, "GPU-1")
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.until_state("mining", "c0")


async def test_deaths_with_a_well_idle_workload_between_are_not_in_a_row(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    for _ in range(6):
        pid = await rig.until(rig.idle_pid, "it runs")
        await rig.until_state("mining")
        os.kill(pid, signal.SIGKILL)
        await rig.until(lambda: rig.idle_pid() is None, "it died")
        assert (await rig.admin("POST", "/reconcile", {}))["findings"]
        await rig.until(rig.idle_pid, "it is started again")
        await rig.until_state("mining")
        assert (await rig.admin("POST", "/reconcile", {}))["findings"] == []
    assert not await rig.events("quarantine")


async def test_a_request_whose_card_missed_its_bound_is_the_first_of_its_queue_again(rigs: Maker) -> None:
    rig = rigs(2, bounds={"free_s": 1, "queue_s": 30})
    await rig.start()
    rig.fault("stop-hangs", slot="c1")
    busy = asyncio.create_task(rig.ask({"delay": 4}))
    await rig.until_state("serving", "c0")
    order: list[str] = []

    async def ask(name: str) -> None:
        assert (await rig.ask({"delay": 0.3}))[0] == 200
        order.append(name)

    first = asyncio.create_task(ask("first"))
    await rig.until_state("freeing", "c1")
    second = asyncio.create_task(ask("second"))
    await rig.until(lambda: queued(rig, 1), "the second waits")
    await rig.until_state("quarantined", "c1")
    await rig.until(lambda: queued(rig, 2), "both wait")
    await asyncio.gather(busy, first, second)
    assert order == ["first", "second"]


async def test_a_borrower_of_two_cards_gets_two_others_when_one_of_them_cannot_be_freed(rigs: Maker) -> None:
    rig = rigs(3, bounds={"free_s": 1})
    await rig.start()
    rig.fault("stop-hangs", slot="c0")
    result = await asyncio.to_thread(rig.cli, "run", "--cards", "2", "--", "/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert (result.returncode, sorted(result.stdout.strip().split(","))) == (0, ["GPU-1", "GPU-2"]), result.stderr
    await rig.until_state("quarantined", "c0")
    await rig.until_state("mining", "c1")
    await rig.until_state("mining", "c2")
    assert rig.idle_pid("c1")
    assert rig.idle_pid("c2")


async def test_a_borrower_that_waits_is_told_when_the_pool_stops_or_its_wait_is_over(rigs: Maker) -> None:
    rig = rigs(1, bounds={"queue_s": 1})
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 4}))
    await rig.until_state("serving")
    result = await asyncio.to_thread(rig.cli, "run", "--", "/bin/true")
    assert (result.returncode, "no card became free within 1.0 s" in result.stderr) == (1, True), result.stderr
    waiting = asyncio.create_task(asyncio.to_thread(rig.cli, "run", "--", "/bin/true"))
    await rig.until(lambda: queued(rig, 1), "it waits")
    rig.kill(signal.SIGTERM)
    result = await waiting
    assert (result.returncode, "stopping" in result.stderr) == (1, True), result.stderr
    assert (await running)[0] == 200
    assert await rig.ended() == 0


async def test_a_stop_ends_at_its_bounds_when_an_idle_workload_will_not_start(rigs: Maker) -> None:
    rig = rigs(1, bounds={"free_s": 1, "drain_s": 20})
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 1}))
    await rig.until_state("serving")
    rig.fault("start-fails")
    rig.kill(signal.SIGTERM)
    assert (await running)[0] == 200
    began = time.monotonic()
    assert await rig.ended() == 0
    assert time.monotonic() - began < 5
    assert not rig.workers()
    rig.fault()
    await rig.start(settled=False)
    assert "returning" in (await rig.until_state("quarantined"))["reason"]


async def test_work_goes_on_while_every_model_fails_on_one_card(rigs: Maker) -> None:
    rig = rigs(2, {"bad": model("--mode", "die-start"), "good": model()})
    await rig.start()
    results = await asyncio.gather(*(rig.ask({"model": name}) for name in ("bad", "good") * 4))
    assert {status for status, _ in results[1::2]} == {200}
    assert {status for status, _ in results[::2]} == {502}
    await rig.until_all("mining")
    assert not await rig.events("quarantine")


async def test_a_kill_of_the_pool_s_whole_process_group_spares_the_guards(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "grandchild")})
    await rig.start()
    asked = asyncio.create_task(rig.ask({"delay": 60}))
    await rig.until_state("serving")
    await rig.until(lambda: len(rig.workers()) == 2, "worker and grandchild run")
    assert rig.process is not None
    os.killpg(rig.process.pid, signal.SIGKILL)
    await asyncio.gather(asked, return_exceptions=True)
    await rig.ended()
    await rig.until(lambda: not rig.workers() and rig.idle_pid(), "the card is home unaided")
    await rig.start()
    assert (await rig.ask())[0] == 200

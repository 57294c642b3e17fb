"""Who comes next on a card: without a window only whom nobody else has waited longer than; after a back-off without being asked."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.pool_rig import PYTHON, WORKERS, Maker, PoolRig, model


async def queued(rig: PoolRig, size: int) -> bool:
    return bool((await rig.status())["queue"] == size)


async def test_without_a_window_the_next_waiter_keeps_the_worker_while_no_other_model_has_waited_longer(rigs: Maker) -> None:
    rig = rigs(1, {"a": model(), "b": model()}, bounds={"queue_s": 30})
    await rig.start()
    asked: list[asyncio.Task[tuple[int, dict[str, object]]]] = []
    for size, name in enumerate(("a", "a", "b", "a")):
        asked.append(asyncio.create_task(rig.ask({"model": name, "delay": 0.0 if size else 1.5})))
        if size == 0:
            await rig.until_state("serving")
        else:
            await rig.until(lambda n=size: queued(rig, n), f"{size} wait")
    answers = await asyncio.gather(*asked)
    assert [status for status, _ in answers] == [200] * 4
    first, second, other, last = [answer["pid"] for _, answer in answers]
    assert first == second, "the worker was there, and no other model's waiter was older"
    assert len({first, other, last}) == 3, "b had waited longer than the last a"
    await rig.until_state("mining")
    leases = [(event["model"], event["requests"]) for event in await rig.events("lease")]
    assert leases == [("a", 2), ("b", 1), ("a", 1)]


async def test_a_waiter_gets_the_card_where_its_model_backed_off_as_soon_as_that_is_over(rigs: Maker) -> None:
    fails = [
        PYTHON,
        "-I",
        "-S",
        "-c",
        "import os,sys; os.path.exists(sys.argv[1]) and os.environ['S']=='c0' and sys.exit(3); os.execv(sys.argv[2], sys.argv[2:])",
    ]
    rig = rigs(2)
    broken = rig.folder / "broken"
    argv = [*fails, str(broken), PYTHON, "-I", "-S", str(WORKERS / "worker.py"), "--socket", "{socket}"]
    rig.config["models"] = {"m": model(env={"S": "{slot}"}) | {"argv": argv}, "long": model(labels=["second"])}
    rig.config["cards"][1]["labels"] = ["second"]
    rig.write()
    await rig.start()
    broken.touch()
    for _ in range(2):
        assert (await rig.ask())[0] == 502
        failed = time.monotonic()
        await rig.until_state("mining", "c0")
    broken.unlink()
    busy = asyncio.create_task(rig.ask({"model": "long", "delay": 6}))
    await rig.until(lambda: holds(rig, "c1"), "the other card is taken")
    assert time.monotonic() - failed < 0.9, "this machine is too slow to see a back-off of one second"
    assert (await rig.get("/capacity"))[1]["models"]["m"] | {"load_s_p50": None} == {
        "aliases": [], "free_cards": 0, "waiting": 0, "load_s_p50": None, "failing": False,
    }  # fmt: skip
    async with rig.post() as response:
        assert (response.status, response.headers["x-gpu-fleet-card"]) == (200, "GPU-0")
        assert int(response.headers["x-gpu-fleet-queued-ms"]) > 50
    assert not busy.done()
    busy.cancel()


async def holds(rig: PoolRig, slot: str) -> bool:
    return (await rig.card(slot))["lease"] is not None


@pytest.mark.parametrize("phase", ["freeing", "loading", "idle"])
async def test_an_operator_s_release_ends_a_lease_in_every_phase(rigs: Maker, phase: str) -> None:
    rig = rigs(1, {"m": model("--load", "5" if phase == "loading" else "0")}, window_s=60 if phase == "idle" else 0)
    await rig.start()
    if phase == "freeing":
        rig.fault("stop-slow")
    asked = asyncio.create_task(rig.ask())
    if phase == "idle":
        assert (await asked)[0] == 200
    await rig.until_state("serving" if phase == "idle" else phase)
    began = time.monotonic()
    await rig.admin("POST", "/release/GPU-0")
    if phase != "idle":
        status, answer = await asked
        assert (status, answer["error"]["code"]) == (502, "lease_ended")
        assert "released by an operator" in answer["error"]["message"]
    await rig.until_state("mining")
    assert time.monotonic() - began < 3
    assert not rig.workers()
    assert [event["outcome"] for event in await rig.events("lease")] == ["released"]
    assert [event["lease"] for event in await rig.events("release")] == [event["lease"] for event in await rig.events("lease")]
    assert (await rig.get("/capacity"))[1]["models"]["m"]["failing"] is False

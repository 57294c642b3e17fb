"""Nothing waits while a fitting card is free: being next in line on a card that still unloads is no reason to."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.pool_rig import Maker, model

MODELS = {"m": model("--mode", "ignore-term"), "n": model()}


async def test_a_request_in_line_on_a_slow_card_takes_another_that_becomes_free_first(rigs: Maker) -> None:
    rig = rigs(2, MODELS, bounds={"stop_s": 4})
    await rig.start()
    busy = asyncio.create_task(rig.ask({"model": "n", "delay": 1.0}))
    await rig.until_state("serving", "c0")
    assert (await rig.ask())[0] == 200
    await rig.until_state("unloading", "c1")
    began = time.monotonic()
    async with rig.post({"model": "n"}) as response:
        assert response.status == 200
        assert response.headers["x-gpu-fleet-card"] == "GPU-0"
    assert time.monotonic() - began < 3.0
    assert (await busy)[0] == 200
    assert [lease["model"] for lease in (await rig.admin("GET", "/leases"))["leases"]].count("n") <= 1
    await rig.until_all("mining")
    assert (await rig.admin("GET", "/leases"))["leases"] == []


@pytest.mark.parametrize("verb", ["drain", "quarantine/GPU-0"])
async def test_a_request_in_line_on_a_card_that_is_taken_out_of_service_does_not_wait_for_it(rigs: Maker, verb: str) -> None:
    rig = rigs(1, MODELS, bounds={"stop_s": 2})
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("unloading")
    waiting = asyncio.create_task(rig.ask({"model": "n"}))
    await asyncio.sleep(0.2)
    began = time.monotonic()
    await rig.admin("POST", f"/{verb}", {"reason": "x"} | ({"card": "GPU-0"} if verb == "drain" else {}))
    assert (await waiting)[0] == 503
    assert time.monotonic() - began < 1.0

"""A configuration is reloaded while a request has a card and no worker yet, and that card fails it: the request is asked again by what is configured now."""

from __future__ import annotations

import asyncio
import signal

from tests.support.pool_rig import Maker, PoolRig, model


async def reloaded(rig: PoolRig, times: int = 1) -> None:
    rig.write()
    rig.kill(signal.SIGHUP)

    async def told() -> bool:
        return sum(event["outcome"] == "ok" for event in await rig.events("reload")) == times

    await rig.until(told, "the pool has reloaded")


async def test_a_model_removed_while_its_request_waits_for_a_card_that_does_not_get_free(rigs: Maker) -> None:
    rig = rigs(2, {"a": model(), "b": model()}, bounds={"free_s": 2})
    await rig.start()
    rig.fault("stop-hangs", slot="c0")
    asking = asyncio.create_task(rig.ask({"model": "b"}))
    await rig.until_state("freeing", "c0")
    del rig.config["models"]["b"]
    await reloaded(rig)
    status, body = await asking
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    await rig.until_state("quarantined", "c0")
    assert (await rig.ask({"model": "a"}))[0] == 200


async def test_a_model_that_grew_while_its_request_waits_for_a_card_that_does_not_get_free(rigs: Maker) -> None:
    rig = rigs(2, {"b": model()}, memory=[1000, 2000], bounds={"free_s": 2, "queue_s": 6})
    await rig.start()
    rig.fault("stop-hangs", slot="c0")
    asking = asyncio.create_task(rig.ask({"model": "b"}))
    await rig.until_state("freeing", "c0")
    rig.config["models"]["b"]["memory_mib"] = 3000
    await reloaded(rig)
    status, body = await asking
    assert (status, body["error"]["code"]) == (503, "no_usable_card")

"""A refused reload changes nothing at all: not for those who wait, not for those who run, not for the next request."""

from __future__ import annotations

import asyncio
import copy
import signal

import pytest
import yaml

from tests.support.pool_rig import Maker, model


@pytest.mark.parametrize("fault", ["unknown key", "fixed key", "token file"])
async def test_a_refused_reload_touches_neither_waiters_nor_workers_nor_models(rigs: Maker, fault: str) -> None:
    rig = rigs(1, {"a": model(), "b": model()}, window_s=60)
    await rig.start()
    _, first = await rig.ask({"model": "a"})
    running = asyncio.create_task(rig.ask({"model": "a", "delay": 1.5}))

    async def busy() -> bool:
        card = await rig.card()
        return bool(card["lease"] and card["lease"]["requests"] == 2)

    await rig.until(busy, "the worker serves")
    waiting = asyncio.create_task(rig.ask({"model": "b"}))

    async def one_waits() -> bool:
        return bool((await rig.status())["queue"] == 1)

    await rig.until(one_waits, "one waits")
    other = copy.deepcopy(rig.config)
    del other["models"]["b"]
    other["models"]["a"]["env"] = {"V": "new"}
    other["models"]["z"] = model()
    if fault == "unknown key":
        other["nonsense"] = 1
    elif fault == "fixed key":
        other["listen"] = {"host": "127.0.0.1", "port": rig.port + 1}
    else:
        other["token_file"] = str(rig.folder / "none")
    rig.path.write_text(yaml.safe_dump(other))
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: "reload refused" in rig.log.read_text(), "refused")
    assert (await rig.ask({"model": "z"}))[0] == 404
    assert [m["name"] for m in (await rig.status())["models"]] == ["a", "b"]
    assert (await running)[1]["pid"] == first["pid"]
    assert (await waiting)[0] == 200, await waiting
    assert [event["outcome"] for event in await rig.events("reload")] == ["refused"]
    leases = [event for event in await rig.events("lease") if event["model"] == "a"]
    assert [event["reason"] for event in leases] == ["gave way to another request"]

"""A stop or a drain of the pool, against every sentence of the contract that says what must not begin any more."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.support.pool_rig import Maker, PoolRig, model


def started(record: Path) -> int:
    return len(record.read_text().splitlines()) if record.exists() else 0


async def next_in_line(rig: PoolRig) -> asyncio.Task[tuple[int, object]]:
    """A request whose card still unloads another model's worker: it waits, and has no worker yet."""
    rig.config["models"] = {"m": model("--mode", "ignore-term"), "n": model("--record", str(rig.folder / "record"))}
    rig.write()
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("unloading")
    task = asyncio.create_task(rig.ask({"model": "n"}))
    await asyncio.sleep(0.2)
    assert (await rig.card())["state"] == "unloading"
    return task


@pytest.mark.parametrize("how", ["sigterm", "drain"])
async def test_a_request_in_line_behind_an_unloading_worker_is_503_at_once_and_starts_no_worker(rigs: Maker, how: str) -> None:
    rig = rigs(1, bounds={"stop_s": 1.8})
    waiting = await next_in_line(rig)
    began = time.monotonic()
    if how == "sigterm":
        rig.kill(signal.SIGTERM)
    else:
        await rig.admin("POST", "/drain")
    status, answer = await waiting
    assert (status, time.monotonic() - began < 1.0) == (503, True), answer
    if how == "sigterm":
        assert await rig.ended() == 0
    else:
        await rig.until_state("mining")
    assert rig.idle_pid()
    assert started(rig.folder / "record") == 0


async def test_a_stop_while_a_card_is_freed_starts_no_worker(rigs: Maker) -> None:
    rig = rigs(1)
    record = rig.folder / "record"
    rig.config["models"] = {"m": model("--record", str(record))}
    rig.write()
    await rig.start()
    rig.fault("stop-slow")
    asking = asyncio.create_task(rig.ask())
    await rig.until_state("freeing")
    rig.kill(signal.SIGTERM)
    assert (await asking)[0] == 503
    assert await rig.ended() == 0
    assert rig.idle_pid()
    assert started(record) == 0


async def test_drain_with_wait_returns_when_no_worker_is_left(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "ignore-term")}, bounds={"stop_s": 2})
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("unloading")
    result = await asyncio.to_thread(rig.cli, "drain", "--wait", "10")
    assert result.returncode == 0, result.stderr
    assert (rig.workers(), (await rig.card())["state"]) == ([], "mining")

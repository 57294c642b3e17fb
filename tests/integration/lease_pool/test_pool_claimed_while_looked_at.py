"""The owner looks at a card whose idle workload died, and a request gets that card while it looks: the request goes on, whatever the look finds."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shlex
import signal

from tests.support.pool_rig import Maker, PoolRig, model


async def looked_at_slowly(rigs: Maker) -> PoolRig:
    """A pool that has just begun to look at its only card, which takes a second: `alive` is slow, and the idle workload is dead."""
    rig = rigs(1, {"m": model()}, bounds={"free_s": 4, "queue_s": 2})
    slow = rig.folder / "slow"
    alive = shlex.join(rig.config["idle_workload"]["alive"])
    rig.config["idle_workload"]["alive"] = ["/bin/sh", "-c", f"[ ! -e {slow} ] || sleep 1; exec {alive}"]
    rig.write()
    await rig.start()
    pid = rig.idle_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    slow.touch()
    assert (await rig.admin("POST", "/reconcile"))["findings"] == ["c0: its idle workload does not work"]
    assert (await rig.card())["state"] == "mining"
    return rig


async def test_someone_takes_the_lock_meanwhile_and_the_request_still_has_its_bound(rigs: Maker) -> None:
    rig = await looked_at_slowly(rigs)
    fd = os.open(rig.folder / "run" / "cards" / "c0.use", os.O_RDWR)
    try:
        asking = asyncio.create_task(rig.ask())
        await rig.until_state("freeing")
        fcntl.flock(fd, fcntl.LOCK_EX)
        status, body = await asyncio.wait_for(asking, 8)
        assert (status, body["error"]["code"]) == (429, "queue_timeout")
    finally:
        os.close(fd)
    await rig.until_state("mining")
    assert (await rig.ask())[0] == 200


async def test_the_idle_workload_cannot_be_started_and_the_request_does_not_wait_for_that(rigs: Maker) -> None:
    rig = await looked_at_slowly(rigs)
    rig.fault("start-fails")
    (rig.folder / "slow").unlink()
    assert (await rig.ask())[0] == 200
    card = await rig.until_state("quarantined")
    assert card["reason"].startswith("returning: ")
    states = [event["outcome"] for event in await rig.events("state")]
    assert states == ["mining", "freeing", "loading", "serving", "unloading", "returning", "quarantined"]

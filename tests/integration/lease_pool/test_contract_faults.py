"""What an idle workload or a file system does wrong costs its own card at most: never the pool, never a silent lie in its status."""

from __future__ import annotations

import asyncio
import shutil
import signal

from tests.support.pool_rig import Maker, model


async def test_a_card_whose_idle_workload_cannot_be_stopped_is_quarantined_not_drained(rigs: Maker) -> None:
    rig = rigs(2, bounds={"free_s": 1})
    await rig.start()
    rig.fault("stop-fails")
    await rig.admin("POST", "/drain", {"card": "GPU-0"})
    card = await rig.until_state("quarantined")
    assert "exit 6" in card["reason"]
    assert rig.idle_pid("c1")
    assert (await rig.ask())[0] == 200


async def test_an_alive_command_that_cannot_be_run_costs_its_card_not_the_pool(rigs: Maker) -> None:
    rig = rigs(1, bounds={"free_s": 1})
    rig.config["idle_workload"]["alive"] = ["/no/such/alive"]
    rig.write()
    await rig.start(settled=False)
    card = await rig.until_state("quarantined")
    assert "does not work" in card["reason"] or "/no/such/alive" in card["reason"]
    assert (await rig.ask())[0] == 503


async def test_a_lost_runtime_folder_costs_no_pool(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    shutil.rmtree(rig.folder / "run" / "launch")
    shutil.rmtree(rig.folder / "run" / "cards")
    status, _ = await rig.ask()
    assert status in (200, 502, 503, 429)
    assert rig.process is not None
    assert rig.process.poll() is None
    assert (await rig.get("/health"))[0] == 200


async def test_a_smaller_window_after_a_reload_ends_the_idle_worker(rigs: Maker) -> None:
    rig = rigs(1, window_s=300)
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until_state("serving")
    rig.config["window_s"] = 0
    rig.write()
    rig.kill(signal.SIGHUP)
    await rig.until_state("mining")


async def test_two_pools_with_one_runtime_folder_do_not_take_each_other_s_worker_socket(rigs: Maker) -> None:
    one, two = rigs(1, {"m": model(parallel=2)}), rigs(1)
    for key in ("runtime_dir", "locks_dir"):
        two.config[key] = str(one.folder / "run") if key == "runtime_dir" else str(one.folder / "run" / "cards")
    two.config["admin_socket"] = str(two.folder / "run" / "pool.sock")
    two.config["idle_workload"] = one.config["idle_workload"]
    two.write()
    await one.start()
    await two.start()
    first = asyncio.create_task(one.ask({"delay": 2}))
    await one.until_state("serving")
    second = asyncio.create_task(two.ask())
    await asyncio.sleep(0.7)
    assert (await one.ask())[0] == 200  # a new connection to the running worker
    assert (await first)[0] == 200
    assert (await second)[0] == 200


async def test_a_smaller_free_s_after_a_reload_bounds_the_next_return(rigs: Maker) -> None:
    rig = rigs(1, bounds={"free_s": 20})
    await rig.start()
    await rig.admin("POST", "/drain", {"card": "GPU-0"})
    await rig.until_state("drained")
    rig.config["bounds"]["free_s"] = 0.5
    rig.write()
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: "reloaded" in rig.log.read_text(), "reloaded")
    rig.fault("start-fails")
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    card = await rig.until_state("quarantined", bound_s=5)
    assert "free_s 0.5 passed" in card["reason"]

"""What a worker and an idle workload are given: their card, their settings, their socket. Nothing of ours, nothing of another's."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.support.pool_rig import TOKEN, Maker, model

OURS = {
    "CUDA_VISIBLE_DEVICES": "GPU-9", "CUDA_LAUNCH_BLOCKING": "1", "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all",
    "LLAMA_ARG_HOST": "0.0.0.0", "LLAMA_API_KEY": "x", "GPU_FLEET_DEPLOYED": "1", "NOTIFY_SOCKET": "@nobody", "CREDENTIALS_DIRECTORY": "/run/c",
    "INVOCATION_ID": "i", "JOURNAL_STREAM": "8:1", "WATCHDOG_PID": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1",
}  # fmt: skip


async def test_a_worker_gets_its_card_and_nothing_of_the_pool_s(rigs: Maker) -> None:
    rig = rigs(2, {"m": model(env={"EXTRA": "{slot} {uuid} {socket}"})})
    await rig.start(OURS)
    async with rig.post({"stream": True, "gap": 0.3, "chunks": 4}, x_gpu_fleet_principal="alice") as response:
        await response.content.readany()
        (pid,) = rig.workers()
        environ = _bytes(f"/proc/{pid}/environ").decode().split("\0")
        argv = _bytes(f"/proc/{pid}/cmdline").decode().split("\0")
        targets = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert rig.process is not None
        pool = {os.readlink(f"/proc/{rig.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{rig.process.pid}/fd")}
        await response.read()
    env = dict(entry.split("=", 1) for entry in environ if entry)
    given = {"CUDA_VISIBLE_DEVICES": "GPU-0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "EXTRA": f"c0 GPU-0 {rig.folder}/run/c0.sock"}
    assert {key: env[key] for key in given} == given
    assert not (set(OURS) - set(given)) & set(env)
    assert not [key for key in env if re.match(r"(CUDA_|NVIDIA_|LLAMA_|GPU_FLEET_)", key) and key not in (*given, "GPU_FLEET_WORKER")]
    for secret in (TOKEN, "alice", str(rig.path), str(rig.folder / "token"), str(rig.folder / "state")):
        assert not [text for text in (*environ, *argv) if secret in text], secret
    # Its own sockets and pipes, the null device, and the lock that it holds for as long as it lives.
    files = {target for target in targets if target.startswith("/")}
    assert files == {"/dev/null", str(rig.folder / "run" / "cards" / "c0.use")}
    assert not {target for target in targets if target.startswith(("socket:", "pipe:", "anon_inode"))} & pool
    await rig.until_state("mining")
    log = (rig.folder / "run" / "worker-c0.log").read_text()
    assert TOKEN not in log
    assert "alice" not in log


async def test_an_idle_workload_s_commands_get_their_card_and_nothing_of_the_pool_s(rigs: Maker) -> None:
    rig = rigs(2)
    record = rig.folder / "env"
    record.mkdir()
    for verb in ("start", "stop", "alive"):
        script = f'env > {record}/$0-{verb}; exec "$@"'
        rig.config["idle_workload"][verb] = ["/bin/sh", "-c", script, "{slot}-{uuid}", *rig.config["idle_workload"][verb]]
    rig.write()
    await rig.start(OURS)
    assert (await rig.ask())[0] == 200
    await rig.until_state("mining")
    assert {path.name for path in record.iterdir()} >= {f"c0-GPU-0-{verb}" for verb in ("start", "stop", "alive")} | {"c1-GPU-1-start"}
    for path in record.iterdir():
        env = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
        slot, uuid = path.name[:2], path.name[3:8]
        assert (env["CUDA_VISIBLE_DEVICES"], uuid) == (f"GPU-{slot[1]}", f"GPU-{slot[1]}")
        assert not (set(OURS) - {"CUDA_VISIBLE_DEVICES"}) & set(env)
        assert TOKEN not in path.read_text()


async def test_a_stop_that_says_done_while_the_workload_goes_on_is_not_believed(rigs: Maker) -> None:
    rig = rigs(2, bounds={"free_s": 1})
    idle = rig.config["idle_workload"]
    idle["stop"] = ["/bin/sh", "-c", 'test "$0" = c0 || exec "$@"', "{slot}", *idle["stop"]]
    rig.write()
    await rig.start()
    pid = rig.idle_pid("c0")
    async with rig.post() as response:
        assert (response.status, response.headers["x-gpu-fleet-card"]) == (200, "GPU-1")
    card = await rig.until_state("quarantined", "c0")
    assert "still works after its stop" in card["reason"]
    assert rig.idle_pid("c0") == pid
    assert not [event for event in await rig.events("state") if event["slot"] == "c0" and event["outcome"] in ("loading", "serving")]


async def test_an_alive_command_that_hangs_is_a_no(rigs: Maker) -> None:
    rig = rigs(1, bounds={"free_s": 1})
    rig.config["idle_workload"]["alive"] = ["/bin/sleep", "600"]
    rig.write()
    await rig.start(settled=False)
    card = await rig.until_state("quarantined", bound_s=12)
    assert "does not work" in card["reason"]
    assert (await rig.get("/health"))[0] == 200


def _bytes(path: str) -> bytes:
    return Path(path).read_bytes()

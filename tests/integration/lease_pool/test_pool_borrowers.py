"""`run` at its ends: children that stay, a pool that is stopped, words that are wrong, signals of a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.pool_rig import PYTHON, ROOT, Maker, PoolRig, alive

ENV = os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool")}


def borrow(rig: PoolRig, *words: str) -> subprocess.Popen[str]:
    argv = [PYTHON, "-m", "lease_pool", "run", "--config", str(rig.path), *words]
    return subprocess.Popen(argv, env=ENV, stdout=subprocess.PIPE, text=True)


async def test_a_child_that_the_command_leaves_behind_keeps_the_card_until_it_ends(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    run = borrow(rig, "--", "/bin/sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!; exit 0")
    assert run.stdout is not None
    child = int(await asyncio.to_thread(run.stdout.readline))
    assert await asyncio.to_thread(run.wait, 10) == 0
    run.stdout.close()
    await asyncio.sleep(1.0)
    assert alive(child)
    assert (await rig.card())["state"] in ("serving", "unloading")
    assert rig.idle_pid() is None
    asked = asyncio.create_task(rig.ask())
    await asyncio.sleep(0.5)
    assert not asked.done()
    assert not rig.workers()
    os.kill(child, signal.SIGTERM)
    assert (await asked)[0] == 200
    await rig.until_state("mining")
    assert rig.idle_pid()


async def test_a_stopped_pool_leaves_the_borrower_alone_and_its_card_goes_home_without_it(rigs: Maker) -> None:
    rig = rigs(2, bounds={"drain_s": 30})
    await rig.start()
    run = borrow(rig, "--", "/bin/sh", "-c", "echo up; sleep 4; exit 6")
    assert run.stdout is not None
    await asyncio.to_thread(run.stdout.readline)
    await rig.until_state("serving")
    began = time.monotonic()
    rig.kill(signal.SIGTERM)
    assert await rig.ended() == 0
    assert time.monotonic() - began < 3.5, "a loan is no lease that a stop waits for"
    assert run.poll() is None
    assert rig.idle_pid("c0") is None
    assert rig.idle_pid("c1")
    assert await asyncio.to_thread(run.wait, 10) == 6
    run.stdout.close()
    await rig.until(lambda: rig.idle_pid("c0"), "the card went home by itself")
    await rig.start()
    assert (await rig.ask())[0] == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
async def test_what_a_terminal_sends_ends_the_command_and_is_its_status(rigs: Maker, number: signal.Signals) -> None:
    rig = rigs(1)
    await rig.start()
    run = borrow(rig, "--", "/bin/sh", "-c", "echo up; exec sleep 600")
    assert run.stdout is not None
    await asyncio.to_thread(run.stdout.readline)
    run.send_signal(number)
    assert await asyncio.to_thread(run.wait, 10) == 128 + number
    run.stdout.close()
    await rig.until_state("mining")


async def test_a_command_that_cannot_be_run_and_a_pool_that_cannot_be_asked_have_their_statuses(rigs: Maker) -> None:
    rig = rigs(1)
    result = await asyncio.to_thread(rig.cli, "run", "--", "/bin/true")
    assert (result.returncode, "does not answer" in result.stderr) == (1, True)
    await rig.start()
    plain = rig.folder / "plain"
    plain.write_text("no program")
    result = await asyncio.to_thread(rig.cli, "run", "--", str(plain))
    assert (result.returncode, str(plain) in result.stderr) == (126, True)
    result = await asyncio.to_thread(rig.cli, "run", "--cards", "2", "--", "/bin/true")
    assert (result.returncode, "this host has 1" in result.stderr) == (1, True)
    await rig.until_state("mining")
    socket = str(rig.folder / "run" / "pool.sock")
    for words, status in ((["--socket", socket], 3), (["--socket", socket, "--config", str(rig.path)], 2)):
        command = [PYTHON, "-m", "lease_pool", "run", *words, "--", "/bin/sh", "-c", "exit 3"]
        assert (await asyncio.to_thread(subprocess.run, command, env=ENV, capture_output=True, check=False)).returncode == status


async def test_a_borrower_sees_its_cards_only_and_its_children_hold_the_lock(rigs: Maker) -> None:
    rig = rigs(2, memory=[4000, 8000])
    await rig.start()
    environment = ENV | {"CUDA_VISIBLE_DEVICES": "7", "CUDA_X": "x", "NVIDIA_VISIBLE_DEVICES": "all"}
    command = [
        PYTHON,
        "-m",
        "lease_pool",
        "run",
        "--config",
        str(rig.path),
        "--memory-mib",
        "5000",
        "--",
        "/bin/sh",
        "-c",
        "env; ls -l /proc/self/fd",
    ]
    result = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True, check=True)
    seen = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("GPU-1", "PCI_BUS_ID")
    assert not {"CUDA_X", "NVIDIA_VISIBLE_DEVICES"} & set(seen)
    assert str(Path(rig.folder) / "run" / "cards" / "c1.use") in result.stdout  # the child `ls` has it open
    assert "c0.use" not in result.stdout


async def test_a_request_in_line_behind_a_loan_is_served_when_the_loan_is_over(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    run = borrow(rig, "--", "/bin/sh", "-c", "echo up; sleep 1")
    assert run.stdout is not None
    await asyncio.to_thread(run.stdout.readline)
    began = time.monotonic()
    assert (await rig.ask())[0] == 200
    assert time.monotonic() - began < 4
    assert await asyncio.to_thread(run.wait, 10) == 0
    run.stdout.close()
    await rig.until_state("mining")
    assert rig.idle_pid()
    assert [e["outcome"] for e in await rig.events("lease")] == ["ok", "ok"]


@pytest.mark.parametrize("verb", ["drain", "quarantine/GPU-0"])
async def test_a_card_held_while_it_is_lent_stays_down_after_the_loan(rigs: Maker, verb: str) -> None:
    rig = rigs(1)
    await rig.start()
    run = borrow(rig, "--", "/bin/sh", "-c", "echo up; sleep 1; exit 5")
    assert run.stdout is not None
    await asyncio.to_thread(run.stdout.readline)
    await rig.admin("POST", f"/{verb}", {"reason": "fan"} | ({"card": "GPU-0"} if verb == "drain" else {}))
    assert await asyncio.to_thread(run.wait, 10) == 5
    run.stdout.close()
    card = await rig.until_state("drained" if verb == "drain" else "quarantined", bound_s=4)
    assert card["reason"] == "fan"
    assert rig.idle_pid() is None
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.until_state("mining")

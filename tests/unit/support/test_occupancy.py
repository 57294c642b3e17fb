"""What gpu-sim.service counts as a user of a card."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nvml_sim import occupancy as daemon
from tests.support.nvml_sim.cards import Cards
from tests.support.sim_rig import UUIDS, eventually

WAITS = "import sys; sys.stdin.read()"


def started(argv: list[str], **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env={**os.environ, **environment}, stdin=subprocess.PIPE)


@pytest.mark.usefixtures("occupancy")
def test_a_process_with_the_card_in_its_environment_counts_until_it_ends(cards: Cards) -> None:
    with started([sys.executable, "-c", WAITS], CUDA_VISIBLE_DEVICES=UUIDS[1], GPU_SIM_MIB="900") as process:
        eventually(lambda: cards.processes(UUIDS[1]) == {process.pid: 900})
        assert cards.processes(UUIDS[0]) == {}
        assert process.stdin is not None
        process.stdin.close()
    eventually(lambda: cards.processes(UUIDS[1]) == {})


@pytest.mark.usefixtures("occupancy")
def test_without_a_figure_resident_memory_counts(cards: Cards) -> None:
    with started([sys.executable, "-c", f"held = bytearray(100 << 20); {WAITS}"], CUDA_VISIBLE_DEVICES=UUIDS[0]) as process:
        eventually(lambda: cards.processes(UUIDS[0]).get(process.pid, 0) >= 100)
        assert process.stdin is not None
        process.stdin.close()


def test_the_holder_of_the_lock_does_not_count_but_its_child_does(tmp_path: Path) -> None:
    flock = shutil.which("flock")
    assert flock is not None
    with started([flock, str(tmp_path / "use"), sys.executable, "-c", WAITS], CUDA_VISIBLE_DEVICES=UUIDS[2], GPU_SIM_MIB="5") as process:
        eventually(lambda: UUIDS[2] in daemon.users())
        assert process.pid not in daemon.users()[UUIDS[2]]
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(
    ("cmdline", "program"),
    [
        (b"/opt/x/bin/python3.11\0-u\0/opt/x/bin/lease-pool\0exec-worker\0c0\0", "lease-pool"),
        (b"/usr/bin/python3\0/opt/gpu-fleet/miner/current/standin_miner.py\0-d\x000\0", "standin_miner.py"),
        (b"/opt/x/bin/llama-server\0--host\0/run/x.sock\0", "llama-server"),
        (b"/usr/bin/flock\0--no-fork\0", "flock"),
        (b"", ""),
    ],
)
def test_the_program_is_the_script_an_interpreter_runs(cmdline: bytes, program: str) -> None:
    assert daemon.program(cmdline) == program


def test_our_own_helper_with_the_cards_variable_does_not_count(tmp_path: Path) -> None:
    helper = tmp_path / "lease-pool"
    helper.write_text(f"print(flush=True); {WAITS}")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": UUIDS[1]}
    argv = [sys.executable, str(helper), "exec-worker", "c1"]
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs by now
        assert UUIDS[1] not in daemon.users()
        process.communicate()


@pytest.mark.usefixtures("occupancy")
def test_a_file_of_a_process_that_ended_is_removed_before_its_pid_is_used_again(cards: Cards) -> None:
    process = started([sys.executable, "-c", WAITS])
    file = cards.claim(UUIDS[0], 100, process.pid)
    process.communicate()
    eventually(lambda: not file.exists())

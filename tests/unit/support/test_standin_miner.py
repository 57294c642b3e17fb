"""The stand-in miner as a real process: what it claims, what it reports, and each of its faults."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.nvml_sim.cards import Cards
from tests.support.sim_rig import ROOT, UUIDS, eventually

PROGRAM = ROOT / "tests" / "support" / "standin_miner" / "standin_miner.py"
WALLET = "prl1pnobodyswalletnobodyswallet"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
        return found


@pytest.fixture
def start(environment: dict[str, str], port: int) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def run(*extra: str, devices: str = UUIDS[0], **variables: str) -> subprocess.Popen[str]:
        argv = [sys.executable, str(PROGRAM), "--coin", "pearl", "-o", "pool.example:5566", "-u", f"{WALLET}.rig-c0", "-p", "hush"]
        process = subprocess.Popen(
            [*argv, "--api-port", str(port), *extra],
            env={**environment, "CUDA_VISIBLE_DEVICES": devices, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def summary(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/summary", timeout=2) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def hashing(port: int) -> bool:
    with suppress(OSError):
        return bool(summary(port)["hashrate"] > 0)
    return False


def test_it_claims_its_card_only_and_gives_it_back_at_sigterm(start: Start, cards: Cards, port: int) -> None:
    process = start("-d", "0", devices=UUIDS[1])
    eventually(lambda: hashing(port))
    assert cards.processes(UUIDS[1]) == {process.pid: 2700}
    assert cards.used_mib(UUIDS[0]) == 0
    process.terminate()
    assert process.wait(2) == 0
    assert cards.processes(UUIDS[1]) == {}


def test_its_summary_tells_hashrate_shares_and_card(start: Start, port: int) -> None:
    process = start()
    eventually(lambda: hashing(port) and summary(port)["accepted"] > 0)
    told = summary(port)
    assert told["pid"] == process.pid
    assert told["last_share_age_s"] < 5
    assert [gpu["uuid"] for gpu in told["gpus"]] == [UUIDS[0]]


def test_it_never_prints_or_reports_wallet_and_password(start: Start, port: int) -> None:
    process = start()
    eventually(lambda: hashing(port))
    told = json.dumps(summary(port))
    process.terminate()
    printed, _ = process.communicate(timeout=2)
    assert UUIDS[0] in printed
    assert WALLET not in printed + told
    assert "hush" not in printed + told


def test_one_process_mines_on_several_cards(start: Start, cards: Cards, port: int) -> None:
    start("-d", "0,1", devices=f"{UUIDS[0]},{UUIDS[2]}")
    eventually(lambda: hashing(port))
    assert [cards.used_mib(uuid) for uuid in UUIDS] == [2700, 0, 2700]


def test_killed_it_no_longer_counts(start: Start, cards: Cards, port: int) -> None:
    process = start()
    eventually(lambda: hashing(port))
    process.kill()
    process.wait()
    assert cards.used_mib(UUIDS[0]) == 0


def test_told_to_fail_it_exits_1_without_touching_the_card(start: Start, cards: Cards) -> None:
    assert start(STANDIN_MINER_FAULTS="fail-start").wait(5) == 1
    assert cards.processes(UUIDS[0]) == {}


def test_told_to_hang_it_claims_and_answers_nothing_until_the_fault_is_lifted(start: Start, cards: Cards, port: int) -> None:
    cards.set_miner_faults(UUIDS[0], "hang-start")
    process = start()
    time.sleep(0.7)  # longer than a healthy start takes
    assert process.poll() is None
    assert not hashing(port)
    assert cards.processes(UUIDS[0]) == {}
    cards.set_miner_faults(UUIDS[0], "")
    eventually(lambda: hashing(port))


def test_told_zero_it_lives_at_hashrate_0_while_its_share_ages(start: Start, cards: Cards, port: int) -> None:
    process = start()
    eventually(lambda: hashing(port))
    cards.set_miner_faults(UUIDS[0], "zero")
    eventually(lambda: not hashing(port))
    assert process.poll() is None
    assert summary(port)["hashrate"] == 0


def test_told_to_die_it_exits_1(start: Start, cards: Cards, port: int) -> None:
    process = start()
    eventually(lambda: hashing(port))
    cards.set_miner_faults(UUIDS[0], "die")
    assert process.wait(5) == 1
    assert cards.processes(UUIDS[0]) == {}


def test_told_to_ignore_sigterm_only_sigkill_ends_it(start: Start, cards: Cards, port: int) -> None:
    cards.set_miner_faults(UUIDS[0], "ignore-sigterm")
    process = start()
    eventually(lambda: hashing(port))
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert hashing(port)


@pytest.mark.usefixtures("occupancy")
def test_told_to_keep_memory_it_is_taken_after_a_kill_and_comes_back_when_said(start: Start, cards: Cards, port: int) -> None:
    cards.set_miner_faults(UUIDS[0], "keep-memory=1")
    process = start()
    held = cards.folder(UUIDS[0]) / "held"
    eventually(held.exists)
    eventually(lambda: cards.used_mib(UUIDS[0]) == 2700)
    process.kill()
    process.wait()
    killed = time.monotonic()
    assert cards.used_mib(UUIDS[0]) == 2700
    eventually(lambda: cards.used_mib(UUIDS[0]) == 0)
    assert time.monotonic() - killed > 0.8


def test_a_second_one_on_the_same_api_port_is_refused(start: Start, port: int) -> None:
    start()
    eventually(lambda: hashing(port))
    second = start(devices=UUIDS[1])
    printed, _ = second.communicate(timeout=5)
    assert second.returncode == 1
    assert f"API port {port}" in printed


def test_a_pulled_card_is_named(start: Start, cards: Cards) -> None:
    cards.pull(UUIDS[0])
    process = start()
    printed, _ = process.communicate(timeout=5)
    assert process.returncode == 1
    assert UUIDS[0] in printed


def test_it_is_executable_by_the_hosts_python() -> None:
    assert Path(PROGRAM).stat().st_mode & 0o111
    assert PROGRAM.read_text().startswith("#!/usr/bin/env python3\n")

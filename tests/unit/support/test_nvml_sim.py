"""The simulated NVML under the real bindings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nvml_sim import cards as command
from tests.support.nvml_sim.cards import Card, Cards
from tests.support.sim_rig import UUIDS, Nvml

LIST = "print(*[n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())])"


def listed(nvml: Nvml) -> list[str]:
    done = nvml(LIST)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def by_uuid(uuid: str, call: str) -> str:
    return f"h = n.nvmlDeviceGetHandleByUUID('{uuid}')\nprint(({call}))"


def test_cards_are_listed_in_the_order_they_were_laid_out(nvml: Nvml) -> None:
    assert listed(nvml) == UUIDS


def test_a_card_tells_its_facts(nvml: Nvml) -> None:
    call = (
        "n.nvmlDeviceGetMinorNumber(h), n.nvmlDeviceGetPciInfo(h).busId, n.nvmlDeviceGetMemoryInfo(h).total >> 20, n.nvmlDeviceGetIndex(h)"
    )
    assert nvml(by_uuid(UUIDS[1], call)).stdout.strip() == "(1, '00000000:02:00.0', 12288, 1)"


def test_a_pulled_card_is_not_enumerated_and_shifts_the_indices_behind_it(nvml: Nvml, cards: Cards) -> None:
    cards.pull(UUIDS[0])
    assert listed(nvml) == UUIDS[1:]
    assert nvml(by_uuid(UUIDS[1], "n.nvmlDeviceGetIndex(h), n.nvmlDeviceGetMinorNumber(h)")).stdout.strip() == "(0, 1)"
    assert "NVMLError_NotFound" in nvml(by_uuid(UUIDS[0], "h")).stderr


def test_a_handle_of_a_card_that_is_pulled_later_answers_lost(nvml: Nvml, cards: Cards) -> None:
    pull = f"open('{cards.folder(UUIDS[0])}/mode', 'w').write('gone')"
    done = nvml(f"h = n.nvmlDeviceGetHandleByUUID('{UUIDS[0]}')\n{pull}\nn.nvmlDeviceGetMemoryInfo(h)")
    assert "NVMLError_GpuIsLost" in done.stderr


def test_a_lost_card_is_counted_but_every_call_on_it_fails_and_the_others_work(nvml: Nvml, cards: Cards) -> None:
    cards.lose(UUIDS[1])
    assert nvml("print(n.nvmlDeviceGetCount())").stdout.strip() == "3"
    assert "NVMLError_GpuIsLost" in nvml(LIST).stderr
    assert nvml(by_uuid(UUIDS[2], "n.nvmlDeviceGetUUID(h)")).stdout.strip() == UUIDS[2]


def test_a_hanging_card_blocks_its_callers_only(nvml: Nvml, cards: Cards) -> None:
    cards.hang(UUIDS[1])
    with pytest.raises(subprocess.TimeoutExpired):
        nvml(by_uuid(UUIDS[1], "h"))
    assert nvml(by_uuid(UUIDS[0], "n.nvmlDeviceGetUUID(h)")).stdout.strip() == UUIDS[0]


def test_a_card_that_errors_is_not_a_lost_card(nvml: Nvml, cards: Cards) -> None:
    cards.fail(UUIDS[1])
    assert "NVMLError_Unknown" in nvml(by_uuid(UUIDS[1], "h")).stderr


def test_a_restored_card_works_again(nvml: Nvml, cards: Cards) -> None:
    cards.pull(UUIDS[1])
    cards.hold(UUIDS[1], 500)
    cards.restore(UUIDS[1])
    assert nvml(by_uuid(UUIDS[1], "n.nvmlDeviceGetMemoryInfo(h).used")).stdout.strip() == "0"


@pytest.mark.parametrize(
    ("code", "error"), [(9, "NVMLError_DriverNotLoaded"), (18, "NVMLError_LibRmVersionMismatch"), (999, "NVMLError_Unknown")]
)
def test_init_answers_the_error_it_is_told(nvml: Nvml, cards: Cards, code: int, error: str) -> None:
    cards.set_init(code)
    assert error in nvml("").stderr
    cards.set_init(0)
    assert nvml("").returncode == 0


def test_init_hangs_where_it_is_told_to(nvml: Nvml, cards: Cards) -> None:
    cards.set_init("hang")
    with pytest.raises(subprocess.TimeoutExpired):
        nvml("")


def test_a_machine_without_the_library_is_told_so_by_pynvml(environment: dict[str, str], tmp_path: Path) -> None:
    environment["LD_LIBRARY_PATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"], env=environment, capture_output=True, text=True, timeout=5, check=False
    )
    assert "NVMLError_LibraryNotFound" in done.stderr


def test_memory_is_what_live_processes_claim_and_what_is_held(nvml: Nvml, cards: Cards) -> None:
    cards.claim(UUIDS[0], 2700)
    cards.hold(UUIDS[0], 300)
    call = "[(p.pid, p.usedGpuMemory >> 20) for p in n.nvmlDeviceGetComputeRunningProcesses(h)], n.nvmlDeviceGetMemoryInfo(h).free >> 20"
    assert nvml(by_uuid(UUIDS[0], call)).stdout.strip() == f"([({os.getpid()}, 2700)], {12288 - 3000})"


def test_a_process_that_ended_no_longer_counts_not_even_as_a_zombie(nvml: Nvml, cards: Cards) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    cards.claim(UUIDS[0], 1000, process.pid)
    used = by_uuid(UUIDS[0], "n.nvmlDeviceGetMemoryInfo(h).used >> 20")
    assert nvml(used).stdout.strip() == "1000"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has reaped it
    assert nvml(used).stdout.strip() == "0"
    process.communicate()


def test_memory_in_use_never_exceeds_the_card(nvml: Nvml, cards: Cards) -> None:
    cards.set_mode(UUIDS[0], "busy_mib=99999")
    assert nvml(by_uuid(UUIDS[0], "n.nvmlDeviceGetMemoryInfo(h).free")).stdout.strip() == "0"


def test_cards_in_another_order_keep_minor_and_bus(nvml: Nvml, cards: Cards) -> None:
    cards.lay_out([Card(UUIDS[1], minor=1, bus="00000000:0A:00.0"), Card(UUIDS[0], minor=0, bus="00000000:0B:00.0")])
    assert listed(nvml) == [UUIDS[1], UUIDS[0]]
    assert nvml(by_uuid(UUIDS[0], "n.nvmlDeviceGetIndex(h), n.nvmlDeviceGetMinorNumber(h)")).stdout.strip() == "(1, 0)"


def test_the_command_breaks_and_mends_a_card(nvml: Nvml, cards: Cards, capsys: pytest.CaptureFixture[str]) -> None:
    directory = ["--dir", str(cards.directory)]
    assert command.main([*directory, "pull", UUIDS[2]]) == 0
    assert listed(nvml) == UUIDS[:2]
    assert command.main([*directory, "restore", UUIDS[2]]) == 0
    assert listed(nvml) == UUIDS
    assert command.main([*directory, "pull", "GPU-none"]) == 2
    assert "no card GPU-none" in capsys.readouterr().err

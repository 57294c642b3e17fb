from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nvml_sim import library
from tests.support.nvml_sim.cards import Card, Cards
from tests.support.run_module import ModuleFailed, run_module

A, B, C = (f"GPU-a0000000-0000-4000-8000-0000000000c{place}" for place in range(3))
ABSENT = "GPU-ffffffff-0000-4000-8000-000000000000"


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def cards(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    monkeypatch.setenv("GPU_SIM_DIR", str(tmp_path / "sim"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml.parent))
    sim = Cards()
    sim.lay_out([Card(A, 12288), Card(B, 24576, name="Simulated RTX 3090"), Card(C, 12288)])
    return sim


def gpu_info(capsys, **params):
    return run_module(capsys, "gpu_info", interpreters=[sys.executable], **params)


def test_every_card_is_read_with_its_facts(cards, capsys) -> None:
    cards.claim(B, 2700)
    result = gpu_info(capsys, expected=[A, B, C])
    assert [(card["uuid"], card["state"], card["memory_mib"]) for card in result["cards"]] == [
        (A, "ok", 12288),
        (B, "ok", 24576),
        (C, "ok", 12288),
    ]
    second = result["cards"][1]
    assert (second["name"], second["minor"], second["pci"], second["compute_capability"]) == (
        "Simulated RTX 3090",
        1,
        "00000000:02:00.0",
        "8.6",
    )
    assert (second["memory_used_mib"], second["memory_free_mib"]) == (2700, 24576 - 2700)
    assert second["processes"] == [{"pid": os.getpid(), "memory_mib": 2700}]
    assert (result["missing"], result["unexpected"], result["changed"]) == ([], [], False)
    assert result["driver_version"]
    assert result["cuda_version"] == "13.0"


def test_check_mode_reads_the_same(cards, capsys) -> None:
    assert gpu_info(capsys, check=True)["cards"] == gpu_info(capsys)["cards"]


def test_a_lost_card_is_named_and_the_healthy_ones_are_still_reported(cards, capsys) -> None:
    cards.lose(B)
    result = gpu_info(capsys, expected=[A, B, C])
    assert [card["state"] for card in result["cards"]] == ["ok", "lost", "ok"]
    assert [(card["uuid"], card["state"]) for card in result["missing"]] == [(B, "lost")]


def test_a_pulled_card_is_named_although_the_indices_shift(cards, capsys) -> None:
    cards.pull(A)
    result = gpu_info(capsys, expected=[A, B, C])
    assert [(card["index"], card["uuid"]) for card in result["cards"]] == [(0, B), (1, C)]
    assert [card["uuid"] for card in result["missing"]] == [A]


def test_a_swapped_card_shows_as_one_missing_and_one_unexpected(cards, capsys) -> None:
    result = gpu_info(capsys, expected=[A, B, ABSENT])
    assert [(card["uuid"], card["state"]) for card in result["missing"]] == [(ABSENT, "not_found")]
    assert result["unexpected"] == [C]


def test_a_card_that_hangs_costs_its_bound_once_and_hides_no_other(cards, capsys) -> None:
    cards.hang(B)
    began = time.monotonic()
    result = gpu_info(capsys, expected=[A, B, C], timeout=2)
    assert time.monotonic() - began < 10
    assert {card["uuid"]: card["state"] for card in result["cards"] if card["uuid"]} == {A: "ok", C: "ok"}
    assert [card["state"] for card in result["cards"] if not card["uuid"]] == ["hung"]
    assert [(card["uuid"], card["state"]) for card in result["missing"]] == [(B, "hung")]


def test_a_card_that_errs_is_an_error_and_not_lost(cards, capsys) -> None:
    cards.fail(C)
    result = gpu_info(capsys, expected=[A, B, C])
    assert [(card["uuid"], card["state"]) for card in result["missing"]] == [(C, "error")]


@pytest.mark.parametrize(("code", "fault"), [(9, "not_loadable"), (18, "driver_mismatch"), ("hang", "hung"), (999, "error")])
def test_each_fault_of_nvml_as_a_whole_is_told_apart(cards, capsys, code, fault) -> None:
    cards.set_init(code)
    with pytest.raises(ModuleFailed) as failed:
        gpu_info(capsys, timeout=1)
    assert failed.value.result["fault"] == fault


def test_a_library_that_is_not_there_is_not_loadable(cards, capsys, monkeypatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH")
    with pytest.raises(ModuleFailed) as failed:
        gpu_info(capsys)
    assert failed.value.result["fault"] == "not_loadable"


def test_an_interpreter_without_pynvml_is_said(cards, capsys, tmp_path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: no site-packages
    bare.chmod(0o755)
    with pytest.raises(ModuleFailed, match=r"No module named 'pynvml'") as failed:
        run_module(capsys, "gpu_info", interpreters=[str(bare)])
    assert failed.value.result["fault"] == "not_loadable"


def test_the_first_interpreter_that_exists_is_used_and_none_is_an_error(cards, capsys, tmp_path) -> None:
    absent = str(tmp_path / "absent")
    assert run_module(capsys, "gpu_info", interpreters=[absent, sys.executable])["cards"]
    with pytest.raises(ModuleFailed, match=rf"none of these interpreters exists: {absent}"):
        run_module(capsys, "gpu_info", interpreters=[absent])

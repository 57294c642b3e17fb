from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.run_module import ModuleFailed, run_module

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def watchdog(tmp_path: Path) -> dict[str, str]:
    """The real command on a state of its own, as the role installs it: module options to reach it."""
    command = tmp_path / "gpu-watchdog"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/src/gpu_watchdog exec {sys.executable} -P -m gpu_watchdog "$@"\n')
    command.chmod(0o755)
    config = tmp_path / "watchdog.toml"
    config.write_text(f'host = "gpu-a"\nstate_dir = "{tmp_path}"\nruntime_dir = "{tmp_path}"\n[[cards]]\nslot = "c0"\nuuid = "GPU-1"\n')
    return {"command": str(command), "config": str(config)}


@pytest.mark.parametrize("check", [False, True])
def test_the_status_is_read_and_nothing_changed(watchdog, capsys, check) -> None:
    result = run_module(capsys, "watchdog_info", check=check, **watchdog)
    assert result["changed"] is False
    assert result["status"]["phase"] == "healthy"
    assert result["status"]["cards"][0]["slot"] == "c0"


def test_a_corrupt_state_is_read_as_locked_out(watchdog, capsys, tmp_path) -> None:
    (tmp_path / "watchdog.json").write_text("{")
    status = run_module(capsys, "watchdog_info", **watchdog)["status"]
    assert status["phase"] == "locked_out"
    assert "corrupt" in status["locked_reason"]


def test_a_host_without_the_watchdog_is_said(watchdog, capsys, tmp_path) -> None:
    with pytest.raises(ModuleFailed, match="is the role gpu_watchdog applied"):
        run_module(capsys, "watchdog_info", config=watchdog["config"], command=str(tmp_path / "absent"))


def test_a_bad_configuration_is_passed_on_with_its_faults(watchdog, capsys) -> None:
    Path(watchdog["config"]).write_text("host = 1\n")
    with pytest.raises(ModuleFailed, match=r"got 2: .*host: 1: expected a host name"):
        run_module(capsys, "watchdog_info", **watchdog)


@pytest.mark.parametrize("out", ["", "[]", json.dumps({"other": 1})])
def test_another_answer_than_a_status_is_a_failure(watchdog, capsys, out) -> None:
    Path(watchdog["command"]).write_text(f"#!/bin/sh\necho '{out}'\n")
    with pytest.raises(ModuleFailed, match="expected a JSON object with the phase"):
        run_module(capsys, "watchdog_info", **watchdog)

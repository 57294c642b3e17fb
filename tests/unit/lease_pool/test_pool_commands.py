"""The command's exit statuses that need no pool: 0 done, 1 failed, 2 bad usage or configuration, with one line a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from lease_pool.cli import main
from lease_pool.config import schema

from tests.support.pool_rig import free_port

GOOD = {
    "supervisor": "process",
    "card_source": "declared",
    "cards": [{"slot": "c0", "uuid": "GPU-0", "memory_mib": 1}],
    "models": {"m": {"backend": "command", "argv": ["x"], "memory_mib": 1}},
}


def written(folder: Path, **changes: object) -> str:
    path = folder / "pool.yml"
    path.write_text(yaml.safe_dump(GOOD | changes))
    return str(path)


def test_check_is_silent_about_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", written(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


def test_check_tells_all_faults_at_once_one_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, window_s=-1, nonsense=1, cards=[])
    assert main(["check", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert {line.split(": ")[1] for line in lines} == {"window_s", "nonsense", "cards"}


@pytest.mark.parametrize("verb", ["serve", "status", "drain", "resume", "reconcile", "events"])
def test_every_verb_that_reads_the_configuration_tells_its_faults(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, window_s=-1, nonsense=1)
    try:
        status = main([verb, "--config", path])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith(f"{path}: ")]) == 2


def test_a_token_file_that_cannot_be_read_is_a_fault_of_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {key: str(tmp_path / key) for key in ("state_dir", "runtime_dir")}
    path = written(tmp_path, token_file=str(tmp_path / "none"), listen={"host": "127.0.0.1", "port": free_port()}, **folders)
    assert main(["serve", "--config", path]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"{tmp_path}/none: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    "words",
    [
        [], ["nonsense"], ["check"], ["schema", "x"], ["serve", "--socket", "/x"], ["status", "--config", "/x", "--socket", "/y"],
        ["release"], ["quarantine"], ["drain", "--wait", "nan"], ["run", "--cards", "1"], ["status", "--jso"],
    ],
)  # fmt: skip
def test_bad_usage_is_exit_2_with_a_word_about_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: lease-pool" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["exec-worker"],
        ["exec-worker", "c0", "c1"],
        ["wait-free"],
        ["prepare-cards", "x"],
        ["start-idle", "--config"],
        ["clear-workers", "--config="],
        ["exec-worker", "-h"],
    ],
)
def test_the_helpers_of_units_check_their_usage_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"usage: lease-pool {words[0]}" in capsys.readouterr().err


def test_a_pool_that_does_not_answer_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["status"], ["release", "GPU-0"], ["run", "--", "true"]):
        assert main([words[0], "--socket", str(tmp_path / "none.sock"), *words[1:]]) == 1
        assert capsys.readouterr().err == f"lease-pool: {tmp_path}/none.sock: the pool does not answer: No such file or directory\n"


def test_the_schema_is_printed_as_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()

"""What the host itself says about packages and maintenance."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_watchdog.state import Now
from gpu_watchdog.store import Store

from gpu_watchdog import maintenance, packages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text("systemd\n")
    (tmp_path / "proc/locks").symlink_to("/proc/locks")
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/lock-frontend").touch()
    return tmp_path


def test_a_held_lock_of_dpkg_is_seen_without_being_root(root: Path) -> None:
    assert packages.busy(root) is False
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()", str(root / "var/lib/dpkg/lock-frontend")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout
    holder.stdout.readline()
    assert packages.busy(root) is True
    holder.communicate()
    assert packages.busy(root) is False


def test_a_running_package_manager_is_seen_by_its_name(root: Path) -> None:
    (root / "proc/77").mkdir()
    (root / "proc/77/comm").write_text("unattended-upgr\n")
    assert packages.busy(root) is True


def test_locks_that_cannot_be_read_are_unknown_not_free(root: Path) -> None:
    (root / "proc/locks").unlink()
    assert packages.busy(root) is None


def test_a_lock_of_another_file_is_none_of_ours(root: Path, tmp_path: Path) -> None:
    with (tmp_path / "other").open("w") as other:
        fcntl.lockf(other, fcntl.LOCK_EX)
        assert packages.busy(root) is False


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("5s", 5)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert maintenance.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "8d", "-1h", "1.5h", "1w", "h", "99999999999"])
def test_a_duration_without_a_sense_or_an_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        maintenance.duration(text)


def test_maintenance_ends_on_the_monotonic_clock_whatever_the_wall_clock_does(tmp_path: Path) -> None:
    maintenance.put(tmp_path, 100, "rollout", Now(1000, 50), "b")
    for wall in (0, 1000, 1e9):
        assert maintenance.active(tmp_path, Now(wall, 149), "b")
        assert maintenance.active(tmp_path, Now(wall, 150), "b") is None


def test_maintenance_goes_on_over_a_reboot_and_still_ends(tmp_path: Path) -> None:
    maintenance.put(tmp_path, 100, "rollout", Now(1000, 5000), "b")
    assert maintenance.active(tmp_path, Now(1050, 20), "c")
    assert maintenance.active(tmp_path, Now(1101, 20), "c") is None
    assert maintenance.active(tmp_path, Now(0, 100), "c") is None, "a wall clock that was set back does not keep it for ever"


def test_a_flag_that_cannot_be_read_counts_as_set(tmp_path: Path) -> None:
    (tmp_path / "watchdog-maintenance.json").write_text("{")
    assert "maintenance --clear" in (maintenance.active(tmp_path, Now(0, 0), "b") or "")
    assert maintenance.clear(tmp_path)
    assert not maintenance.clear(tmp_path)


def test_the_lock_may_be_taken_by_every_writer(tmp_path: Path) -> None:
    with Store(tmp_path).locked():
        pass
    assert (tmp_path / "watchdog.lock").stat().st_mode & 0o777 == 0o660

"""Every property of DESIGN.md section 3 in the units as they are rendered."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.lease_pool_systemd.units import Unit, render, unit

ALL = [
    ("lease_pool", "gpu-cards.service"),
    ("lease_pool", "gpu-idle.service"),
    ("lease_pool", "gpu-worker@.service"),
    ("lease_pool", "lease-pool.service"),
    ("gpu_miner", "gpu-miner@.service"),
    ("gpu_miner", "gpu-miner.service"),
    ("gpu_miner", "gpu-miner-refresh.service"),
]


@pytest.fixture
def worker() -> Unit:
    return unit("lease_pool", "gpu-worker@.service")


@pytest.fixture
def miner() -> Unit:
    return unit("gpu_miner", "gpu-miner@.service")


@pytest.fixture
def pool() -> Unit:
    return unit("lease_pool", "lease-pool.service")


@pytest.mark.parametrize(("role", "name"), ALL)
@pytest.mark.parametrize("driver", ["per_card", "shared", "none"])
def test_no_unit_is_bound_to_another_by_more_than_a_wish(role: str, name: str, driver: str) -> None:
    found = unit(role, name, __lease_pool_idle_driver=driver)
    assert found.keys.isdisjoint({"BindsTo", "Requires", "Requisite", "PartOf", "Upholds", "PropagatesStopTo", "StopPropagatedFrom"})


@pytest.mark.parametrize(("role", "name"), ALL)
def test_systemd_itself_finds_no_fault_in_the_unit(role: str, name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is needed (package systemd)")
    for other_role, other in ALL:
        text = render(other_role, other)
        # Programs and accounts of a host are not on this machine; everything else is judged as it is.
        for line in text.splitlines():
            if line.startswith(("Exec", "User=", "Group=", "SupplementaryGroups=", "EnvironmentFile=")):
                text = text.replace(line + "\n", "ExecStart=/bin/true\n" if line.startswith("ExecStart=") else "")
        (tmp_path / other).write_text(text)
    target = name.replace("@.", "@c0.")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / target)],
        check=False, capture_output=True, text=True, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Unknown" not in done.stderr, done.stderr


def test_pid_1_orders_the_worker_against_the_miner_and_sends_the_card_home(worker: Unit) -> None:
    assert worker.words("Conflicts") == {"gpu-miner@%i.service"}
    assert "gpu-miner@%i.service" in worker.words("After")
    assert worker.one("OnSuccess") == worker.one("OnFailure") == "gpu-miner@%i.service"
    assert worker.words("Before") == {"lease-pool.service"}


def test_quick_leases_never_trip_a_start_limit(worker: Unit, miner: Unit, pool: Unit) -> None:
    for found in (worker, miner, pool):
        assert found.one("StartLimitIntervalSec") == "0"
    assert worker.one("CollectMode") == "inactive-or-failed"


def test_worker_and_miner_hold_the_same_lock_through_exec(worker: Unit, miner: Unit) -> None:
    assert worker.one("ExecStart").startswith("/usr/bin/flock --no-fork -n -E 75 /run/gpu-fleet/cards/%i.use ")
    assert worker.one("ExecStart").endswith(" exec-worker %i")
    assert miner.one("ExecStart").startswith("/usr/bin/flock --no-fork -w 10 -E 75 /run/gpu-fleet/cards/%i.use ")


def test_a_worker_ends_with_all_its_processes_and_within_bounds_that_need_no_pool(worker: Unit) -> None:
    assert worker.one("KillMode") == "control-group"
    assert float(worker.one("TimeoutStopSec")) == 5
    assert int(worker.one("RuntimeMaxSec")) == 21600
    assert int(worker.one("TimeoutStartSec")) > 10


def test_a_worker_may_open_no_card_but_its_own_and_no_network(worker: Unit) -> None:
    assert worker.one("DevicePolicy") == "closed"
    assert not [value for value in worker.all("DeviceAllow") if value.startswith("/dev/nvidia") and value[11].isdigit()]
    assert worker.one("PrivateNetwork") == "yes"
    assert worker.one("User") == worker.one("Group") == "gpu-worker"
    assert worker.one("RuntimeDirectory") == "gpu-worker/%i"
    assert worker.one("RuntimeDirectoryMode") == "0750"
    assert worker.one("LoadCredential") == "api-key:/run/gpu-fleet/launch/%i.key"


def test_a_card_that_was_not_found_at_boot_starts_nothing(worker: Unit, miner: Unit) -> None:
    assert worker.one("AssertPathExists") == "/run/systemd/system/gpu-worker@%i.service.d/card.conf"
    assert "/run/systemd/system/gpu-miner@%i.service.d/card.conf" in miner.all("ConditionPathExists")


def test_the_miner_comes_back_after_a_fault_but_not_where_the_card_is_taken_or_held_down(miner: Unit) -> None:
    assert miner.one("Restart") == "on-failure"
    assert miner.one("RestartSec") == "5"
    assert miner.one("RestartPreventExitStatus") == "75"
    assert miner.words("SuccessExitStatus") == {"143", "SIGTERM"}
    assert "!/var/lib/gpu-fleet/hold/%i" in miner.all("ConditionPathExists")
    assert miner.one("ExecStartPre").endswith(" wait-free %i")


def test_no_target_wants_the_miner_or_the_worker(worker: Unit, miner: Unit) -> None:
    for found in (worker, miner, unit("gpu_miner", "gpu-miner.service"), unit("gpu_miner", "gpu-miner-refresh.service")):
        assert not [section for section, _, _ in found.settings if section == "Install"]
    assert unit("lease_pool", "gpu-idle.service").one("WantedBy") == "multi-user.target"


def test_the_pool_leaves_no_worker_and_no_idle_card_behind(pool: Unit) -> None:
    assert pool.one("Restart") == "always"
    assert [value for value in pool.all("ExecStartPre") if "clear-workers" in value and value.startswith("+")]
    clear, idle = pool.all("ExecStopPost")
    assert clear.startswith("+")
    assert " clear-workers " in clear
    assert idle.startswith("+")
    assert idle.endswith("start --no-block gpu-idle.service")


def test_the_pool_stops_later_than_its_streams_may_take(pool: Unit) -> None:
    assert int(pool.one("TimeoutStopSec")) > 60 + 5 + 10


def test_with_one_miner_for_all_cards_a_worker_conflicts_with_nothing_and_asks_for_a_refresh() -> None:
    worker = unit("lease_pool", "gpu-worker@.service", __lease_pool_idle_driver="shared", __lease_pool_idle_unit="gpu-miner.service")
    assert "Conflicts" not in worker.keys
    assert worker.one("OnSuccess") == worker.one("OnFailure") == "gpu-miner-refresh.service"


def test_without_an_idle_workload_a_worker_starts_nothing_after_it() -> None:
    worker = unit("lease_pool", "gpu-worker@.service", __lease_pool_idle_driver="none")
    assert worker.keys.isdisjoint({"Conflicts", "OnSuccess", "OnFailure"})


def test_the_polkit_rule_names_exactly_our_units() -> None:
    text = render("lease_pool", "polkit.rules")
    named = {line.strip().strip('",') for line in text.splitlines() if line.strip().startswith('"gpu-')}
    assert named == {f"gpu-{kind}@{slot}.service" for kind in ("worker", "miner") for slot in ("c0", "c1")}
    assert '["start", "stop", "reset-failed"]' in text
    assert '"unit") === "gpu-cards.service" && action.lookup("verb") === "restart"' in text
    assert 'subject.user !== "lease-pool"' in text


def test_no_secret_of_the_miner_is_in_its_unit() -> None:
    text = render(
        "gpu_miner", "gpu-miner@.service", gpu_miner_args=["-u", "{wallet}", "-p", "{password}"], gpu_miner_pool_password="s3cret-word"
    )
    assert "prl1" not in text
    assert "s3cret-word" not in text
    assert '"-u" "${GPU_MINER_WALLET}" "-p" "${GPU_MINER_PASSWORD}"' in text


def test_arguments_reach_the_miner_as_they_were_written() -> None:
    awkward = ["a b", 'say "hi"', "100%", "$HOME", "back\\slash", "x;d=131072"]
    line = unit("gpu_miner", "gpu-miner@.service", gpu_miner_args=awkward).one("ExecStart")
    assert line.endswith(r'"a b" "say \"hi\"" "100%%" "$$HOME" "back\\slash" "x;d=131072"')


def test_each_card_mines_under_a_name_and_port_of_its_own() -> None:
    env = [render("gpu_miner", "slot.env", __gpu_miner_slot=f"c{n}", __gpu_miner_index=n) for n in range(2)]
    assert 'GPU_MINER_WORKER="gpu-a-c0"' in env[0]
    assert 'GPU_MINER_WORKER="gpu-a-c1"' in env[1]
    assert 'GPU_MINER_API_PORT="4068"' in env[0]
    assert 'GPU_MINER_API_PORT="4069"' in env[1]


def test_a_password_with_quotes_survives_the_environment_file() -> None:
    text = render("gpu_miner", "slot.env", __gpu_miner_slot="c0", __gpu_miner_index=0, gpu_miner_pool_password='a"b\\c')
    assert 'GPU_MINER_PASSWORD="a\\"b\\\\c"' in text

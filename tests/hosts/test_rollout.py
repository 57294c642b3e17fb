"""What the rollout made, seen from outside: sockets, unit properties, accounts, HTTP. Nothing here asks the roles what they meant."""

from __future__ import annotations

import json

import pytest
from testinfra.host import Host

from tests.hosts.conftest import INVENTORY, ROOT

pytestmark = pytest.mark.hosts
SECRETS = ROOT / "build" / "demo-secrets" if INVENTORY == ROOT / "inventories" / "demo" else INVENTORY.parent / "secrets"


def properties(host: Host, unit: str, *names: str) -> dict[str, str]:
    """What systemd itself says of a unit."""
    out = host.check_output("systemctl show --property=%s %s", ",".join(names), unit)
    return dict(line.split("=", 1) for line in out.splitlines() if "=" in line)


@pytest.mark.parametrize("unit", ["lease-pool.service", "gpu-watchdog.service", "litellm.service", "nginx.service"])
def test_each_service_runs_and_is_enabled(host: Host, unit: str) -> None:
    shown = properties(host, unit, "ActiveState", "UnitFileState")
    assert shown == {"ActiveState": "active", "UnitFileState": "enabled"}


@pytest.mark.parametrize(
    ("unit", "user"),
    [
        ("lease-pool.service", "lease-pool"),
        ("gpu-watchdog.service", "gpu-watchdog"),
        ("litellm.service", "litellm"),
        ("gpu-miner@c0.service", "gpu-miner"),
    ],
)
def test_each_service_runs_under_an_account_of_its_own(host: Host, unit: str, user: str) -> None:
    pid = properties(host, unit, "MainPID")["MainPID"]
    assert host.file(f"/proc/{pid}").user == user
    assert host.user(user).shell == "/usr/sbin/nologin"


def test_every_card_mines_and_no_worker_runs(host: Host, slots: list[str]) -> None:
    for slot in slots:
        assert properties(host, f"gpu-miner@{slot}.service", "ActiveState") == {"ActiveState": "active"}
        assert properties(host, f"gpu-worker@{slot}.service", "ActiveState") == {"ActiveState": "inactive"}


def test_nothing_in_the_whole_host_has_failed(host: Host) -> None:
    assert host.check_output("systemctl --failed --plain --no-legend") == ""


def test_the_worker_unit_has_the_properties_that_bring_the_card_home(host: Host, slots: list[str]) -> None:
    for slot in slots:
        shown = properties(
            host, f"gpu-worker@{slot}.service", "Conflicts", "After", "OnSuccess", "OnFailure", "Before", "StartLimitIntervalUSec", "CollectMode",
            "KillMode", "BindsTo", "Requires", "Requisite", "PartOf", "PrivateNetwork", "DevicePolicy",
        )  # fmt: skip
        miner = f"gpu-miner@{slot}.service"
        assert miner in shown["Conflicts"].split()
        assert miner in shown["After"].split()
        assert shown["OnSuccess"] == shown["OnFailure"] == miner
        assert "lease-pool.service" in shown["Before"].split()
        assert shown["StartLimitIntervalUSec"] == "0"
        assert shown["CollectMode"] == "inactive-or-failed"
        assert shown["KillMode"] == "control-group"
        assert (shown["PrivateNetwork"], shown["DevicePolicy"]) == ("yes", "closed")
        for forbidden in ("BindsTo", "Requisite", "PartOf"):
            assert shown.get(forbidden, "") == ""
        assert "lease-pool.service" not in shown["Requires"]
        assert miner not in shown["Requires"]


def test_a_worker_may_open_its_own_cards_device_only(host: Host, slots: list[str]) -> None:
    for number, slot in enumerate(slots):
        shown = properties(host, f"gpu-worker@{slot}.service", "Environment")
        allowed = host.check_output("systemctl show --property=DeviceAllow --value %s", f"gpu-worker@{slot}.service").split()
        cards = [word for word in allowed if word.startswith("/dev/nvidia") and word[11:].isdigit()]
        assert cards == [f"/dev/nvidia{number}"]
        assert f"CUDA_VISIBLE_DEVICES=GPU-{host.backend.host[-1]}0000000-0000-4000-8000-0000000000{slot}" in shown["Environment"]


def test_the_gateway_listens_behind_its_front_only(host: Host) -> None:
    listening = host.socket.get_listening_sockets()
    assert "tcp://127.0.0.1:4001" in listening
    assert not [s for s in listening if s.endswith(":4001") and s != "tcp://127.0.0.1:4001"]
    assert not [s for s in listening if s.endswith(":9100") and s.startswith(("tcp://0.0.0.0", "tcp://:::", "tcp://[::]"))]


def test_the_pool_wants_a_token_everywhere_but_on_health_and_ready(host: Host) -> None:
    address = json.loads(host.check_output("ip -json -4 addr show eth0"))[0]["addr_info"][0]["local"]
    for path, status in (
        ("/health", "200"),
        ("/ready", "200"),
        ("/metrics", "401"),
        ("/capacity", "401"),
        ("/v1/models", "401"),
        ("/nowhere", "401"),
    ):
        found = host.run("python3 -c %s %s", _STATUS_OF, f"http://{address}:9100{path}").stdout.strip()
        assert (path, found) == (path, status)


_STATUS_OF = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status)
except urllib.error.HTTPError as answer:
    print(answer.code)
"""


def test_the_pools_account_may_manage_its_units_and_no_other(host: Host) -> None:
    def start(unit: str) -> int:
        command = "runuser -u lease-pool -- busctl call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager StartUnit ss %s replace"
        return int(host.run(command, unit).rc)

    assert start("gpu-miner@c0.service") == 0
    for unit in ("ssh.service", "systemd-poweroff.service", "gpu-watchdog.service"):
        assert start(unit) != 0, f"the pool's account may start {unit}"


def test_secrets_are_in_owner_only_files_and_nowhere_else(host: Host) -> None:
    secrets = {path.name: path.read_text().strip().split(" ")[0] for path in SECRETS.iterdir()}
    assert {"pool_token", "operator_key", "master_key"} <= set(secrets)
    journal = host.check_output("journalctl --no-pager --all --output=json")  # with every field: journald keeps command lines too
    services = host.check_output("ps -o args --no-headers -u lease-pool,gpu-watchdog,litellm,gpu-worker")
    for name, value in secrets.items():
        assert value not in journal, f"{name} is in the journal"
        assert value not in services, f"{name} is in a command line"
        found = host.run("grep -rlF -e %s /etc /opt/gpu-fleet --include=*", value).stdout.split()
        for path in found:
            assert host.file(path).mode & 0o007 == 0, f"{name} can be read by everyone in {path}"

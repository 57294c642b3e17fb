"""The simulated hosts are hosts: what systemd, the kernel and the package registries do there is what roles and drills rely on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SUBNET = "10.89.79."
HOSTS = [sys.executable, str(ROOT / "tests/support/hosts/hosts.py"), "--prefix", "selftest", "--subnet", f"{SUBNET}0/24"]
OTHERS = Path("/run/gpu-fleet-hosts")  # there as long as any simulated host of this machine is up
NAMES = ["gpu-a", "gpu-b"]

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]


def machine_state() -> dict[str, list[str]]:
    """What bringing hosts up could leave behind on this machine."""
    commands = {
        "interfaces": ["ip", "-o", "link"],
        "routes": ["ip", "route"],
        "filter": ["iptables", "-S"],
        "nat": ["iptables", "-t", "nat", "-S"],
        "mounts": ["findmnt", "-rno", "TARGET"],
        "forwarding": ["cat", "/proc/sys/net/ipv4/ip_forward"],
    }
    found = {name: subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines() for name, argv in commands.items()}
    found["interfaces"] = [line.split()[1] for line in found["interfaces"]]
    return {name: sorted(lines) for name, lines in found.items()}


def hosts(*arguments: str) -> str:
    done = subprocess.run([*HOSTS, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on(name: str, script: str, *, check: bool = True) -> str:
    """What a shell script prints on a host."""
    done = subprocess.run([*HOSTS, "exec", name, "--", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout + done.stderr


def unit(properties: dict[str, str], script: str) -> str:
    """A command that runs a shell script in a transient unit and prints what it printed."""
    options = " ".join(f"--property='{key}={value}'" for key, value in properties.items())
    return f"systemd-run --quiet --wait --pipe {options} sh -c '{script}'"


def status() -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(hosts("status", "--json"))}


@pytest.fixture(scope="module", autouse=True)
def booted() -> Iterator[None]:
    before = machine_state()
    alone = not OTHERS.exists()
    hosts("up")
    yield
    hosts("down")
    after = machine_state()
    if alone and not OTHERS.exists():
        assert after == before, "down left something behind"
    assert SUBNET not in str(after)
    assert not (ROOT / "build/hosts/selftest").exists()


def test_both_boot_without_a_failed_unit() -> None:
    assert {row["systemd"] for row in status().values()} == {"running"}


@pytest.mark.parametrize("name", NAMES)
def test_a_credential_reaches_an_unprivileged_unit(name: str) -> None:
    on(name, "echo hush > /root/credential")
    run = unit({"LoadCredential": "key:/root/credential", "DynamicUser": "yes"}, 'cat "$CREDENTIALS_DIRECTORY/key"')
    assert on(name, run).strip() == "hush"


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_may_open_its_cards_node_and_no_other(name: str) -> None:
    run = unit({"DevicePolicy": "closed", "DeviceAllow": "/dev/nvidia1"}, "(: < /dev/nvidia0); (: < /dev/nvidia1)")
    told = on(name, run, check=False)
    assert "/dev/nvidia0: Operation not permitted" in told
    assert "/dev/nvidia1: No such device or address" in told


@pytest.mark.parametrize("name", NAMES)
def test_a_private_network_has_loopback_only(name: str) -> None:
    told = on(name, unit({"PrivateNetwork": "yes"}, "ip -o link"))
    assert "eth0" not in told


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_firewall_of_its_own(name: str) -> None:
    on(name, "nft add table inet selftest && nft list tables | grep -q selftest && nft delete table inet selftest")


@pytest.mark.parametrize("name", NAMES)
def test_apt_and_pip_reach_their_registries_and_polkit_rules_hold(name: str) -> None:
    on(name, "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends polkitd python3-venv")
    on(name, "python3 -m venv /opt/probe && /opt/probe/bin/pip install --quiet nvidia-ml-py")
    rule = 'polkit.addRule(function(a, s) { if (s.user == "probe" && a.lookup("unit") == "probe.service") return polkit.Result.YES; });'
    on(name, f"useradd -r probe && echo '{rule}' > /etc/polkit-1/rules.d/50-probe.rules")
    on(
        name,
        "printf '[Service]\\nExecStart=sleep 600\\n' > /run/systemd/system/probe.service && systemctl daemon-reload && systemctl restart polkit",
    )
    as_probe = "setpriv --reuid probe --regid probe --clear-groups systemctl --no-ask-password"
    on(name, f"{as_probe} start probe.service && systemctl is-active probe.service")
    assert "authentication required" in on(name, f"{as_probe} stop ssh.service", check=False)
    probe = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(n.nvmlDeviceGetHandleByIndex(0)).total >> 20)"
    expected = {"gpu-a": "4 12288", "gpu-b": "2 24576"}
    assert on(name, f"/opt/probe/bin/python -c '{probe}'").strip() == expected[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_process_on_a_card_is_seen_even_by_a_unit_from_which_it_is_hidden(name: str) -> None:
    uuid = json.loads(on(name, "gpu-sim list"))[0]["uuid"]
    on(
        name,
        f"systemd-run --quiet --unit=user --property=DynamicUser=yes --setenv=CUDA_VISIBLE_DEVICES={uuid} --setenv=GPU_SIM_MIB=700 tail -f /dev/null",
    )
    wait = "for i in $(seq 40); do gpu-sim list | grep -q 700 && exit 0; sleep 0.1; done; exit 1"
    on(name, wait)
    call = 'import ctypes as c; l = c.CDLL("libnvidia-ml.so.1"); l.nvmlInit_v2(); h = c.c_void_p(); l.nvmlDeviceGetHandleByIndex_v2(0, c.byref(h)); '
    call += "m = (c.c_ulonglong * 3)(); l.nvmlDeviceGetMemoryInfo(h, m); print(m[2] >> 20)"
    hidden = "--property=DynamicUser=yes --property=ProtectProc=invisible"
    assert on(name, f"systemd-run --quiet --wait --pipe {hidden} python3 -c '{call}'").strip() == "700"
    on(name, "systemctl stop user.service")


@pytest.mark.parametrize("name", NAMES)
def test_a_reboot_is_real(name: str) -> None:
    before = status()[name]["boot_id"]
    uuid = json.loads(on(name, "gpu-sim list"))[0]["uuid"]
    on(name, f"touch /root/kept /run/lost && gpu-sim pull {uuid}")
    hosts("reboot", name)
    after = status()[name]
    assert after["boot_id"] not in {"", before}
    assert after["systemd"] == "running"
    on(name, "test -e /root/kept && test ! -e /run/lost && test -c /dev/nvidia0")
    assert "gone" not in on(name, "cat /run/gpu-sim/cards/00/mode 2>/dev/null", check=False)
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", str(ROOT / "build/hosts/id_ed25519")]
    subprocess.run(["ssh", *options, f"root@{after['address']}", "true"], check=True, capture_output=True, timeout=20)

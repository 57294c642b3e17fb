#!/usr/bin/env python3
"""Simulated GPU hosts: podman containers that boot systemd, with cards in a simulated NVML, reached by SSH as any host is."""

from __future__ import annotations

import argparse
import ipaddress
import json
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import yaml

from tests.support.hosts import engine, image, machine
from tests.support.hosts.paths import BUILD, CACHE, FILES, SSH_KEY
from tests.support.nvml_sim import library
from tests.support.nvml_sim.cards import Card, Cards

BOOT_S = 120  # seconds on an idle machine, longer beside a whole test run
LABEL = "gpu-fleet-hosts"
NVML_SIM = Path(library.__file__).parent


@dataclass(frozen=True)
class Host:
    name: str
    suite: str
    address: str
    cards: list[Card]


@dataclass(frozen=True)
class HostSet:
    prefix: str
    subnet: str
    hosts: list[Host] = field(default_factory=list)

    @property
    def network(self) -> str:
        return f"gpu-fleet-{self.prefix}"

    def container(self, host: Host) -> str:
        return f"{self.prefix}-{host.name}"

    def folder(self, host: Host) -> Path:
        return BUILD / self.prefix / host.name

    def named(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise SystemExit(f"no host {name} in this set; it has {', '.join(host.name for host in self.hosts)}")


def load(file: Path, prefix: str | None, subnet: str | None) -> HostSet:
    data: dict[str, Any] = yaml.safe_load(file.read_text())
    network = ipaddress.ip_network(subnet or data["subnet"])
    hosts = [
        Host(name, host["suite"], str(network[host["number"]]), [Card(**card) for card in host["cards"]])
        for name, host in data["hosts"].items()
    ]
    return HostSet(prefix or data["prefix"], str(network), hosts)


def up(hosts: HostSet) -> int:
    engine.requires_root()
    began = time.monotonic()
    with engine.lock():
        engine.prepare()
        image.ensure([host.suite for host in hosts.hosts])
        _make_key()
        _make_network(hosts)
        libnvml = library.build(BUILD / "lib")
    for host in hosts.hosts:
        if _state(hosts, host) is None:
            _create(hosts, host, libnvml)
        engine.podman("start", hosts.container(host))
    failed = [host.name for host in hosts.hosts if not _await_boot(hosts, host)]
    print(f"{len(hosts.hosts) - len(failed)} of {len(hosts.hosts)} hosts up in {time.monotonic() - began:.0f} s", flush=True)
    return status(hosts, as_json=False) or bool(failed)


def down(hosts: HostSet) -> int:
    engine.requires_root()
    with engine.lock():
        engine.prepare()
        names = [hosts.container(host) for host in hosts.hosts if _state(hosts, host) is not None]
        if names:
            engine.podman("rm", "--force", "--time", "5", "--volumes", *names)
        engine.podman("network", "rm", "--force", hosts.network)
        shutil.rmtree(BUILD / hosts.prefix, ignore_errors=True)
        if not engine.podman("ps", "--all", "--quiet", "--filter", f"label={LABEL}").strip():
            engine.dismantle()
    return 0


def status(hosts: HostSet, *, as_json: bool) -> int:
    rows = []
    for host in hosts.hosts:
        state = _state(hosts, host) or "absent"
        running = state == "running"
        rows.append(
            {
                "name": host.name,
                "address": host.address,
                "suite": host.suite,
                "container": state,
                "systemd": _run(hosts, host, "systemctl", "is-system-running").strip() if running else None,
                "boot_id": _boot_id(hosts, host) if running else None,
                "cards": len(host.cards),
            }
        )
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    return 0 if all(row["container"] == "running" for row in rows) else 1


def reboot(hosts: HostSet, host: Host) -> int:
    """A real reboot: systemd shuts down, podman starts the container again."""
    before = _boot_id(hosts, host)
    _run(hosts, host, "systemctl", "reboot")
    return 0 if _await_boot(hosts, host, old_boot_id=before) else 1


def enter(hosts: HostSet, host: Host, argv: list[str]) -> int:
    terminal = ["--interactive", "--tty"] if sys.stdin.isatty() else ["--interactive"]
    return subprocess.run(engine.command("exec", *terminal, hosts.container(host), *(argv or ["bash"])), check=False).returncode


def _state(hosts: HostSet, host: Host) -> str | None:
    text = engine.podman("container", "inspect", "--format", "{{.State.Status}}", hosts.container(host), check=False).strip()
    return text or None


def _run(hosts: HostSet, host: Host, *argv: str) -> str:
    return engine.podman("exec", hosts.container(host), *argv, check=False)


def _boot_id(hosts: HostSet, host: Host) -> str:
    return _run(hosts, host, "cat", "/proc/sys/kernel/random/boot_id").strip()


def _make_key() -> None:
    if not SSH_KEY.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "simulated hosts", "-f", str(SSH_KEY)], check=True)


def _make_network(hosts: HostSet) -> None:
    if hosts.network not in engine.podman("network", "ls", "--format", "{{.Name}}").split():
        engine.podman("network", "create", "--disable-dns", "--subnet", hosts.subnet, hosts.network)


def _describe(hosts: HostSet, host: Host) -> Path:
    """The folder that the host's boot reads: its cards, who may log in, how it reaches packages."""
    folder = hosts.folder(host)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    Cards(folder / "state").lay_out(host.cards)
    for name, text in {
        "authorized_keys": SSH_KEY.with_suffix(".pub").read_text(),
        "ca-certificates.crt": machine.ca_bundle(),
        "pip.conf": machine.pip_conf("/var/cache/pip"),
        "apt.sources": machine.apt_sources(host.suite),
        "apt.conf": machine.apt_conf(),
    }.items():
        (folder / name).write_text(text)
    return folder


def _create(hosts: HostSet, host: Host, libnvml: Path) -> None:
    name = hosts.container(host)
    described = _describe(hosts, host)
    # apt locks its archive folder: one a host
    archives = CACHE / "apt" / name
    wheels = CACHE / "pip"
    artifacts = CACHE / "artifacts"  # what tests/support/demo_artifacts.py makes; the inventory names it by file:// URL
    for folder in (archives, wheels, artifacts):
        folder.mkdir(parents=True, exist_ok=True)
    options = [
        *("--name", name, "--hostname", host.name, "--label", LABEL, "--network", hosts.network, "--ip", host.address),
        *("--systemd=always", "--restart=always", "--stop-signal=SIGRTMIN+3", "--log-driver=k8s-file", "--pids-limit=0"),
        # privileged: systemd is init, units use DeviceAllow=, PrivateNetwork=, nftables
        "--privileged",
        # without CAP_SYS_RESOURCE podman's own, higher limits cannot be set
        "--ulimit=nofile=1024:4096",
        "--ulimit=nproc=32768:32768",
        *(f"--add-host={other.name}:{other.address}" for other in hosts.hosts if other is not host),
        *("--volume", f"{described}:/etc/gpu-sim:ro"),
        *("--volume", f"{archives}:/var/cache/apt/archives", "--volume", f"{wheels}:/var/cache/pip"),
        *("--volume", f"{artifacts}:/opt/demo-artifacts:ro"),
    ]
    engine.podman("create", *options, image.tag(host.suite), "/sbin/init")
    engine.podman("cp", f"{FILES}/.", f"{name}:/")
    engine.podman("cp", str(NVML_SIM / "occupancy.py"), f"{name}:/usr/local/lib/gpu-sim/occupancy.py")
    engine.podman("cp", str(NVML_SIM / "cards.py"), f"{name}:/usr/local/bin/gpu-sim")
    engine.podman("cp", str(libnvml), f"{name}:/usr/local/lib/{library.NAME}")


def _await_boot(hosts: HostSet, host: Host, old_boot_id: str = "") -> bool:
    """True once systemd has started everything and SSH answers; says what failed otherwise."""
    deadline = time.monotonic() + BOOT_S
    state = ""
    while time.monotonic() < deadline:
        if _boot_id(hosts, host) not in {"", old_boot_id}:
            state = _run(hosts, host, "systemctl", "is-system-running", "--wait").strip()
            if state in {"running", "degraded"} and _answers(host.address):
                break
        time.sleep(0.2)
    else:
        print(f"{host.name}: not up after {BOOT_S} s (systemd: {state or 'no answer'})", file=sys.stderr)
        print(engine.podman("logs", "--tail", "40", hosts.container(host), check=False), file=sys.stderr)
        return False
    if state == "degraded":
        print(f"{host.name}: failed units: {_run(hosts, host, 'systemctl', '--failed', '--plain', '--no-legend')}", file=sys.stderr)
    return True


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1):
            return True
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="hosts.py", description=__doc__)
    parser.add_argument("--set", type=Path, default=Path(__file__).with_name("demo.yml"), help="the hosts, as YAML (default: demo.yml)")
    parser.add_argument("--prefix", help="name of this set of hosts (default: the file's)")
    parser.add_argument("--subnet", help="their network (default: the file's)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="boot the hosts; returns when Ansible can reach them")
    verbs.add_parser("down", help="remove the hosts and everything that was made for them")
    verbs.add_parser("status", help="one line a host").add_argument("--json", action="store_true")
    verbs.add_parser("reboot", help="reboot a host and wait for it").add_argument("name")
    run = verbs.add_parser("exec", help="run a command on a host: exec NAME -- CMD")
    run.add_argument("name")
    run.add_argument("argv", nargs="*", metavar="CMD")
    options = parser.parse_args()
    hosts = load(options.set, options.prefix, options.subnet)
    if options.verb == "up":
        return up(hosts)
    if options.verb == "down":
        return down(hosts)
    if options.verb == "status":
        return status(hosts, as_json=options.json)
    host = hosts.named(options.name)
    return reboot(hosts, host) if options.verb == "reboot" else enter(hosts, host, options.argv)


if __name__ == "__main__":
    sys.exit(main())

"""podman, in a mount namespace where cgroup v2 is mounted as systemd in a container needs it.

A machine whose own /sys/fs/cgroup is a v1 or hybrid tree keeps it: only podman and what it starts see the plain cgroup2 mount.
The namespace is a file under /run, so that later commands enter the same one.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.hosts.paths import BUILD, RUN

NAMESPACE = RUN / "mnt"
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
CONFIG = BUILD / "containers.conf"


def _file_system(path: str) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], check=True, capture_output=True, text=True).stdout.strip()


def _mounted(path: Path) -> bool:
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


@contextmanager
def lock() -> Iterator[None]:
    """One command at a time makes or removes what all sets of hosts share (namespace, images)."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare() -> None:
    """Makes the namespace where this machine needs one, and podman's settings."""
    needs_namespace = _file_system("/sys/fs/cgroup") != "cgroup2fs"
    RUN.mkdir(parents=True, exist_ok=True)
    if not (RUN / "ip_forward").exists():
        (RUN / "ip_forward").write_text(FORWARDING.read_text())  # podman's network switches it on
    settings = ["[network]", 'network_backend = "netavark"', "[engine]", 'events_logger = "file"']
    if needs_namespace:
        settings.append('cgroup_manager = "cgroupfs"')
    CONFIG.write_text("\n".join(settings) + "\n")
    if not needs_namespace or _mounted(NAMESPACE):
        return
    if not _mounted(RUN):  # a namespace file cannot lie on a shared mount
        subprocess.run(["mount", "--bind", str(RUN), str(RUN)], check=True)
        subprocess.run(["mount", "--make-private", str(RUN)], check=True)
    NAMESPACE.touch()
    script = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    subprocess.run(["unshare", f"--mount={NAMESPACE}", "--propagation", "private", "sh", "-c", script], check=True)


def dismantle() -> None:
    """Takes away what prepare() made, and what podman's network leaves on the machine."""
    for table, chains in {"filter": ["FORWARD"], "nat": ["PREROUTING", "OUTPUT", "POSTROUTING"]}.items():
        _remove_netavark_rules(table, chains)
    before = RUN / "ip_forward"
    if before.exists():
        FORWARDING.write_text(before.read_text())
        before.unlink()
    if _mounted(NAMESPACE):
        enter = ["nsenter", f"--mount={NAMESPACE}"]
        subprocess.run(
            [*enter, "find", "/sys/fs/cgroup/libpod_parent", "-depth", "-type", "d", "-delete"], capture_output=True, check=False
        )
    for mount in (NAMESPACE, RUN):
        if _mounted(mount):
            subprocess.run(["umount", str(mount)], check=True)
    NAMESPACE.unlink(missing_ok=True)
    if RUN.exists():
        RUN.rmdir()


def _remove_netavark_rules(table: str, parents: list[str]) -> None:
    """netavark leaves its empty chains behind."""
    listing = subprocess.run(["iptables", "-t", table, "-S"], capture_output=True, text=True, check=False).stdout.splitlines()
    rules = [shlex.split(line) for line in listing]
    ours = [words[1] for words in rules if words[0] == "-N" and words[1].startswith("NETAVARK")]
    for words in rules:
        if words[0] == "-A" and words[1] in parents and any(chain in words for chain in ours):
            subprocess.run(["iptables", "-t", table, "-D", *words[1:]], check=True)
    for chain in ours:
        subprocess.run(["iptables", "-t", table, "-F", chain], check=True)
    for chain in ours:
        subprocess.run(["iptables", "-t", table, "-X", chain], check=True)


def command(*arguments: str) -> list[str]:
    """The argv that runs podman where the hosts are."""
    enter = ["nsenter", f"--mount={NAMESPACE}"] if _mounted(NAMESPACE) else []
    return [*enter, "env", f"CONTAINERS_CONF={CONFIG}", "podman", *arguments]


def podman(*arguments: str, check: bool = True) -> str:
    """Runs podman and returns its output. Raises SystemExit with podman's own words where it fails."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"podman {arguments[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def requires_root() -> None:
    if os.geteuid() != 0:
        raise SystemExit("the simulated hosts need root: they boot systemd and make device nodes")

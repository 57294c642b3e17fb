"""The hosts' base images: a Debian suite with what an installed Debian server has, made from Debian's packages.

No image registry is needed. An image is kept in podman under a tag that carries the hash of its recipe, and made again when that changes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.hosts import engine, machine
from tests.support.hosts.paths import CACHE

# What a freshly installed server has. Everything else the roles install themselves, as they must on a real host.
PACKAGES = [
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "python3",
    "python3-apt",
    "ca-certificates",
    "iproute2",
    "nftables",
    "procps",
    "kmod",
    "netbase",
    "less",
]
# Package lists stay, as on an installed host. What must differ from host to host goes; an empty machine id is filled at boot.
HOOKS = [
    'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/hostname; : > "$1"/etc/machine-id',
]


def tag(suite: str) -> str:
    recipe = json.dumps([suite, PACKAGES, HOOKS])
    return f"localhost/gpu-fleet-host:{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def ensure(suites: list[str]) -> None:
    """Makes the images that are missing, side by side."""
    missing = [suite for suite in dict.fromkeys(suites) if "true" not in _exists(tag(suite))]
    if not missing:
        return
    print(
        f"Making base images ({', '.join(missing)}) with mmdebstrap from Debian's packages: the simulated hosts boot from them", flush=True
    )
    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        list(pool.map(_make, missing))
    print(f"Base images made in {time.monotonic() - began:.0f} s", flush=True)


def _exists(name: str) -> str:
    return engine.podman("images", "--noheading", "--format", "true", "--filter", f"reference={name}")


def _make(suite: str) -> None:
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        tar = Path(folder) / "root.tar"
        sources = Path(folder) / "apt.sources"
        sources.write_text(machine.apt_sources(suite))
        options = ["--mode=root", "--variant=minbase", "--skip=cleanup/apt/lists", f"--include={','.join(PACKAGES)}"]
        options += [f"--customize-hook={hook}" for hook in HOOKS]
        options += [f"--aptopt={line.rstrip(';')}" for line in machine.apt_conf().splitlines()]
        argv = ["mmdebstrap", *options, suite, str(tar), str(sources)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"mmdebstrap {suite} failed:\n{done.stderr[-3000:]}")
        engine.podman("import", str(tar), tag(suite))

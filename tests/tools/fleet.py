"""The stage `fleet` of `make test`: molecule on two real systemd hosts. Prints their journals when it fails, and always takes the hosts away.

`--keep` leaves the hosts up to look at (`molecule destroy -s default` removes them).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOLECULE = str(Path(sys.executable).with_name("molecule"))
HOSTS = [sys.executable, str(ROOT / "tests/support/hosts/hosts.py"), "--prefix=molecule", "--subnet=10.89.78.0/24"]
SEQUENCE = ("destroy", "create", "check", "converge", "idempotence", "verify")
UNITS = ("lease-pool", "gpu-watchdog", "litellm", "nginx", "gpu-miner@*", "gpu-worker@*", "gpu-cards", "gpu-idle")


def molecule(action: str, env: dict[str, str]) -> int:
    """Run one action of the scenario and print how long it took."""
    started = time.monotonic()
    status = subprocess.run([MOLECULE, action, "-s", "default"], cwd=ROOT, env=env, check=False).returncode
    print(
        f"--- molecule {action}: {'passed' if status == 0 else f'FAILED ({status})'} in {time.monotonic() - started:.0f} s ---", flush=True
    )
    return status


def print_journals() -> None:
    """Show what the services said, host by host."""
    for host in ("gpu-a", "gpu-b"):
        print(f"\n--- journal of {host} ---", flush=True)
        units = [f"--unit={unit}" for unit in UNITS]
        subprocess.run([*HOSTS, "exec", host, "--", "journalctl", "--no-pager", "--lines=200", *units], cwd=ROOT, check=False)
        subprocess.run([*HOSTS, "exec", host, "--", "systemctl", "--no-pager", "--failed"], cwd=ROOT, check=False)


def main() -> None:
    """Run the sequence; exit 1 at the first action that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long", action="store_true", help="add the tests marked long")
    parser.add_argument("--keep", action="store_true", help="leave the hosts up")
    args = parser.parse_args()
    env = dict(os.environ, FLEET_HOST_MARKS="hosts" if args.long else "hosts and not long", ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"))
    env["PATH"] = f"{Path(MOLECULE).parent}:{env['PATH']}"
    failed = next((action for action in SEQUENCE if molecule(action, env) != 0), None)
    if failed:
        print_journals()
    if not args.keep and molecule("destroy", env) != 0:
        failed = failed or "destroy"
    if failed:
        sys.exit(f"fleet: molecule {failed} failed")


if __name__ == "__main__":
    main()

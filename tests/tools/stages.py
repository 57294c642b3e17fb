"""Run the stages of `make test` one after the other; print each stage's time; fail with a stage's name and reason, never skip one.

`stages.py` runs all; `stages.py lint unit` runs those; `--long` adds what `make test-long` adds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.tools.twice import pytest_twice

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
TYPED = ["src/lease_pool/lease_pool", "src/gpu_watchdog/gpu_watchdog", "src/gateway_guard/gateway_guard"]
TYPED_MODULE_UTILS = "ansible_collections.agentic.gpu_fleet.plugins.module_utils"


def _pytest(*args: str) -> list[str]:
    return ["pytest", "--durations=5", *args]


def stages(long: bool) -> dict[str, list[list[str]]]:
    """Return the commands of every stage, in the order in which they run: cheap and telling first."""
    marks = [] if long else ["-m", "not long and not hosts"]
    return {
        "lint": [
            ["ruff", "check", "."],
            ["ruff", "format", "--check", "."],
            *[["mypy", package] for package in TYPED],
            ["mypy", "-p", TYPED_MODULE_UTILS],
            ["yamllint", "--strict", "."],
            ["ansible-lint", "--offline", "--strict", "-q"],
        ],
        "unit": [_pytest("tests/unit", *marks)],
        "pool": [_pytest("tests/integration", *marks)],
        "sanity": [[PYTHON, "tests/tools/sanity.py"]],
        "collection": [[PYTHON, "tests/tools/collection.py"]],
        "fleet": [[PYTHON, "tests/tools/fleet.py", *(["--long"] if long else [])]],
    }


def run(name: str, commands: list[list[str]]) -> float:
    """Run one stage and return its seconds; exits with the failing command's status."""
    print(f"\n=== {name} ===", flush=True)
    started = time.monotonic()
    env = dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), ANSIBLE_NOCOLOR="1", PY_COLORS="0", MYPYPATH="build/collections")
    env["PATH"] = f"{Path(PYTHON).parent}:{env['PATH']}"
    for command in commands:
        if shutil.which(command[0], path=env["PATH"]) is None:
            sys.exit(f"stage {name}: {command[0]} is not installed; run it through make")
        if command[0] == "pytest":
            # Processes race here for two cores: what fails gets a second chance. A test that is wrong fails twice.
            status = pytest_twice(name, command[1:], env)
        else:
            print("$", " ".join(command), flush=True)
            status = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
        if status:
            print(f"=== {name} FAILED after {time.monotonic() - started:.0f} s: {' '.join(command)} exited {status} ===", flush=True)
            sys.exit(1)
    seconds = time.monotonic() - started
    print(f"=== {name} passed in {seconds:.0f} s ===", flush=True)
    return seconds


def main() -> None:
    """Parse the command line, run the stages, print the table of times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="stages to run (default: all)")
    parser.add_argument("--long", action="store_true", help="add the long tests")
    args = parser.parse_args()
    known = stages(args.long)
    unknown = [name for name in args.names if name not in known]
    if unknown:
        sys.exit(f"unknown stage {', '.join(unknown)}; there are {', '.join(known)}")
    times = {name: run(name, known[name]) for name in (args.names or known)}
    print("\nstage        seconds")
    for name, seconds in times.items():
        print(f"{name:<12} {seconds:7.0f}")
    print(f"{'all':<12} {sum(times.values()):7.0f}")


if __name__ == "__main__":
    main()

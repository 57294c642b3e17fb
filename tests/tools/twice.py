"""Run pytest; what failed is run once more, which tells a race from a fault. Both outcomes are shown: a flaky test is named, never hidden."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[2]
FAILED = 1  # pytest's status for failed tests; all else that is not 0 is an error of the run itself


def pytest_twice(what: str, arguments: list[str], env: Mapping[str, str], out: TextIO = sys.stdout, junit: Path | None = None) -> int:
    """pytest's exit status, 0 also when the tests that failed passed the second time. `what` names the run in the lines between.

    `junit` is where the first run's results go: the second would only hide them.
    """
    command = [sys.executable, "-m", "pytest", "-q", *arguments]

    def run(*more: str) -> int:
        print("$", " ".join([*command, *more]), file=out, flush=True)
        return subprocess.run([*command, *more], cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, check=False).returncode

    status = run(*([f"--junitxml={junit}"] if junit else []))
    if status == FAILED:
        print(f"=== {what}: failed tests are tried once more ===", file=out, flush=True)
        status = run("--last-failed", "--last-failed-no-failures", "none")
        print(f"=== {what}: {'FLAKY, see the failures above' if status == 0 else 'failed twice'} ===", file=out, flush=True)
    return status

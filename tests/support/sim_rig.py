"""What the tests of the simulated cards and of the stand-in miner share."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UUIDS = [f"GPU-00000000-0000-4000-8000-00000000000{number}" for number in range(3)]
Nvml = Callable[[str], subprocess.CompletedProcess[str]]


def eventually(condition: Callable[[], object], seconds: float = 5) -> None:
    """For what is only seen by looking again and again: state files, another process's HTTP answers."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not so within its bound"
        time.sleep(0.02)

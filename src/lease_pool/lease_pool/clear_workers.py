"""`lease-pool clear-workers` (the pool's start-pre and stop-post, root): no worker outlives the pool that started it.

Withdraws every launch spec first, so that a start still queued ends without a worker, then stops the workers; PID 1 sends each card
home (`OnSuccess=`). Works on patterns, not on the configuration: a card taken out of it must not keep its worker.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lease_pool import launch

_WORKERS = "gpu-worker@*.service"


def main(config_path: str) -> int:
    runtime_dir = _runtime_dir(config_path)
    folder = launch.folder(runtime_dir)
    if folder.is_dir():
        for entry in folder.iterdir():
            # A key stays: PID 1 may be about to hand it to a start that will now end by itself.
            if entry.suffix != ".key":
                entry.unlink(missing_ok=True)
    # Workers are ordered to stop after the pool; stop-post runs inside the pool's own stop and would wait for itself.
    return subprocess.run(["systemctl", "stop", "--job-mode=ignore-dependencies", _WORKERS], check=False).returncode


def _runtime_dir(config_path: str) -> Path:
    from lease_pool.config import ConfigError, load  # noqa: PLC0415

    try:
        return load(config_path).runtime_dir
    except ConfigError as error:
        # A pool that cannot start must still not leave workers: the unit names the folder as well.
        print(error, file=sys.stderr)
        return Path(os.environ.get("GPU_FLEET_RUNTIME_DIR", "/run/gpu-fleet"))

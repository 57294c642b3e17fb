"""A second pool on a simulated host: the same cards and locks as the host's own, a supervisor of its own, no idle workload."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import yaml
from testinfra.host import Host

from tests.hosts.support.pool_host import PoolHost

MODEL = "second"
PORT = 9190
WORKER = Path(__file__).parents[2] / "support" / "workers" / "worker.py"
FOLDER = "/run/second-pool"
UNIT = "second-pool.service"  # the sampler knows it


@contextlib.contextmanager
def second_pool(pool: PoolHost, host: Host) -> Iterator[None]:
    """It answers inside the block, on PORT with the same token; it must have stopped by itself at the end."""
    config = {
        "listen": {"host": pool.address, "port": PORT},
        "admin_socket": f"{FOLDER}/pool.sock",
        "token_file": "/etc/gpu-fleet/pool.token",
        "state_dir": f"{FOLDER}/state",
        "runtime_dir": FOLDER,
        "locks_dir": "/run/gpu-fleet/cards",
        "supervisor": "process",
        "cards": [{"slot": slot, "uuid": uuid, "memory_mib": 12288} for slot, uuid in pool.uuid.items()],
        "idle_workload": {"driver": "none"},
        "models": {
            MODEL: {
                "backend": "command",
                "memory_mib": 1000,
                "argv": ["python3", "-I", "-S", f"{FOLDER}/worker.py", "--socket", "{socket}", "--key-file", "{api_key_file}"],
                "endpoints": ["chat"],
            }
        },
    }
    pool.sh(f"mkdir -p {FOLDER}")
    pool.sh(f"cat > {FOLDER}/pool.yml <<'END'\n{yaml.safe_dump(config)}\nEND")
    pool.sh(f"cat > {FOLDER}/worker.py <<'END'\n{WORKER.read_text()}\nEND")
    pool.sh(f"systemd-run --quiet --unit={UNIT} lease-pool serve --config {FOLDER}/pool.yml")
    try:
        pool.until("the second pool answers", lambda: host.run(f"lease-pool status --config {FOLDER}/pool.yml").rc == 0)
        yield
        pool.sh(f"systemctl stop {UNIT}")
    finally:
        host.run(f"systemctl kill --signal=KILL {UNIT}; systemctl reset-failed {UNIT}; rm -rf {FOLDER}")

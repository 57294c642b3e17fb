"""The roles' unit templates, rendered as Ansible renders them, and read as systemd reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

REPOSITORY = Path(__file__).parents[3]
BASE: dict[str, Any] = {
    "ansible_managed": "Ansible managed",
    "__lease_pool_command": "/opt/gpu-fleet/lease-pool/bin/lease-pool",
    "__lease_pool_config_file": "/etc/gpu-fleet/pool.yml",
    "__lease_pool_runtime_dir": "/run/gpu-fleet",
    "__lease_pool_locks_dir": "/run/gpu-fleet/cards",
    "__lease_pool_state_dir": "/var/lib/gpu-fleet",
    "__lease_pool_idle_driver": "per_card",
    "__lease_pool_idle_unit": "gpu-miner@{slot}.service",
    "__lease_pool_slots": ["c0", "c1"],
    "__lease_pool_deployed": "abc",
    "__lease_pool_free_s": 10,
    "__lease_pool_stop_s": 5,
    "__lease_pool_drain_s": 60,
    "lease_pool_log_level": "info",
    "lease_pool_worker_runtime_max_s": 21600,
    "lease_pool_worker_folders": [],
    "__gpu_miner_executable": "/opt/gpu-fleet/miner/current/miner",
    "gpu_miner_args": ["-u", "{wallet}.{worker}", "--api-port", "{api_port}"],
    "gpu_miner_env": {},
    "gpu_miner_wallet": "prl1p" + "0" * 40,
    "gpu_miner_pool_password": "x",
    "gpu_miner_worker": "gpu-a",
    "gpu_miner_api_port_base": 4068,
    "gpu_miner_driver": "per_card",
    "gpu_miner_memory_mib": 3072,
    "gpu_miner_wait_free_s": 30,
    "gpu_miner_restart_s": 5,
    "gpu_miner_stop_s": 5,
    "gpu_miner_folders": [],
    "gpu_miner_locks_dir": "/run/gpu-fleet/cards",
    "gpu_miner_state_dir": "/var/lib/gpu-fleet",
}


def render(role: str, template: str, **variables: Any) -> str:
    loader = jinja2.FileSystemLoader(REPOSITORY / "roles" / role / "templates")
    environment = jinja2.Environment(  # noqa: S701  unit files are not HTML
        loader=loader, trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template(f"{template}.j2").render({**BASE, **variables})


class Unit:
    """Settings of a unit file, in order; a key may be given more than once."""

    def __init__(self, text: str) -> None:
        self.settings: list[tuple[str, str, str]] = []
        section = ""
        for line in text.splitlines():
            if line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
            elif line.strip() and not line.startswith(("#", ";")):
                key, value = line.split("=", 1)
                self.settings.append((section, key, value))

    def all(self, key: str) -> list[str]:
        return [value for _, name, value in self.settings if name == key]

    def words(self, key: str) -> set[str]:
        return {word for value in self.all(key) for word in value.split()}

    def one(self, key: str) -> str:
        values = self.all(key)
        assert len(values) == 1, f"{key} is given {len(values)} times"
        return values[0]

    @property
    def keys(self) -> set[str]:
        return {key for _, key, _ in self.settings}


def unit(role: str, template: str, **variables: Any) -> Unit:
    return Unit(render(role, template, **variables))

"""Real simulated hosts for tests marked `hosts`: reached over SSH by testinfra, as Ansible reaches them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = Path(os.environ.get("GPU_FLEET_TEST_INVENTORY", ROOT / "inventories" / "demo"))
HOSTS = {"gpu-a": 4, "gpu-b": 2}  # cards, as tests/support/hosts/demo.yml declares them


@pytest.fixture(params=sorted(HOSTS), scope="session")
def host(request: pytest.FixtureRequest) -> Host:
    """One after the other, each simulated host."""
    os.chdir(ROOT)  # the inventory names the key by a path relative to the tree
    return testinfra.get_host(f"ansible://{request.param}?ansible_inventory={INVENTORY}&force_ansible=false")


@pytest.fixture(scope="session")
def slots(host: Host) -> list[str]:
    """The slots of this host's cards."""
    return [f"c{n}" for n in range(HOSTS[host.backend.host])]

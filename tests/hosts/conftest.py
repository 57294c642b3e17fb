"""Real simulated hosts for tests marked `hosts`: reached over SSH by testinfra, as Ansible reaches them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = Path(os.environ.get("GPU_FLEET_TEST_INVENTORY", ROOT / "inventories" / "demo"))
HOSTS = {"gpu-a": 4, "gpu-b": 2}  # cards, as tests/support/hosts/demo.yml declares them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--host", choices=sorted(HOSTS), action="append", help="only this simulated host (default: one after the other, all)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "host" in metafunc.fixturenames:
        metafunc.parametrize("host", metafunc.config.getoption("--host") or sorted(HOSTS), indirect=True, scope="session")


# One connection for all commands: a login of its own costs each of them ten times as much. A rebooting host must not leave a dead one behind.
SHARED_CONNECTION = """[ssh_connection]
ssh_args = -o ControlMaster=auto -o ControlPersist=30s -o ControlPath={folder}/%%h -o ServerAliveInterval=1 -o ServerAliveCountMax=3 -o LogLevel=ERROR
"""


@pytest.fixture(scope="session", autouse=True)
def one_connection() -> Iterator[None]:
    """testinfra takes its options for ssh from an ansible.cfg."""
    with tempfile.TemporaryDirectory(prefix="ssh") as folder, pytest.MonkeyPatch.context() as patch:
        config = Path(folder, "ansible.cfg")
        config.write_text(SHARED_CONNECTION.format(folder=folder), encoding="utf-8")
        patch.setenv("ANSIBLE_CONFIG", str(config))
        yield


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest, record_testsuite_property: Callable[[str, object], None]) -> Host:
    """One after the other, each simulated host."""
    os.chdir(ROOT)  # the inventory names the key by a path relative to the tree
    found = testinfra.get_host(f"ansible://{request.param}?ansible_inventory={INVENTORY}&force_ansible=false")
    record_testsuite_property("host", request.param)
    record_testsuite_property("cards", HOSTS[request.param])
    record_testsuite_property("systemd", found.check_output("systemctl --version").split()[1])
    return found


@pytest.fixture(scope="session")
def slots(host: Host) -> list[str]:
    """The slots of this host's cards."""
    return [f"c{n}" for n in range(HOSTS[host.backend.host])]

"""A large fleet expands and renders within its bounds, and time grows with the number of hosts, not faster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# A process of its own: its peak memory and its CPU time are the measurement's alone.
SCRIPT = """
import json, resource, sys, time
import tests.conftest
from tests.support.fleets import everywhere, fleet
from ansible_collections.agentic.gpu_fleet.plugins.module_utils import _catalog_aperture as aperture, _catalog_expand as catalogs
from ansible_collections.agentic.gpu_fleet.plugins.module_utils import _catalog_grants as grants, _catalog_litellm as litellm
from ansible_collections.agentic.gpu_fleet.plugins.module_utils import _catalog_md as md, _catalog_pool as pools

def measure(hosts):
    inventory = fleet(hosts, cards=8)
    extra = {f"t4-job{n}": {"tier": "T4", "model": "gemma-1b", "chains": {"public": ["t3-smart"]}} for n in range(13)}
    aliases = {**inventory["gpu-01"]["fleet_aliases"], **extra}
    for variables in inventory.values():
        variables["fleet_aliases"] = json.loads(json.dumps(aliases))
    assert len(aliases) == 20
    started = time.process_time()
    catalog = catalogs.expand(inventory)
    size = len(litellm.litellm_config(catalog)) + len(aperture.aperture_config(catalog)) + len(md.catalog_md(catalog))
    size += len(json.dumps(grants.gateway_grants(catalog)))
    size += sum(len(json.dumps(pools.pool_config(catalog, host))) for host in catalog["hosts"])
    seconds = time.process_time() - started
    size += sum(len(pools.watchdog_peers(catalog, host)) for host in catalog["hosts"])
    return seconds, time.process_time() - started, size

figures = {hosts: measure(hosts) for hosts in map(int, sys.argv[1:])}
print(json.dumps({"figures": figures, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def test_500_hosts_with_8_cards_and_20_aliases_take_5_seconds_and_500_mib_and_growth_is_linear(capsys: pytest.CaptureFixture[str]) -> None:
    measured = subprocess.run(
        [sys.executable, "-c", SCRIPT, "100", "200", "400", "500"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
    )
    answer = json.loads(measured.stdout)
    linear = {int(hosts): figures[0] for hosts, figures in answer["figures"].items()}
    everything = {
        int(hosts): figures[1] for hosts, figures in answer["figures"].items()
    }  # each host's watchdog is told all others: quadratic
    with capsys.disabled():
        print(
            "\ncatalog: hosts × 8 cards × 20 aliases, expand and render all: "
            + ", ".join(f"{hosts} hosts {taken:.2f} s" for hosts, taken in linear.items())
            + f"; with every watchdog's peers {everything[500]:.2f} s"
            + f"; peak {answer['peak_mib']:.0f} MiB"
        )
    assert everything[500] <= 5
    assert answer["peak_mib"] <= 500
    assert linear[400] <= 4 * linear[100] * 1.6

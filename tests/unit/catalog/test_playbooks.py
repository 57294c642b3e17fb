"""The playbooks and the role round the catalog, run as an operator runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.fleets import TOKEN, WALLET, everywhere, fleet, fleet_variables, uuid

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
VAULT = {
    "vault_fleet_pool_token": TOKEN,
    "vault_gpu_miner_wallet": WALLET,
    **{f"vault_{name}": f"made up: {name}" for name in ("litellm_master_key", "anthropic_key", "eu_key")},
    **{f"vault_key_{name}": f"key of {name}" for name in ("anna", "developers", "hermes", "aperture")},
}
# What the rollout needs beside the catalog, as an operator fills it in.
FILLED_IN = {
    "fleet_litellm_master_key": "made up: master key",
    "fleet_models_files": [],
    "gpu_miner_url": "https://miner.example/release.tar.gz",
    "gpu_miner_sha256": "0" * 64,
    "gpu_miner_version": "1.0",
    "gpu_miner_command": "miner",
    "gpu_miner_args": [],
}


def play(playbook: Path, inventory: Path, *arguments: str, path: str = "", **extra: Any) -> subprocess.CompletedProcess[str]:
    """Run a playbook; the result's output is what an operator sees."""
    env = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "PATH": path + os.environ["PATH"],
        "COLUMNS": "1000",
    }
    variables = ["-e", json.dumps(extra)] if extra else []
    command = [PLAYBOOK, "-i", str(inventory), str(playbook), *arguments, *variables]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=100)


def answers(result: subprocess.CompletedProcess[str]) -> str:
    """Output on one line, so that the terminal's line breaks do not matter."""
    return " ".join(result.stdout.split())


def written(folder: Path, inventory: dict[str, Any]) -> Path:
    """An inventory file of hosts that are this machine."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    hosts = {name: {**variables, **local} for name, variables in inventory.items()}
    file = folder / "hosts.yml"
    file.write_text(yaml.safe_dump({"gpu_hosts": {"hosts": hosts}}), encoding="utf-8")
    return file


def test_validate_prints_all_faults_and_touches_nothing(tmp_path: Path) -> None:
    inventory = everywhere(fleet(2), "gpu_miner_wallet", value="{{ vault_wallet }}")
    inventory = everywhere(inventory, "fleet_aliases", "t3-code", "model", value="granit")
    inventory["gpu-02"]["fleet_cards"][1]["uuid"] = None
    result = play(ROOT / "playbooks" / "validate.yml", written(tmp_path, inventory))
    assert result.returncode != 0
    for fault in (
        "gpu-01: gpu_miner_wallet: cannot be templated: ''vault_wallet'' is undefined",
        'fleet_aliases.t3-code.model: "granit": must name one of fleet_models (embed, gemma-1b, gemma-vision, granite-8b)',
        "gpu-02: fleet_cards[1].uuid: (missing): must be the card''s NVML UUID",
    ):
        assert fault in answers(result)
    assert TOKEN not in result.stdout + result.stderr


def test_the_demo_inventory_has_no_fault(tmp_path: Path) -> None:
    folder = tmp_path / "inventories" / "demo"  # the demo makes its secrets up beside the inventory
    shutil.copytree(ROOT / "inventories" / "demo", folder)
    result = play(ROOT / "playbooks" / "validate.yml", folder)
    assert result.returncode == 0, result.stdout


def test_the_example_inventory_asks_for_what_only_its_operator_knows_and_for_nothing_else() -> None:
    folder = ROOT / "inventories" / "example"
    asked = play(ROOT / "playbooks" / "validate.yml", folder, **VAULT)
    assert asked.returncode != 0
    for hint in ("SHA-256 of granite-4.2-8b-Q4_K_M.gguf", "URL of the miner release", "SHA-256 of the miner release"):
        assert hint in answers(asked)
    result = play(ROOT / "playbooks" / "validate.yml", folder, **VAULT, **FILLED_IN)
    assert result.returncode == 0, result.stdout


def test_explain_shows_chain_hosts_and_cards_or_the_layer_that_refuses(tmp_path: Path) -> None:
    inventory = written(tmp_path, fleet(2))
    allowed = play(
        ROOT / "playbooks" / "explain.yml", inventory, "-e", "identity=hermes", "-e", "alias=t3-smart", "-e", "class=internal", **FILLED_IN
    )
    assert "chain: model:granite-8b → hosted:beta/org/large" in answers(allowed), allowed.stdout
    assert f"model:granite-8b (8132 MiB) on gpu-02: c0 {uuid(2, 0)} (12288 MiB)" in answers(allowed)
    refused = play(ROOT / "playbooks" / "explain.yml", inventory, "-e", "identity=hermes", "-e", "alias=gpu-01/t3-smart", **FILLED_IN)
    assert "refused by: grants" in answers(refused)


def test_discover_writes_host_variables_once_and_never_over_an_operators_file(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho '{uuid(7, 0)}, 12288, NVIDIA GeForce RTX 3060, 00000000:01:00.0, 8.6, [N/A]'\n")
    fake.chmod(0o755)
    inventory = written(tmp_path, {"gpu-new": {**fleet_variables(), "ansible_host": "100.64.7.7"}})
    target = tmp_path / "host_vars" / "gpu-new.yml"
    target.parent.mkdir()
    first = play(ROOT / "playbooks" / "discover.yml", inventory, path=f"{fake.parent}:")
    assert first.returncode == 0, first.stdout
    found = yaml.safe_load(target.read_text(encoding="utf-8"))
    assert found["fleet_address"] == "100.64.7.7"
    assert found["fleet_cards"] == [{"slot": "c0", "uuid": uuid(7, 0), "memory_mib": 12288, "labels": ["ampere"]}]
    target.write_text("fleet_address: 100.64.7.8\n", encoding="utf-8")
    second = play(ROOT / "playbooks" / "discover.yml", inventory, path=f"{fake.parent}:")
    assert second.returncode == 0, second.stdout
    assert target.read_text(encoding="utf-8") == "fleet_address: 100.64.7.8\n"
    assert "Not written, there is already" in answers(second)


SERVICES = """
- import_playbook: {validate}
- hosts: gpu_hosts
  gather_facts: false
  vars_files: [{services}]
  tasks:
    - ansible.builtin.copy:
        content: "{{{{ {{'miner': gpu_miner_driver, 'pool': lease_pool_config.idle_workload, 'watchdog': [gpu_watchdog_idle_unit, gpu_watchdog_idle_alive]}} | to_json }}}}"
        dest: "{folder}/{{{{ inventory_hostname }}}}.json"
        mode: "0600"
"""


def test_one_variable_decides_the_idle_workload_of_miner_pool_and_watchdog(tmp_path: Path) -> None:
    inventory = fleet(3)
    inventory["gpu-02"]["fleet_pool"] = {"idle_workload": {"driver": "shared"}}
    inventory["gpu-03"]["fleet_pool"] = {"idle_workload": {"driver": "none"}}
    playbook = tmp_path / "services.yml"
    files = {"validate": ROOT / "playbooks" / "validate.yml", "services": ROOT / "playbooks" / "vars" / "services.yml", "folder": tmp_path}
    playbook.write_text(SERVICES.format(**files), encoding="utf-8")
    result = play(playbook, written(tmp_path, inventory), **FILLED_IN)
    assert result.returncode == 0, result.stdout
    alive = ["/opt/gpu-fleet/miner/alive", "{slot}"]
    expected = {
        "gpu-01": ("per_card", {"driver": "per_card", "alive": alive}, ["gpu-miner@{slot}.service", alive]),
        "gpu-02": ("shared", {"driver": "shared", "alive": alive}, ["gpu-miner.service", alive]),
        "gpu-03": ("none", {"driver": "none"}, ["", []]),
    }
    for host, (miner, pool, watchdog) in expected.items():
        assert json.loads((tmp_path / f"{host}.json").read_text()) == {"miner": miner, "pool": pool, "watchdog": watchdog}


APERTURE = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.import_role:
        name: agentic.gpu_fleet.aperture
      vars:
        aperture_document: >-
          {{ hostvars | agentic.gpu_fleet.fleet_input(groups['gpu_hosts']) | agentic.gpu_fleet.fleet_catalog | agentic.gpu_fleet.aperture_config | replace(broken, '/v1"') }}
        aperture_dest: "{{ folder }}/made/aperture.json"
"""


def test_the_role_aperture_writes_the_document_once_and_refuses_a_broken_one(tmp_path: Path) -> None:
    playbook = tmp_path / "aperture.yml"
    playbook.write_text(APERTURE, encoding="utf-8")
    inventory, target = written(tmp_path, fleet(2)), tmp_path / "made" / "aperture.json"
    refused = play(playbook, inventory, folder=str(tmp_path), broken=':4000"')
    assert "providers.gpu-01.baseurl: http://100.64.0.2/v1: must be http://HOST:PORT without a path" in answers(refused)
    assert not target.exists()
    checked = play(playbook, inventory, "--check", "--diff", folder=str(tmp_path), broken="nothing")
    assert checked.returncode == 0, checked.stdout
    assert not target.exists()
    made = play(playbook, inventory, folder=str(tmp_path), broken="nothing")
    assert made.returncode == 0, made.stdout
    assert set(json.loads(target.read_text(encoding="utf-8"))["providers"]) == {"gpu-01", "gpu-02"}
    assert target.stat().st_mode & 0o777 == 0o640
    assert "changed=0" in play(playbook, inventory, folder=str(tmp_path), broken="nothing").stdout

"""What a rollout needs beyond the catalog is missed before a host is touched, all of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._rollout import rollout_faults

WHOLE: dict[str, Any] = {
    "fleet_litellm_master_key": "sk-secret-of-the-test",
    "fleet_models_files": [],
    "gpu_miner_url": "https://example.com/miner.tar.gz",
    "gpu_miner_sha256": "0" * 64,
    "gpu_miner_version": "1.0",
    "gpu_miner_command": "miner",
    "gpu_miner_args": ["-u", "{wallet}.{worker}"],
}


class _Undefined(Mapping[str, Any]):
    """Host variables of which some cannot be templated, as Ansible's hostvars raise it."""

    def __init__(self, values: dict[str, Any], broken: str) -> None:
        self.values_, self.broken = values, broken

    def __getitem__(self, name: str) -> Any:
        if name == self.broken:
            raise ValueError("'vault_key' is undefined\nand more lines")
        return self.values_[name]

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        return iter([*self.values_, self.broken])

    def __len__(self) -> int:
        return len(self.values_) + 1


def test_a_whole_host_has_no_fault() -> None:
    assert rollout_faults({"a": WHOLE}, ["a"]) == []


def test_everything_that_is_missing_is_said_at_once_and_once() -> None:
    lines = rollout_faults({"a": {}, "b": {}}, ["a", "b"])
    assert len(lines) == 7
    assert all(line.startswith("every host: ") for line in lines)
    assert "every host: gpu_miner_sha256: (missing): must be the SHA-256 of that release" in lines


def test_a_host_that_does_not_mine_needs_no_miner() -> None:
    lines = rollout_faults({"a": {"fleet_pool": {"idle_workload": {"driver": "none"}}}}, ["a"])
    assert [line.split(": ")[1] for line in lines] == ["fleet_litellm_master_key", "fleet_models_files"]


def test_a_vault_variable_that_is_undefined_is_named_and_no_value_is_shown() -> None:
    lines = rollout_faults({"a": WHOLE, "b": _Undefined(WHOLE, "fleet_provider_keys")}, ["a", "b"])
    assert lines == ["b: fleet_provider_keys: cannot be templated: 'vault_key' is undefined"]
    assert "secret" not in "".join(rollout_faults({"a": {**WHOLE, "gpu_miner_url": ""}}, ["a"]))

"""What a host's pool is told is what the pool accepts, and every filter's output that reaches the pool passes its own schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import expand
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_memory import CACHE_SIZE
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_model import BACKENDS, ENDPOINTS
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_models import POOL_OPTIONS
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_pool import pool_config, watchdog_peers
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_pool_settings import BOUNDS
from lease_pool.backends import BACKENDS as POOL_BACKENDS

from lease_pool import config as pool
from tests.support.fleets import everywhere, fleet, put

ROOT = Path(__file__).resolve().parents[3]


def accepted(inventory: Any, host: str) -> pool.PoolConfig:
    """The pool's own reading of what is rendered for it."""
    return pool.parse(yaml.safe_dump(pool_config(expand(inventory), host)), "pool.yml")


def test_the_pool_accepts_what_is_rendered_for_every_host() -> None:
    for host in fleet(3):
        config = accepted(fleet(3), host)
        assert [card.slot for card in config.cards] == ["c0", "c1"]
        assert set(config.models) == {"embed", "gemma-1b", "gemma-vision", "granite-8b"}


def test_the_pool_answers_to_every_alias_of_a_model() -> None:
    config = accepted(fleet(1), "gpu-01")
    assert config.models["granite-8b"].aliases == ["t3-code", "t3-smart"]
    assert config.models["gemma-1b"].aliases == ["t4-router"]


def test_a_model_that_no_card_of_the_host_holds_is_left_out() -> None:
    inventory = fleet(2)
    for card in inventory["gpu-02"]["fleet_cards"]:
        card["memory_mib"] = 4096
    assert set(accepted(inventory, "gpu-02").models) == {"embed", "gemma-1b"}


def test_labels_of_host_and_backend_restrict_a_model_to_cards() -> None:
    inventory = everywhere(fleet(2), "fleet_backend_labels", value={"llama_cpp": ["cuda12"]})
    put(inventory["gpu-01"], "fleet_labels", value=["cuda12"])
    put(inventory["gpu-02"], "fleet_cards", 1, "labels", value=["cuda12", "ampere"])
    catalog = expand(inventory)
    assert catalog["placement"]["gemma-vision"] == {"gpu-01": ["c0", "c1"], "gpu-02": ["c1"]}
    config = accepted(inventory, "gpu-01")
    assert config.models["gemma-vision"].labels == ["ampere", "cuda12"]
    assert config.cards[0].labels == ["ampere", "cuda12"]


def test_pool_settings_of_the_operator_reach_the_pool() -> None:
    inventory = fleet(1)
    settings = {"window_s": 30, "bounds": {"queue": 8}, "idle_workload": {"driver": "none"}, "card_source": "declared"}
    put(inventory["gpu-01"], "fleet_pool", value=settings)
    config = accepted(inventory, "gpu-01")
    assert (config.window_s, config.bounds.queue, config.idle_workload.driver) == (30, 8, "none")


def test_every_backend_is_accepted_by_the_pool() -> None:
    models: dict[str, dict[str, Any]] = {
        f"of-{backend.replace('_', '-')}": {
            "kind": "chat",
            "backend": backend,
            "context": 4096,
            "memory_mib": 1000,
            "file": "/models/x.gguf",
            "argv": ["/opt/x/server", "--listen", "{host}:{port}"] if backend == "command" else [],
        }
        for backend in BACKENDS
    }
    inventory = fleet(1)
    for name, model in models.items():
        inventory = everywhere(inventory, "fleet_models", name, value=model)
    assert set(models) <= set(accepted(inventory, "gpu-01").models)


def test_the_catalog_knows_exactly_the_pools_words() -> None:
    assert set(BACKENDS) == set(get_args(pool.BackendName))
    assert set(ENDPOINTS) == set(get_args(pool.EndpointName))
    assert set(CACHE_SIZE) == set(get_args(pool.CacheType))
    assert set(BOUNDS) == set(pool.BoundsConfig.model_fields)
    assert {name: set(backend.forbidden) for name, backend in POOL_BACKENDS.items() if backend.forbidden} == {
        name: set(options) for name, options in POOL_OPTIONS.items()
    }


@pytest.mark.parametrize(
    ("cache_type", "context", "parallel", "expected"),
    [
        ("f16", 65536, 1, 4900 + 5120 + 512),  # 81,920 B × 65,536 = 5 GiB
        ("f16", 65536, 2, 4900 + 10240 + 512),
        ("q8_0", 65536, 1, 4900 + 2720 + 512),  # 34 bytes for 32 values instead of 64
        ("q4_0", 65536, 1, 4900 + 1440 + 512),
        ("f32", 1, 1, 4900 + 1 + 512),  # rounded up
    ],
)
def test_memory_is_weights_and_cache_at_context_times_parallel_and_overhead(
    cache_type: str, context: int, parallel: int, expected: int
) -> None:
    inventory = everywhere(fleet(1), "fleet_aliases", "t3-smart", "agent", value=False)
    inventory = everywhere(inventory, "fleet_hermes", value=None)
    inventory = everywhere(inventory, "fleet_aliases", "t4-router", "smaller_context", value=True)
    put(inventory["gpu-01"], "fleet_cards", 0, "memory_mib", value=24576)
    for key, value in (("cache_type", cache_type), ("context", context), ("parallel", parallel)):
        inventory = everywhere(inventory, "fleet_models", "granite-8b", key, value=value)
    assert expand(inventory)["models"]["granite-8b"]["memory_mib"] == expected


def test_a_model_fits_a_card_of_exactly_its_size_and_no_smaller_one() -> None:
    inventory = fleet(2)
    put(inventory["gpu-01"], "fleet_cards", 0, "memory_mib", value=9000)
    put(inventory["gpu-01"], "fleet_cards", 1, "memory_mib", value=8999)
    assert expand(inventory)["placement"]["gemma-vision"]["gpu-01"] == ["c0"]


def test_the_watchdogs_peers_are_all_other_hosts() -> None:
    assert watchdog_peers(expand(fleet(3)), "gpu-02") == [
        {"name": "gpu-01", "url": "http://100.64.0.2:9100"},
        {"name": "gpu-03", "url": "http://100.64.0.4:9100"},
    ]

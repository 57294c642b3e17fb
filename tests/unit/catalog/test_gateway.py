"""The gateways' configuration and grants: the same bytes everywhere, nothing mandatory missing, and no way out for restricted requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import expand
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_grants import gateway_grants
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_litellm import litellm_config
from gateway_guard.grants import parse

from tests.support.fleets import TOKEN, WALLET, everywhere, fleet, key_sha256, put
from tests.support.router_graph import RouterGraph


def rendered(inventory: Any, local_only: bool = False) -> dict[str, Any]:
    parsed = yaml.safe_load(litellm_config(expand(inventory), local_only))
    assert isinstance(parsed, dict)
    return parsed


def groups(config: dict[str, Any]) -> dict[str, list[str | None]]:
    """group -> hosts of its deployments (None = hosted)."""
    found: dict[str, list[str | None]] = {}
    for deployment in config["model_list"]:
        found.setdefault(deployment["model_name"], []).append(deployment["model_info"]["host"])
    return found


def restricted_entries(grants: dict[str, Any]) -> set[str]:
    """Every name that a restricted request of any identity may reach the router with."""
    names = {name for key in grants["keys"].values() for name in key["models"]["local"]}
    for route in grants["routes"]["restricted"].values():
        names |= {route["group"], *route["fallbacks"]}
    return names


def test_a_shared_alias_spans_every_host_with_a_fitting_card_and_a_node_alias_pins_one() -> None:
    inventory = fleet(3)
    for card in inventory["gpu-02"]["fleet_cards"]:
        card["memory_mib"] = 8000  # granite needs 8132
    found = groups(rendered(inventory))
    assert found["t3-code"] == ["gpu-01", "gpu-03"]
    assert found["t4-router"] == ["gpu-01", "gpu-02", "gpu-03"]
    assert found["gpu-01/t3-code"] == ["gpu-01"]
    assert "gpu-02/t3-code" not in found
    assert found["gpu-02/t4-router"] == ["gpu-02"]


def test_the_plain_name_is_the_strictest_chain_and_other_classes_have_groups_of_their_own() -> None:
    config = rendered(fleet(1))
    fallbacks = {name: targets for entry in config["router_settings"]["fallbacks"] for name, targets in entry.items()}
    assert groups(config)["t3-smart"] == ["gpu-01"]
    assert "t3-smart" not in fallbacks
    assert fallbacks["t3-smart@public"] == ["hosted:alpha/large", "hosted:beta/org/large"]
    assert fallbacks["t3-smart@internal"] == ["hosted:beta/org/large"]
    assert fallbacks["t4-router"] == ["model:granite-8b"]
    assert groups(config)["t2-code"] == ["gpu-01"]  # restricted: local; public: hosted
    assert groups(config)["t2-code@public"] == [None]
    assert not set(fallbacks) & {target for targets in fallbacks.values() for target in targets}, (
        "links end chains: no fallback has its own"
    )


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("general_settings", "custom_auth", "gateway_guard.auth.user_api_key_auth"),
        ("general_settings", "custom_auth_run_common_checks", True),
        ("litellm_settings", "enable_post_custom_auth_checks", True),
        ("litellm_settings", "callbacks", ["gateway_guard.guard.guard"]),
        ("general_settings", "enforce_fallback_model_access", True),
        ("general_settings", "cancel_on_disconnect", True),
        ("general_settings", "background_health_checks", False),
        ("general_settings", "health_check_skip_disabled_background_models", True),
        ("general_settings", "master_key", "os.environ/LITELLM_MASTER_KEY"),
        ("litellm_settings", "sse_keepalive_ping_interval_seconds", 15),
        ("litellm_settings", "turn_off_message_logging", True),
        ("litellm_settings", "telemetry", False),
        ("router_settings", "routing_strategy", "simple-shuffle"),
        ("router_settings", "num_retries", 1),
        ("router_settings", "allowed_fails", 0),
        ("router_settings", "enable_weighted_failover", True),
    ],
)
def test_a_setting_that_the_facts_call_mandatory_is_there(section: str, key: str, value: object) -> None:
    assert rendered(fleet(1))[section][key] == value


def test_nothing_runs_twice_after_a_timeout_and_no_health_check_calls_a_model() -> None:
    config = rendered(fleet(2))
    assert config["router_settings"]["retry_policy"]["TimeoutErrorRetries"] == 0
    assert all(deployment["model_info"]["disable_background_health_check"] is True for deployment in config["model_list"])


def test_deployments_name_their_zone_and_host_and_have_ids_that_are_no_group() -> None:
    config = rendered(fleet(2))
    ids = [deployment["model_info"]["id"] for deployment in config["model_list"]]
    assert len(ids) == len(set(ids))
    assert not set(ids) & set(groups(config))
    for deployment in config["model_list"]:
        info, params = deployment["model_info"], deployment["litellm_params"]
        assert info["zone"] == ("local" if info["host"] else "hosted")
        assert (params["api_key"] == "os.environ/FLEET_POOL_TOKEN") == (info["zone"] == "local")


def test_embeddings_accept_dimensions_and_long_work_outlasts_the_pools_own_bound() -> None:
    inventory = fleet(2)
    put(inventory["gpu-02"], "fleet_pool", value={"bounds": {"request_s": 3600}})
    config = rendered(inventory)
    for deployment in config["model_list"]:
        embeds = deployment["model_info"]["mode"] == "embedding"
        assert deployment["litellm_params"].get("allowed_openai_params") == (["dimensions"] if embeds else None)
        if deployment["model_info"]["zone"] == "local":
            assert deployment["litellm_params"]["timeout"] == 3630


def test_a_pools_rerank_and_images_are_asked_by_a_provider_that_litellm_has_them_for() -> None:
    inventory = fleet(1)
    for kind, alias in (("rerank", "t4-rerank"), ("image", "t3-image")):
        settings = {"kind": kind, "file": f"/var/lib/gpu-fleet/models/{kind}.gguf", "context": 4096, "memory_mib": 2000}
        put(inventory["gpu-01"], "fleet_models", kind, value=settings)
        put(inventory["gpu-01"], "fleet_aliases", alias, value={"tier": alias[:2].upper(), "model": kind})
    entries = {entry["model_name"]: entry["litellm_params"]["model"] for entry in rendered(inventory)["model_list"]}
    assert (entries["t4-rerank"], entries["t3-image"]) == ("hosted_vllm/t4-rerank", "hosted_vllm/t3-image")
    assert entries["t3-code"] == "openai/t3-code"


def test_an_ipv6_host_is_bracketed() -> None:
    inventory = fleet(1)
    put(inventory["gpu-01"], "fleet_address", value="fd7a:115c:a1e0::11")
    assert rendered(inventory)["model_list"][-1]["litellm_params"]["api_base"] == "http://[fd7a:115c:a1e0::11]:9100/v1"


def test_no_secret_is_in_configuration_or_grants() -> None:
    catalog = expand(fleet())
    text = litellm_config(catalog) + json.dumps(gateway_grants(catalog)) + json.dumps(catalog)
    assert TOKEN not in text
    assert WALLET not in text


def test_a_host_that_joins_or_leaves_changes_all_gateways_to_the_same_new_bytes() -> None:
    before, after = litellm_config(expand(fleet(3))), litellm_config(expand(fleet(4)))
    assert before != after
    assert after.count("gpu-04/") > 0
    assert litellm_config(expand(fleet(3))) == before


def test_a_local_only_gateway_has_no_hosted_entry_and_no_route_to_one() -> None:
    catalog = expand(fleet())
    text = litellm_config(catalog, local_only=True)
    graph = RouterGraph(text)
    assert [graph.leaks(name) for name in graph.by_name if graph.leaks(name)] == []
    assert "beta.example" not in text
    assert "FLEET_ALPHA_KEY" not in text
    grants = gateway_grants(catalog, local_only=True)
    assert not any(route["hosted"] for routes in grants["routes"].values() for route in routes.values())
    assert "t1-smart" not in json.dumps(grants)
    assert grants["routes"]["public"]["t3-smart"] == {"group": "t3-smart", "fallbacks": [], "hosted": False}


def test_no_restricted_request_leaves_the_fleet_whatever_path_the_router_takes() -> None:
    catalog = expand(fleet())
    graph, grants = RouterGraph(litellm_config(catalog)), gateway_grants(catalog)
    entries = restricted_entries(grants)
    assert {"t3-smart", "t2-code", "gpu-01/t3-code"} <= entries
    assert [leak for name in entries for leak in graph.leaks(name)] == []


@pytest.mark.parametrize(
    ("section", "key", "planted"),
    [
        ("router_settings", "fallbacks", [{"t3-smart": ["hosted:alpha/large"]}]),
        ("router_settings", "fallbacks", [{"t4-router": ["model:granite-8b"]}, {"model:granite-8b": ["t1-smart"]}]),
        ("router_settings", "context_window_fallbacks", [{"t3-code": ["t3-smart@public"]}]),
        ("router_settings", "content_policy_fallbacks", [{"gpu-01/t3-code": ["t1-smart"]}]),
        ("router_settings", "default_fallbacks", ["t1-smart"]),
        ("litellm_settings", "fallbacks", [{"*": ["hosted:beta/org/large"]}]),
        ("router_settings", "model_group_alias", {"t3-vision": "t1-smart"}),
        ("router_settings", "fallbacks", [{"t3-code": ["dep:t1-smart:hosted"]}]),
    ],
)
def test_the_walk_finds_a_planted_path_to_a_hosted_model(section: str, key: str, planted: object) -> None:
    catalog = expand(fleet())
    config = yaml.safe_load(litellm_config(catalog))
    config[section][key] = planted
    graph = RouterGraph(yaml.safe_dump(config))
    assert [leak for name in restricted_entries(gateway_grants(catalog)) for leak in graph.leaks(name)]


def test_the_walk_follows_comma_lists() -> None:
    graph = RouterGraph(litellm_config(expand(fleet())))
    assert graph.leaks("t3-code,t1-smart")
    assert not graph.leaks("t3-code,t3-smart")


def test_only_operators_have_node_aliases_and_routes_say_what_is_hosted() -> None:
    grants = gateway_grants(expand(fleet(2)))
    nodes = {key["name"]: [name for name in key["models"]["local"] if "/" in name] for key in grants["keys"].values()}
    assert nodes["dev"] == nodes["hermes"] == []
    assert len(nodes["olga"]) == 2 * 5
    assert grants["keys"][key_sha256("dev")]["models"]["hosted"] == ["t1-smart"]
    assert "t1-smart" not in grants["routes"]["restricted"]
    assert grants["routes"]["public"]["t3-smart"]["hosted"] is True
    assert grants["pools"] == {"gpu-01": "http://100.64.0.2:9100", "gpu-02": "http://100.64.0.3:9100"}


def test_an_alias_granted_to_a_tier_later_is_granted_without_touching_identities() -> None:
    inventory = everywhere(fleet(1), "fleet_aliases", "t4-extract", value={"tier": "T4", "model": "gemma-1b"})
    assert "t4-extract" in gateway_grants(expand(inventory))["keys"][key_sha256("hermes")]["models"]["local"]


def test_the_guard_reads_the_grants_as_they_are_rendered() -> None:
    grants = parse(gateway_grants(expand(fleet(2))))
    assert grants.routes["public"]["t3-smart"].group == "t3-smart@public"

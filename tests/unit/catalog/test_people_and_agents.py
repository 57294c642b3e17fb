"""What people, Hermes and Aperture get of the catalog; and that public renderings tell nobody's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_aperture import (
    CAPABILITY,
    PLACEHOLDER,
    aperture_config,
    aperture_faults,
    glob_matches,
)
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import expand
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_explain import explain
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_hermes import hermes_input
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_md import catalog_md

from tests.support.fleets import TOKEN, everywhere, fleet, key_sha256, put, uuid

CATALOG = expand(fleet())
NAMES = ["gpu-01", "gpu-02", "gpu-03", "100.64.0", "GPU-0000", "olga", "hermes", "tag:", "group:", "example.com", key_sha256("olga"), TOKEN]


def aperture(inventory: Any) -> dict[str, Any]:
    document = json.loads(aperture_config(expand(inventory)))
    assert isinstance(document, dict)
    return document


def models_of(document: dict[str, Any], source: str) -> set[str]:
    """Which `provider/model` of the document this source may use."""
    globs = [
        entry["models"] for grant in document["grants"] if source in grant["src"] for entry in grant["app"][CAPABILITY] if "models" in entry
    ]
    names = [f"{provider}/{model}" for provider, settings in document["providers"].items() for model in settings["models"]]
    return {name for name in names if any(glob_matches(glob, name) for glob in globs)}


def test_aperture_gets_gateways_by_address_without_v1_literal_models_and_named_flags() -> None:
    provider = aperture(fleet())["providers"]["gpu-02"]
    assert provider["baseurl"] == "http://100.64.0.3:4000"
    assert provider["models"][:4] == ["t1-smart", "t2-code", "t3-code", "t3-smart"]
    assert provider["compatibility"] == {"openai_chat": True, "openai_responses": False, "anthropic_messages": False}
    assert provider["apikey"] == PLACEHOLDER
    assert "gpu-02/t3-code" in provider["models"]
    assert "gpu-01/t3-code" not in provider["models"]
    assert "t4-embedding" not in provider["models"], "embeddings do not pass through Aperture"


def test_aperture_grants_deny_by_default_and_node_aliases_go_to_operators_only() -> None:
    document = aperture(fleet(2))
    assert models_of(document, "olga@example.com") >= {"gpu-01/gpu-01/t3-code", "gpu-02/gpu-02/t4-router", "gpu-01/t1-smart"}
    assert models_of(document, "group:dev") == {
        f"gpu-0{n}/{alias}" for n in (1, 2) for alias in ("t1-smart", "t3-code", "t3-smart", "t3-vision", "t4-router")
    }
    assert not [name for name in models_of(document, "tag:hermes") if name.count("/") > 1 or "t1-" in name]
    assert models_of(document, "tag:stranger") == set()


def test_aperture_has_exactly_one_named_admin() -> None:
    admins = [grant["src"] for grant in aperture(fleet())["grants"] if {"role": "admin"} in grant["app"][CAPABILITY]]
    assert admins == [["root@example.com"]]


def test_a_local_only_host_offers_aperture_nothing_hosted() -> None:
    inventory = fleet(2)
    put(inventory["gpu-02"], "fleet_local_only", value=True)
    providers = aperture(inventory)["providers"]
    assert "t1-smart" in providers["gpu-01"]["models"]
    assert "t1-smart" not in providers["gpu-02"]["models"]


def test_without_an_operators_key_aperture_lists_no_node_alias() -> None:
    inventory = everywhere(fleet(2), "fleet_identities", 3, "role", value="agent")
    document = aperture(inventory)
    assert not [model for provider in document["providers"].values() for model in provider["models"] if "/" in model]
    assert aperture_faults(json.dumps(document)) == []


def test_what_is_rendered_for_aperture_can_be_applied_and_holds_no_secret() -> None:
    text = aperture_config(CATALOG)
    assert aperture_faults(text) == []
    assert TOKEN not in text
    assert key_sha256("aperture") not in text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda d: d.update(provider={}), "provider: unknown key: must be one of"),
        (lambda d: d["providers"]["gpu-01"].update(timeout=5), "providers.gpu-01.timeout: unknown key"),
        (
            lambda d: d["providers"]["gpu-01"].update(baseurl="http://100.64.0.2:4000/v1"),
            "providers.gpu-01.baseurl: http://100.64.0.2:4000/v1: must be http://HOST:PORT without a path",
        ),
        (
            lambda d: d["providers"]["gpu-01"].update(compatibility={"openai_responses": True}),
            "providers.gpu-01.compatibility.openai_chat: (missing)",
        ),
        (lambda d: d["providers"]["gpu-01"].update(models=[]), "providers.gpu-01.models: (missing)"),
        (lambda d: d["grants"][1].update(src=["*"]), "grants[1].src: ['*']: must name logins, groups or tags, never everyone"),
        (lambda d: d["grants"][1].update(dst=["tag:aperture"]), "grants[1].dst: must not be there"),
        (lambda d: d["grants"][1]["app"][CAPABILITY].pop(0), "grants[1]: roles []: must have exactly one role"),
        (lambda d: d["grants"][1]["app"][CAPABILITY].append({"models": "*/t9-x"}), "grants[1]: */t9-x: matches no provider/model"),
        (lambda d: d["grants"].pop(0), "grants: admins are nobody: exactly one login must be admin"),
        (lambda d: d["grants"][0].update(src=["a@b.c", "d@e.f"]), "grants: admins are a@b.c, d@e.f: exactly one login must be admin"),
        (lambda d: d.pop("grants"), "grants: must be a list (without it everyone is admin)"),
    ],
)
def test_a_document_that_aperture_would_refuse_or_misread_is_refused_first(change: Any, fault: str) -> None:
    document = aperture(fleet())
    change(document)
    assert [found for found in aperture_faults(json.dumps(document)) if found.startswith(fault)]


@pytest.mark.parametrize(
    ("glob", "name", "matches"),
    [
        ("*/t3-code", "gpu-01/t3-code", True),
        ("*/t3-code", "gpu-01/gpu-01/t3-code", False),
        ("gpu-01/**", "gpu-01/gpu-01/t3-code", True),
        ("gpu-01/*", "gpu-01/gpu-01/t3-code", False),
        ("gpu-01/**", "gpu-012/t3-code", False),
        ("gpu.01/**", "gpu-01/t3-code", False),
    ],
)
def test_globs_match_as_aperture_documents_them(glob: str, name: str, matches: bool) -> None:
    assert glob_matches(glob, name) is matches


def test_hermes_is_told_contexts_and_an_alias_for_every_task() -> None:
    told = hermes_input(CATALOG)
    assert (told["main"], told["context_length"], told["max_tokens"]) == ("t3-smart", 65536, 4096)
    assert told["auxiliary"] == {"title_generation": "t4-router", "approval": "t4-router", "compression": "t3-smart", "vision": "t3-vision"}
    assert told["models"]["t4-router"] == {"context_length": 32768}
    assert "t4-embedding" not in told["models"]


def test_a_declared_context_lets_a_small_model_stand_in_and_is_marked() -> None:
    inventory = everywhere(fleet(1), "fleet_models", "granite-8b", "context", value=4096)
    inventory = everywhere(inventory, "fleet_models", "granite-8b", "declared_context", value=65536)
    catalog = expand(inventory)
    assert hermes_input(catalog)["context_length"] == 65536
    mark = "**Test override:** model `granite-8b` declares 65536 tokens of context and serves 4096."
    assert mark in catalog_md(catalog)
    assert mark in catalog_md(catalog, public=True)
    assert "Test override" not in catalog_md(CATALOG)


def test_catalog_md_shows_chains_cards_and_people() -> None:
    text = catalog_md(CATALOG)
    assert "| `t3-smart` | model:granite-8b → hosted:alpha/large → hosted:beta/org/large |" in text
    assert "| `t1-smart` | hosted:alpha/large → hosted:beta/org/large | hosted:beta/org/large | refused |" in text
    assert f"| `gpu-01` | 100.64.0.2 | no | c0 | `{uuid(1, 0)}` | 12288 | ampere |" in text
    assert "| olga | operator | public |" in text


def test_no_public_rendering_tells_a_name_an_address_or_a_uuid() -> None:
    texts = [catalog_md(CATALOG, public=True)]
    for identity in ("olga", "hermes", "dev", "nobody-gpu-01"):
        for alias in ("t3-smart", "t1-smart", "gpu-01/t3-code", "gpu-09/t3-code", "t9-x"):
            for data_class in ("public", "restricted"):
                texts.append(json.dumps(explain(CATALOG, identity, alias, data_class, public=True)))
    assert [name for name in [*NAMES, "alpha", "beta"] for text in texts if name in text] == []
    assert "| operator | 2 |" in texts[0]


@pytest.mark.parametrize(
    ("identity", "alias", "data_class", "layer", "reason"),
    [
        ("nobody", "t3-code", "public", "authentication", "there is no identity nobody in fleet_identities: its key answers 401"),
        ("dev", "t3-code", "public", "data class", "dev's key has min_class internal: public is below it: 403"),
        ("dev", "t3-code", "secret", "data class", "secret is none of public, internal, restricted: 400"),
        ("hermes", "t1-smart", "public", "grants", "hermes is not granted t1-smart (tier T1): 403"),
        ("hermes", "t9-x", "public", "grants", "there is no alias t9-x in fleet_aliases: 403"),
        (
            "hermes",
            "gpu-01/t3-code",
            "public",
            "grants",
            "gpu-01/t3-code is a node alias and hermes has the role agent: operators only: 403",
        ),
        (
            "olga",
            "gpu-09/t3-code",
            "public",
            "placement",
            "gpu-09/t3-code has no card: no such host or alias, or no card of that host holds the model",
        ),
        ("olga", "t1-smart", "restricted", "data class", "t1-smart has no chain for restricted requests (it would leave the fleet): 403"),
    ],
)
def test_explain_names_the_layer_that_refuses_and_why(identity: str, alias: str, data_class: str, layer: str, reason: str) -> None:
    answer = explain(CATALOG, identity, alias, data_class)
    assert (answer["allowed"], answer["layer"], answer["reason"], answer["hosts"]) == (False, layer, reason, [])


def test_explain_shows_tier_chain_hosts_and_cards() -> None:
    answer = explain(CATALOG, "hermes", "t3-smart", "internal")
    assert (answer["allowed"], answer["tier"], answer["needs_approval"]) == (True, "T3", True)
    assert answer["chain"] == ["model:granite-8b", "hosted:beta/org/large"]
    assert [host["host"] for host in answer["hosts"]] == ["gpu-01", "gpu-02", "gpu-03"]
    assert answer["hosts"][0]["cards"][0] == {"slot": "c0", "uuid": uuid(1, 0), "memory_mib": 12288}


def test_explain_of_a_node_alias_shows_that_host_only() -> None:
    answer = explain(CATALOG, "olga", "gpu-02/t3-smart", "public")
    assert (answer["allowed"], answer["chain"], [host["host"] for host in answer["hosts"]]) == (True, ["model:granite-8b"], ["gpu-02"])

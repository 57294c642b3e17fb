"""Inventories for the catalog's tests: `{host: {variable: value}}` as the filter `fleet_input` hands it over."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

TOKEN = "pool-token-0123456789-abcdefghijklmnop"
WALLET = "prl1pnobodyswallet"


def uuid(host: int, card: int) -> str:
    """The UUID of the n-th card of the m-th host."""
    return f"GPU-{host:08x}-0000-4000-8000-{card:012x}"


def key_sha256(name: str) -> str:
    """The digest of an identity's key."""
    return hashlib.sha256(f"key of {name}".encode()).hexdigest()


def fleet_variables() -> dict[str, Any]:
    """A fleet's group variables with everything in them: three local models, hosted ones, chains per class, four identities."""
    return {
        "fleet_models": {
            "granite-8b": {
                "kind": "chat",
                "file": "/var/lib/gpu-fleet/models/granite.gguf",
                "context": 65536,
                "cache_type": "q8_0",
                "weights_mib": 4900,
                "kv_bytes_per_token": 81920,
            },
            "gemma-1b": {"kind": "chat", "file": "/var/lib/gpu-fleet/models/gemma.gguf", "context": 32768, "memory_mib": 2300, "parallel": 4},
            "gemma-vision": {
                "kind": "vision",
                "file": "/var/lib/gpu-fleet/models/vision.gguf",
                "mmproj": "/var/lib/gpu-fleet/models/mmproj.gguf",
                "context": 65536,
                "memory_mib": 9000,
                "labels": ["ampere"],
            },
            "embed": {
                "kind": "embedding",
                "file": "/var/lib/gpu-fleet/models/embed.gguf",
                "context": 8192,
                "memory_mib": 1500,
                "dimensions": 768,
                "argv": ["--embeddings"],
            },
        },
        "fleet_aliases": {
            "t1-smart": {"tier": "T1", "chains": {"public": ["alpha/large", "beta/org/large"], "internal": ["beta/org/large"]}},
            "t2-code": {"tier": "T2", "chains": {"public": ["alpha/large"], "restricted": ["t3-code"]}},
            "t3-smart": {"tier": "T3", "model": "granite-8b", "agent": True, "chains": {"public": ["t1-smart"], "internal": ["t1-smart"]}},
            "t3-code": {"tier": "T3", "model": "granite-8b"},
            "t3-vision": {"tier": "T3", "model": "gemma-vision"},
            "t4-router": {"tier": "T4", "model": "gemma-1b", "chains": {cls: ["t3-smart"] for cls in ("public", "internal", "restricted")}},
            "t4-embedding": {"tier": "T4", "model": "embed"},
        },
        "fleet_hosted_providers": {
            "alpha": {
                "litellm": "anthropic",
                "key_env": "FLEET_ALPHA_KEY",
                "classes": ["public"],
                "models": {"large": {"context": 200000, "kinds": ["chat", "vision"]}, "embed": {"context": 8192, "kinds": ["embedding"]}},
            },
            "beta": {
                "litellm": "openai",
                "api_base": "https://beta.example/v1",
                "key_env": "FLEET_BETA_KEY",
                "classes": ["public", "internal"],
                "models": {"org/large": {"context": 200000}},
            },
        },
        "fleet_identities": [
            {"name": "olga", "role": "operator", "key_sha256": key_sha256("olga"), "tiers": ["T1", "T2", "T3", "T4"], "min_class": "public",
             "tailnet": ["olga@example.com"]},
            {"name": "dev", "role": "developer", "key_sha256": key_sha256("dev"), "tiers": ["T3", "T4"], "aliases": ["t1-smart"],
             "min_class": "internal", "tailnet": ["group:dev"]},
            {"name": "hermes", "role": "agent", "key_sha256": key_sha256("hermes"), "tiers": ["T3", "T4"], "min_class": "public",
             "tailnet": ["tag:hermes"]},
            {"name": "aperture", "role": "operator", "key_sha256": key_sha256("aperture"), "tiers": ["T1", "T2", "T3", "T4"], "min_class": "public"},
        ],
        "fleet_pool_token": TOKEN,
        "fleet_aperture": {"admin": "root@example.com", "identity": "aperture"},
        "fleet_hermes": {"identity": "hermes", "base_url": "http://ai/v1", "main": "t3-smart", "vision": "t3-vision", "small": "t4-router"},
        "gpu_miner_wallet": WALLET,
    }  # fmt: skip


def host_variables(number: int, cards: int = 2, memory_mib: int = 12288) -> dict[str, Any]:
    """The variables of the n-th host (from 1)."""
    return {
        "fleet_address": f"100.64.{number // 250}.{number % 250 + 1}",
        "fleet_cards": [
            {"slot": f"c{card}", "uuid": uuid(number, card), "memory_mib": memory_mib, "labels": ["ampere"]} for card in range(cards)
        ],
    }


def fleet(hosts: int = 3, cards: int = 2) -> dict[str, dict[str, Any]]:
    """A whole inventory: hosts gpu-01, gpu-02, … with the same group variables."""
    return {f"gpu-{n:02d}": {**host_variables(n, cards), **copy.deepcopy(fleet_variables())} for n in range(1, hosts + 1)}


def everywhere(inventory: dict[str, dict[str, Any]], variable: str, *keys: str | int, value: Any) -> dict[str, dict[str, Any]]:
    """A copy with a group variable's entry set on every host; a value of `...` removes it."""
    changed = copy.deepcopy(inventory)
    for variables in changed.values():
        put(variables, variable, *keys, value=value)
    return changed


def put(variables: dict[str, Any], *keys: str | int, value: Any) -> None:
    """Set (or, with `...`, remove) the entry at a path of keys."""
    place: Any = variables
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = copy.deepcopy(value)

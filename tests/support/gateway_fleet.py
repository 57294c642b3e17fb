"""The small fleet that the gateway's tests run: two hosts, small and big models, hosted chains; rendered by the real catalog."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import expand
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_grants import gateway_grants
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_litellm import litellm_config

from tests.support.pool_double import TOKEN

KEYS = {
    "agent": "agent-key-1",
    "public-agent": "public-key-2",
    "developer": "developer-key-3",
    "operator": "operator-key-4",
    "workflow": "workflow-key-5",
}
SMALL, BIG = 8, 20  # GiB
MODELS = {
    "t3-smart": SMALL,
    "t3-code": SMALL,
    "t4-router": SMALL,
    "t4-embedding": SMALL,
    "t4-rerank": SMALL,
    "t3-image": SMALL,
    "t3-plan": BIG,
    "t3-lone": SMALL,
}
ADDRESSES = {"gpu-a": "10.9.0.1", "gpu-b": "10.9.0.2"}
Cards = Mapping[str, list[tuple[int, list[str]]]]  # host → (GiB, labels) of each card
CARDS: Cards = {"gpu-a": [(12, [])] * 3, "gpu-b": [(12, []), (24, []), (24, ["lone"])]}


def _model(name: str, gib: int, **more: Any) -> dict[str, Any]:
    kind = {"kind": "chat", "file": f"/var/lib/gpu-fleet/models/{name}.gguf", "context": 65536, "memory_mib": gib * 1024}
    return {**kind, **more}


def _identity(name: str, role: str, tiers: list[str], min_class: str, aliases: list[str] | None = None) -> dict[str, Any]:
    digest = hashlib.sha256(KEYS[name].encode()).hexdigest()
    return {"name": name, "role": role, "key_sha256": digest, "tiers": tiers, "aliases": aliases or [], "min_class": min_class}


def inventory(hosted_url: str, cards: Cards = CARDS) -> dict[str, dict[str, Any]]:
    chains = {"public": ["t1-smart"], "internal": ["t1-smart"], "restricted": []}
    common: dict[str, Any] = {
        "fleet_pool_token": TOKEN,
        "gpu_miner_wallet": "prl1p" + "q" * 40,
        "fleet_models": {
            "small": _model("small", SMALL),
            "other": _model("other", SMALL),
            "big": _model("big", BIG),
            "embed": _model("embed", SMALL, kind="embedding", dimensions=2),
            "rank": _model("rank", SMALL, kind="rerank"),
            "paint": _model("paint", SMALL, kind="image", backend="sd_server"),
            "lone": _model("lone", SMALL, labels=["lone"]),
        },
        "fleet_aliases": {
            "t3-smart": {"tier": "T3", "model": "small", "chains": chains},
            "t3-code": {"tier": "T3", "model": "other", "chains": chains},
            "t3-plan": {"tier": "T3", "model": "big"},
            "t3-lone": {"tier": "T3", "model": "lone"},
            "t4-router": {"tier": "T4", "model": "small"},
            "t4-embedding": {"tier": "T4", "model": "embed"},
            "t4-rerank": {"tier": "T4", "model": "rank", "chains": {"public": ["far-rank/rank-model"], "restricted": []}},
            "t3-image": {"tier": "T3", "model": "paint", "chains": {"public": ["far/far-image"], "restricted": []}},
            "t1-smart": {"tier": "T1", "chains": {"public": ["far/far-model"], "internal": ["far/far-model"]}},
        },
        "fleet_hosted_providers": {
            "far": {
                "litellm": "openai",
                "api_base": f"{hosted_url}/v1",
                "key_env": "FLEET_FAR_KEY",
                "classes": ["public", "internal"],
                "models": {"far-model": {"context": 200000, "kinds": ["chat"]}, "far-image": {"context": 4096, "kinds": ["image"]}},
            },
            "far-rank": {
                "litellm": "hosted_vllm",
                "api_base": f"{hosted_url}/v1",
                "key_env": "FLEET_FAR_KEY",
                "classes": ["public"],
                "models": {"rank-model": {"context": 4096, "kinds": ["rerank"]}},
            },
        },
        "fleet_identities": [
            _identity("agent", "agent", ["T3", "T4"], "restricted"),
            _identity("public-agent", "agent", ["T1", "T3", "T4"], "public"),
            _identity("developer", "developer", ["T1", "T3", "T4"], "internal"),
            _identity("workflow", "workflow", ["T1", "T3"], "internal"),
            _identity("operator", "operator", ["T1", "T3", "T4"], "public"),
        ],
    }
    hosts: dict[str, dict[str, Any]] = {}
    for letter, (host, sizes) in zip("ab", cards.items(), strict=True):
        uuid = f"GPU-{letter}0000000-0000-4000-8000-0000000000c"
        fleet_cards = [
            {"slot": f"c{i}", "uuid": f"{uuid}{i}", "memory_mib": gib * 1024, "labels": labels} for i, (gib, labels) in enumerate(sizes)
        ]
        hosts[host] = {**common, "fleet_address": ADDRESSES[host], "fleet_cards": fleet_cards}
    return hosts


def render(folder: Path, pools: Mapping[str, str], hosted_url: str, guard: dict[str, Any] | None = None, cards: Cards = CARDS) -> None:
    """Write config.yaml, keys.json and guard.json; the hosts' addresses are replaced by those of the doubles."""
    catalog = expand(inventory(hosted_url, cards))
    texts = {
        "config.yaml": litellm_config(catalog),
        "keys.json": json.dumps(gateway_grants(catalog)),
        "guard.json": json.dumps(guard or {}),
    }
    for name, text in texts.items():
        moved = text
        for host, url in pools.items():
            moved = moved.replace(f"http://{ADDRESSES[host]}:9100", url)
        (folder / name).write_text(moved)

"""Catalog -> keys.json of the gateway's guard: who may ask for what, and which group serves it for which class (docs/catalog.md)."""

from __future__ import annotations

from typing import Any, Dict, List

from ._catalog_expand import sha256
from ._catalog_groups import Groups, group_chains, node_aliases
from ._catalog_model import POOL_PORT, Catalog, http, is_hosted

VERSION = 1


def gateway_grants(catalog: Catalog, local_only: bool = False) -> Dict[str, Any]:
    """The mapping for keys.json; keys are SHA-256 digests of API keys, never keys."""
    grouped = group_chains(catalog, local_only)
    nodes = list(node_aliases(catalog))
    return {
        "version": VERSION,
        "catalog_sha256": sha256(catalog),
        "keys": {
            identity["key_sha256"]: {
                "name": identity["name"],
                "role": identity["role"],
                "min_class": identity["min_class"],
                "models": _models(grouped, identity["aliases"], nodes if identity["role"] == "operator" else []),
            }
            for identity in catalog["identities"]
        },
        "routes": {
            cls: {
                alias: {"group": group.name, "fallbacks": group.links[1:], "hosted": any(is_hosted(link) for link in group.links)}
                for alias, group in routes.items()
            }
            for cls, routes in grouped.routes.items()
        },
        "pools": {name: http(host["address"], POOL_PORT) for name, host in sorted(catalog["hosts"].items())},
    }


def _models(grouped: Groups, aliases: List[str], nodes: List[str]) -> Dict[str, List[str]]:
    """`local`: what even a restricted request may ask for; `hosted`: what only other classes may."""
    local = [alias for alias in aliases if alias in grouped.routes["restricted"]]
    hosted = [alias for alias in aliases if alias not in local and any(alias in routes for routes in grouped.routes.values())]
    return {"local": sorted(local + nodes), "hosted": hosted}

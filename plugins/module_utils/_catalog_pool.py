"""Catalog -> what one host's pool and watchdog are told."""

from __future__ import annotations

from typing import Any, Dict, List

from ._catalog_model import POOL_PORT, Catalog, Model, http


def pool_config(catalog: Catalog, host: str) -> Dict[str, Any]:
    """The mapping for pool.yml of one host (DESIGN.md 4.2). Raises KeyError for a host that the catalog lacks."""
    known = catalog["hosts"][host]
    aliases: Dict[str, List[str]] = {}
    for name, alias in sorted(catalog["aliases"].items()):
        if alias["model"] is not None:
            aliases.setdefault(alias["model"], []).append(name)
    return {
        **known["pool"],
        "listen": {"host": known["address"], "port": POOL_PORT},
        "token_file": "/etc/gpu-fleet/pool.token",
        "cards": [dict(card) for card in known["cards"]],
        "models": {
            name: _model(model, aliases.get(name, []))
            for name, model in sorted(catalog["models"].items())
            if host in catalog["placement"][name]
        },
    }


def _model(model: Model, aliases: List[str]) -> Dict[str, Any]:
    """One model in the pool's words; what is not set is left out, so that the pool's defaults stay the pool's."""
    settings: Dict[str, Any] = {
        "backend": model["backend"],
        "memory_mib": model["memory_mib"],
        "context": model["context"],
        "cache_type": model["cache_type"],
        "parallel": model["parallel"],
        "endpoints": model["endpoints"],
        "labels": model["labels"],
        "aliases": aliases,
    }
    optional: Dict[str, Any] = {
        "file": model["file"],
        "mmproj": model["mmproj"],
        "dimensions": model["dimensions"],
        "argv": model["argv"],
        "env": model["env"],
        "ready": model["ready"],
    }
    settings.update({key: value for key, value in optional.items() if value})
    return settings


def watchdog_peers(catalog: Catalog, host: str) -> List[Dict[str, str]]:
    """Every other host's pool, whose `/ready` the watchdog asks before it reboots this one."""
    return [{"name": name, "url": http(known["address"], POOL_PORT)} for name, known in sorted(catalog["hosts"].items()) if name != host]

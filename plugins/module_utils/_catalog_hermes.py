"""Catalog -> what the role `hermes` writes into the agent's configuration."""

from __future__ import annotations

from typing import Any, Dict

from ._catalog_model import Catalog, link_context


def alias_context(catalog: Catalog, alias: str) -> int:
    """Tokens that a client may rely on, whichever link of whichever class serves it."""
    links = {link for chain in catalog["aliases"][alias]["chains"].values() for link in chain}
    return min(link_context(catalog["models"], catalog["hosted"], link) for link in links)


def hermes_input(catalog: Catalog) -> Dict[str, Any]:
    """Aliases for each task of the agent, with their contexts. Raises ValueError when the fleet declares no Hermes."""
    settings = catalog["hermes"]
    if settings is None:
        raise ValueError("fleet_hermes is not set: this fleet has no Hermes")
    identity = next(known for known in catalog["identities"] if known["name"] == settings["identity"])
    chat = [alias for alias in identity["aliases"] if catalog["aliases"][alias]["kind"] in ("chat", "vision")]
    auxiliary = {"title_generation": settings["small"], "approval": settings["small"], "compression": settings["main"]}
    if settings["vision"] is not None:
        auxiliary["vision"] = settings["vision"]
    return {
        "identity": settings["identity"],
        "base_url": settings["base_url"],
        "key_env": "FLEET_API_KEY",
        "main": settings["main"],
        "context_length": alias_context(catalog, settings["main"]),
        "max_tokens": settings["max_tokens"],
        "models": {alias: {"context_length": alias_context(catalog, alias)} for alias in chat},
        "auxiliary": auxiliary,
        "delegation": settings["delegate"],
    }

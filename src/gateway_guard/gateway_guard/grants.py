"""Who has which key and which aliases: the file keys.json, rendered from the catalog (docs/catalog.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_CLASSES = ("public", "internal", "restricted")


class GrantsError(ValueError):
    """keys.json does not have the shape that the catalog renders."""


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """One identity: its key's owner, role, lowest data class it may claim, and granted aliases."""

    name: str
    role: str
    min_class: str
    local: frozenset[str]
    hosted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request of one data class for one alias enters, and where it may fall back to."""

    group: str
    fallbacks: tuple[str, ...]
    hosted: bool


@dataclass(frozen=True, slots=True)
class Grants:
    """All of keys.json. `routes[data class][alias]`, `pools[host]` = base URL of that host's pool."""

    keys: Mapping[str, KeyGrant]
    routes: Mapping[str, Mapping[str, Route]]
    pools: Mapping[str, str]

    def find(self, api_key: str) -> KeyGrant | None:
        """Return the identity of an API key. The digest of a random key tells nothing, so a plain look-up leaks nothing."""
        return self.keys.get(hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).hexdigest()) if api_key else None

    def is_routed(self, alias: str) -> bool:
        return any(alias in routes for routes in self.routes.values())


def parse(document: Any) -> Grants:
    """Build the grants from the parsed file; raises GrantsError naming what is wrong, never a secret."""
    try:
        if document["version"] != 1:
            raise GrantsError(f"keys.json: version is {document['version']!r}, expected 1")
        keys = {digest: _key(digest, entry) for digest, entry in document["keys"].items()}
        routes = {name: {alias: _route(entry) for alias, entry in document["routes"][name].items()} for name in DATA_CLASSES}
        pools = {str(host): str(url).rstrip("/") for host, url in document["pools"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise GrantsError(f"keys.json: {type(error).__name__} at {error}") from error
    leaks = sorted(alias for alias, route in routes["restricted"].items() if route.hosted)
    if leaks:
        raise GrantsError(f"keys.json: routes.restricted leads to a hosted model for {', '.join(leaks)}")
    return Grants(keys, routes, pools)


def load(path: Path) -> Grants:
    return parse(json.loads(path.read_text(encoding="utf-8")))


def _key(digest: str, entry: Mapping[str, Any]) -> KeyGrant:
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise GrantsError("keys.json: a key is not a sha256 in lower-case hex")
    if entry["min_class"] not in DATA_CLASSES:
        raise GrantsError(f"keys.json: min_class of {entry['name']} is {entry['min_class']!r}, expected one of {', '.join(DATA_CLASSES)}")
    models = entry["models"]
    return KeyGrant(entry["name"], entry["role"], entry["min_class"], frozenset(models["local"]), frozenset(models["hosted"]))


def _route(entry: Mapping[str, Any]) -> Route:
    return Route(str(entry["group"]), tuple(entry["fallbacks"]), entry["hosted"] is not False)

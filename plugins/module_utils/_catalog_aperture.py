"""Catalog -> Aperture's configuration document, and the check that such a document can be applied.

Only keys that Aperture knows (an unknown one blocks its save), upstream addresses without `/v1` (it appends the whole incoming path),
every compatibility flag named, grants deny by default. The document holds no secret: the applying step fills the placeholder.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List

from ._catalog_groups import group_chains, node_aliases
from ._catalog_model import CLASSES, GATEWAY_PORT, Aperture, Catalog, Identity, http

PLACEHOLDER = "@@APERTURE_GATEWAY_KEY@@"
CAPABILITY = "tailscale.com/cap/aperture"
_THROUGH_APERTURE = ("chat", "vision")  # it has no route for embeddings, images, rerank
_TOP_KEYS = {"providers", "grants", "quotas", "hooks", "exporters", "database", "auto_cost_basis"}
_PROVIDER_KEYS = {
    "baseurl",
    "models",
    "apikey",
    "authorization",
    "name",
    "description",
    "compatibility",
    "cost_basis",
    "model_cost_map",
    "preference",
    "disabled",
    "add_headers",
}


def aperture_config(catalog: Catalog) -> str:
    """The document's text. Raises ValueError when the fleet declares no Aperture."""
    settings = catalog["aperture"]
    if settings is None:
        raise ValueError("fleet_aperture is not set: this fleet has no Aperture")
    presented = next(identity for identity in catalog["identities"] if identity["name"] == settings["identity"])
    models = _models(catalog, presented)
    if not models:
        raise ValueError(f"no alias that is granted to {presented['name']} (fleet_aperture.identity) passes through Aperture")
    document = {
        "auto_cost_basis": False,
        "database": {"retention": {"duration": settings["retention"]}},
        "grants": _grants(catalog, settings, presented, models),
        "providers": {
            host: {
                "name": host,
                "baseurl": http(catalog["hosts"][host]["address"], GATEWAY_PORT),
                "models": passed,
                "apikey": PLACEHOLDER,
                "authorization": "bearer",
                "compatibility": settings["compatibility"],
                "preference": len(models) - place,
            }
            for place, (host, passed) in enumerate(models.items())
        },
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _usable(catalog: Catalog, presented: Identity, local_only: bool) -> List[str]:
    """Aliases that Aperture can pass on, with the key that it presents, to such a gateway."""
    routes = group_chains(catalog, local_only).routes
    classes = CLASSES[CLASSES.index(presented["min_class"]) :]
    return [
        alias
        for alias in presented["aliases"]
        if catalog["aliases"][alias]["kind"] in _THROUGH_APERTURE and any(alias in routes[cls] for cls in classes)
    ]


def _models(catalog: Catalog, presented: Identity) -> Dict[str, List[str]]:
    """host -> what its gateway serves through Aperture: the shared aliases, and for an operator's key its own node aliases."""
    shared = {local_only: _usable(catalog, presented, local_only) for local_only in (False, True)}
    models = {name: list(shared[host["local_only"]]) for name, host in sorted(catalog["hosts"].items())}
    if presented["role"] == "operator":
        for name, (host, alias) in node_aliases(catalog).items():
            if alias in shared[catalog["hosts"][host]["local_only"]]:
                models[host].append(name)
    return {host: passed for host, passed in models.items() if passed}


def _grants(catalog: Catalog, settings: Aperture, presented: Identity, models: Dict[str, List[str]]) -> List[Dict[str, Any]]:
    """The one admin, then each identity's sources. `*/t3-code` matches the alias on every provider and no node alias: `*` is one segment."""
    grants: List[Dict[str, Any]] = [_grant([settings["admin"]], "admin", [])]
    passed = {model for on_host in models.values() for model in on_host}
    for identity in catalog["identities"]:
        globs = [f"*/{alias}" for alias in identity["aliases"] if alias in passed]
        if identity["role"] == "operator" and presented["role"] == "operator":
            globs += [f"{host}/**" for host in models]
        if identity["tailnet"] and globs:
            grants.append(_grant(identity["tailnet"], "user", globs))
    return grants


def _grant(sources: List[str], role: str, models: List[str]) -> Dict[str, Any]:
    return {"src": sources, "app": {CAPABILITY: [{"role": role}, *({"models": model} for model in models)]}}


def glob_matches(pattern: str, name: str) -> bool:
    """Aperture's globs on `provider/model`: `*` is one segment (or a part of one), `**` any number of segments."""
    parts = [".*" if part == "**" else "[^/]*" if part == "*" else re.escape(part) for part in re.split(r"(\*\*|\*)", pattern)]
    return re.fullmatch("".join(parts), name) is not None


def aperture_faults(text: str) -> List[str]:
    """What would make Aperture refuse this document, or make it do less or more than it says; [] when it can be applied."""
    try:
        document = json.loads(text)
    except ValueError as error:
        return [f"(document): not JSON: {error}"]
    if not isinstance(document, dict):
        return ["(document): must be a mapping"]
    faults = [f"{key}: unknown key: must be one of {', '.join(sorted(_TOP_KEYS))}" for key in sorted(set(document) - _TOP_KEYS)]
    providers = document.get("providers")
    grants = document.get("grants")
    if not isinstance(providers, dict) or not providers:
        return [*faults, "providers: must have at least one provider"]
    if not isinstance(grants, list):
        return [*faults, "grants: must be a list (without it everyone is admin)"]
    names: List[str] = []
    for name, provider in sorted(providers.items()):
        faults += _provider_faults(f"providers.{name}", provider)
        names += [f"{name}/{model}" for model in provider.get("models", [])]
    admins = []
    for index, grant in enumerate(grants):
        faults += _grant_faults(f"grants[{index}]", grant, names)
        if _roles(grant) == ["admin"]:
            admins += grant.get("src", [])
    if len(admins) != 1 or "@" not in admins[0]:
        faults.append(f"grants: admins are {', '.join(admins) or 'nobody'}: exactly one login must be admin")
    return faults


def _provider_faults(path: str, provider: Dict[str, Any]) -> List[str]:
    faults = [f"{path}.{key}: unknown key" for key in sorted(set(provider) - _PROVIDER_KEYS)]
    baseurl = str(provider.get("baseurl", ""))
    if not re.fullmatch(r"https?://[^/\s]+", baseurl):
        faults.append(f"{path}.baseurl: {baseurl or '(missing)'}: must be http://HOST:PORT without a path; Aperture appends /v1/… itself")
    if not provider.get("models"):
        faults.append(f"{path}.models: (missing): must list at least one literal id")
    if "openai_chat" not in provider.get("compatibility", {}):
        faults.append(f"{path}.compatibility.openai_chat: (missing): name it, or it is lost beside other flags")
    return faults


def _roles(grant: Dict[str, Any]) -> List[str]:
    return [str(entry["role"]) for entry in grant.get("app", {}).get(CAPABILITY, []) if "role" in entry]


def _grant_faults(path: str, grant: Dict[str, Any], names: List[str]) -> List[str]:
    faults = [f"{path}.{key}: must not be there: the gateway's own grants have src and app" for key in sorted(set(grant) - {"src", "app"})]
    if "*" in grant.get("src", []) or not grant.get("src"):
        faults.append(f"{path}.src: {grant.get('src')}: must name logins, groups or tags, never everyone")
    roles = _roles(grant)
    if roles not in (["user"], ["admin"]):
        faults.append(f"{path}: roles {roles}: must have exactly one role, user or admin")
    for entry in grant.get("app", {}).get(CAPABILITY, []):
        glob = entry.get("models")
        if glob is not None and not any(glob_matches(glob, name) for name in names):
            faults.append(f"{path}: {glob}: matches no provider/model")
    return faults

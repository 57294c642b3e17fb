"""Who may ask for what: identities, Aperture's and Hermes' settings: variables -> shapes, or faults."""

from __future__ import annotations

import re
from typing import Any, Container, Dict, List, Mapping, Optional, Set

from ._catalog_faults import HIDDEN, MISSING, Faults, shown
from ._catalog_model import AGENT_CONTEXT, CLASSES, ROLES, TIERS, Alias, Aperture, Hermes, HostedModel, Identity, Model, link_context
from ._catalog_read import NAME, NAME_WORDS, Reader

_SHA256 = re.compile(r"[0-9a-f]{64}")
_EMPTY_KEY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_TAILNET = re.compile(r"(group|tag|autogroup):[A-Za-z0-9._-]+|[^\s@:*,]+@[^\s@:*,]+")
_TAILNET_WORDS = "must be a login (anna@example.com), group:NAME or tag:NAME; '*' is everyone and refused"
_LOGIN = re.compile(r"[^\s@:*,]+@[^\s@:*,]+")
_RETENTION = re.compile(r"0|[1-9][0-9]*[hd]")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?")
_COMPATIBILITY = ("openai_chat", "openai_responses", "anthropic_messages")
_TOKEN_LENGTH = 32
_TOKEN_WORDS = f"must be a string of at least {_TOKEN_LENGTH} characters without white space"


def read_identities(faults: Faults, data: Any, aliases: Mapping[str, Alias], known: Set[str], hosts: Set[str]) -> List[Identity]:
    """The identities, sorted by name, with their grants spelled out. `known` also holds aliases whose entries are faulty."""
    if data is None or data == []:
        faults.add("fleet_identities", MISSING, "must list at least one identity {name, role, key_sha256, tiers}")
        return []
    if not isinstance(data, list):
        faults.add("fleet_identities", shown(data), "must be a list of {name, role, key_sha256, …}")
        return []
    identities: List[Identity] = []
    sources: Dict[str, int] = {}
    first: Dict[str, Dict[str, int]] = {"name": {}, "key_sha256": {}}
    for index, item in enumerate(data):
        reader = Reader(
            faults, f"fleet_identities[{index}]", item, ("name", "role", "key_sha256", "tiers", "aliases", "min_class", "tailnet")
        )
        if not reader.data:
            continue
        for key, seen in first.items():
            value = reader.data.get(key)
            if isinstance(value, str) and seen.setdefault(value, index) != index:
                reader.fault(key, f"is fleet_identities[{seen[value]}]'s already: each identity needs its own", hide=key == "key_sha256")
        identity = _read_identity(reader, aliases, known, hosts)
        for place, source in enumerate(_list(reader.data.get("tailnet"))):
            if isinstance(source, str) and sources.setdefault(source, index) != index:
                where = f"{reader.path}.tailnet[{place}]"
                faults.add(
                    where,
                    shown(source),
                    f"is fleet_identities[{sources[source]}]'s already: grants only add up, so a source has one identity",
                )
        if identity is not None:
            identities.append(identity)
    return sorted(identities, key=lambda identity: identity["name"])


def _read_identity(reader: Reader, aliases: Mapping[str, Alias], known: Set[str], hosts: Set[str]) -> Optional[Identity]:
    name = reader.text("name", NAME, NAME_WORDS)
    role = reader.choice("role", ROLES)
    key = reader.text("key_sha256", _SHA256, "must be the SHA-256 of the API key: 64 small hex digits (never the key itself)", hide=True)
    if key == _EMPTY_KEY:
        reader.fault("key_sha256", "is the SHA-256 of an empty key", hide=True)
    tiers = reader.choices("tiers", TIERS)
    listed = reader.texts("aliases", bool, "must be the name of an alias")
    min_class = reader.choice("min_class", CLASSES, "restricted")
    tailnet = reader.texts("tailnet", _TAILNET.fullmatch, _TAILNET_WORDS)
    for index, alias in enumerate(listed):
        where = f"{reader.path}.aliases[{index}]"
        if "/" in alias and alias.split("/", 1)[0] in hosts:
            reader.faults.add(where, shown(alias), "node aliases belong to operators only: role operator has them all, others none")
        elif alias not in known:
            reader.faults.add(where, shown(alias), "must be an alias of fleet_aliases")
        elif alias in aliases and not any(cls in aliases[alias]["chains"] for cls in CLASSES[CLASSES.index(min_class) :]):
            reader.faults.add(where, shown(alias), f"can never be used with min_class {min_class}: the alias has no chain for it")
    if not tiers and not listed and not reader.bad:
        reader.fault("tiers", "must grant something: tiers, aliases or both")
    if reader.bad or name is None or key is None:
        return None
    granted = sorted({alias for alias in aliases if aliases[alias]["tier"] in tiers} | {alias for alias in listed if alias in aliases})
    return {"name": name, "role": role, "key_sha256": key, "min_class": min_class, "aliases": granted, "tailnet": sorted(tailnet)}


def check_pool_token(faults: Faults, data: Any) -> None:
    """The token between gateways and pools: long enough, and never shown."""
    if data is None:
        faults.add("fleet_pool_token", MISSING, f"must be a random token of at least {_TOKEN_LENGTH} characters (from the vault)")
    elif not _is_token(data):
        faults.add("fleet_pool_token", HIDDEN, _TOKEN_WORDS)


def check_accepted_tokens(faults: Faults, data: Any) -> None:
    """The tokens that pools accept beside `fleet_pool_token` while it is being rotated."""
    if data is not None and not isinstance(data, list):
        faults.add("fleet_pool_tokens_accepted", HIDDEN, "must be a list of tokens")
        return
    for index, token in enumerate(data or []):
        if not _is_token(token):
            faults.add(f"fleet_pool_tokens_accepted[{index}]", HIDDEN, _TOKEN_WORDS)


def _is_token(data: Any) -> bool:
    return isinstance(data, str) and len(data) >= _TOKEN_LENGTH and not re.search(r"\s", data)


def read_aperture(faults: Faults, data: Any, identities: List[Identity], known: Container[str]) -> Optional[Aperture]:
    """Aperture's settings; None when the fleet has no Aperture."""
    if data is None:
        return None
    reader = Reader(faults, "fleet_aperture", data, ("admin", "identity", "retention", "compatibility"))
    admin = reader.text("admin", _LOGIN, "must be exactly one login, such as anna@example.com")
    identity = _one_of(reader, "identity", known)
    retention = reader.text("retention", _RETENTION, "must be 0 (keep nothing) or a duration such as 30d or 12h", required=False)
    flags = Reader(
        faults,
        "fleet_aperture.compatibility",
        {} if reader.data.get("compatibility") is None else reader.data["compatibility"],
        _COMPATIBILITY,
    )
    compatibility = {name: flags.flag(name) if name in flags.data else name == "openai_chat" for name in _COMPATIBILITY}
    if not any(compatibility.values()):
        reader.fault("compatibility", "must leave at least one of " + ", ".join(_COMPATIBILITY) + " true")
    if reader.bad or flags.bad or admin is None or identity is None:
        return None
    return {"admin": admin, "identity": identity, "retention": retention or "0", "compatibility": compatibility}


def read_hermes(
    faults: Faults,
    data: Any,
    *,
    identities: List[Identity],
    known: Container[str],
    aliases: Mapping[str, Alias],
    models: Mapping[str, Model],
    hosted: Mapping[str, HostedModel],
) -> Optional[Hermes]:
    """Hermes' settings; None when the fleet has no Hermes."""
    if data is None:
        return None
    reader = Reader(faults, "fleet_hermes", data, ("identity", "base_url", "main", "delegate", "vision", "small", "max_tokens"))
    identity = _one_of(reader, "identity", known)
    base_url = reader.text("base_url", _URL, "must be the URL that Hermes calls, such as http://ai/v1")
    granted = next((one["aliases"] for one in identities if one["name"] == identity), None)
    named = {key: reader.data.get(key) for key in ("main", "delegate", "vision", "small") if reader.data.get(key) is not None}
    if "main" not in named:
        reader.fault("main", "must be the alias of the agent's main model")
    for key, alias in named.items():
        if not isinstance(alias, str) or alias not in aliases:
            reader.fault(key, "must be an alias of fleet_aliases")
        elif granted is not None and alias not in granted:
            reader.fault(key, f"is not granted to {identity}: add it to that identity in fleet_identities")
    main = named.get("main")
    if isinstance(main, str) and main in aliases and not aliases[main]["agent"]:  # an agent's alias is proven where it is declared
        _prove_main(reader, aliases[main], dict(models), dict(hosted))
    vision = named.get("vision")
    if isinstance(vision, str) and vision in aliases and aliases[vision]["kind"] not in ("vision", ""):
        reader.fault("vision", "must be an alias of kind vision")
    max_tokens = reader.number("max_tokens", 4096) or 4096
    if reader.bad or identity is None or base_url is None or not isinstance(main, str):
        return None
    return {
        "identity": identity,
        "base_url": base_url,
        "main": main,
        "delegate": str(named.get("delegate", main)),
        "vision": vision,
        "small": str(named.get("small", main)),
        "max_tokens": max_tokens,
    }


def _prove_main(reader: Reader, alias: Alias, models: Dict[str, Model], hosted: Dict[str, HostedModel]) -> None:
    links = {link for chain in alias["chains"].values() for link in chain}
    known = [link for link in links if link.split(":", 1)[1] in (models if link.startswith("model:") else hosted)]
    least = min((link_context(models, hosted, link) for link in known), default=AGENT_CONTEXT)
    if least < AGENT_CONTEXT:
        reader.fault("main", f"an agent's main model needs at least {AGENT_CONTEXT} tokens of context on every link; the least is {least}")


def _one_of(reader: Reader, key: str, known: Container[str]) -> Optional[str]:
    value = reader.data.get(key)
    if isinstance(value, str) and value in known:
        return value
    reader.fault(key, "must be the name of one of fleet_identities")
    return None


def _list(value: Any) -> List[Any]:
    return value if isinstance(value, list) else []

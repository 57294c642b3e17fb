"""Aliases as they are declared: variables -> Declared, or faults. Where their chains lead is `_catalog_chains`."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, TypedDict

from ._catalog_faults import MISSING, Faults, shown
from ._catalog_model import CLASSES, KINDS, LOCAL_TIERS, TIERS
from ._catalog_read import Reader, named

_ALIAS = re.compile(r"t[0-4](-[a-z0-9]+)+")
_KEYS = ("tier", "model", "kind", "agent", "chains", "smaller_context", "description")
_DESCRIPTION = re.compile(r"[^\x00-\x1f\x7f|]{1,200}")


class Declared(TypedDict):
    tier: str
    model: Optional[str]
    kind: Optional[str]
    agent: bool
    smaller_context: bool
    description: str
    chains: Dict[str, List[str]]  # class -> targets as written


def read_aliases(faults: Faults, data: Any) -> Dict[str, Declared]:
    """The aliases that are whole in themselves; a faulty one is reported and left out."""
    entries, is_mapping = named(faults, "fleet_aliases", data, "aliases")
    if is_mapping and not data:
        faults.add("fleet_aliases", MISSING, "must declare at least one alias, such as t3-smart: {tier: T3, model: …}")
    aliases: Dict[str, Declared] = {}
    for name in sorted(entries):
        path = f"fleet_aliases.{name}"
        if not _ALIAS.fullmatch(name):
            faults.add(path, shown(name), "an alias' name is its tier and its job in small letters, such as t3-code")
            continue
        alias = _read_alias(name, Reader(faults, path, entries[name], _KEYS))
        if alias is not None:
            aliases[name] = alias
    return aliases


def _read_alias(name: str, reader: Reader) -> Optional[Declared]:
    if not reader.data:
        if not reader.bad:
            reader.fault("tier", f"must be T{name[1]}")
        return None
    tier = reader.choice("tier", TIERS)
    if not reader.bad and tier != f"T{name[1]}":
        reader.fault("tier", f"must be T{name[1]}, as its name says")
    model = reader.data.get("model")
    if tier in LOCAL_TIERS:
        if not isinstance(model, str) or not model:
            reader.fault("model", f"tier {tier} is local: must name one of fleet_models")
    elif model is not None:
        reader.fault("model", f"tier {tier} is hosted: leave it out and list provider/model in chains")
    kind = reader.choice("kind", KINDS) if reader.data.get("kind") is not None else None
    description = reader.text("description", _DESCRIPTION, "must be one line of at most 200 characters without '|'", required=False)
    declared: Declared = {
        "tier": tier,
        "model": model,
        "kind": kind,
        "agent": reader.flag("agent"),
        "smaller_context": reader.flag("smaller_context"),
        "description": description or "",
        "chains": _read_chains(reader),
    }
    if tier not in LOCAL_TIERS and not any(declared["chains"].values()) and not reader.bad:
        reader.fault("chains", f"tier {tier} is hosted: at least one data class needs a chain")
    return None if reader.bad else declared


def _read_chains(reader: Reader) -> Dict[str, List[str]]:
    chains = Reader(reader.faults, reader.at("chains"), {} if reader.data.get("chains") is None else reader.data["chains"], CLASSES)
    read = {
        name: chains.texts(name, _is_target, "must be an alias or a provider/model, one an entry (no commas, no spaces)")
        for name in CLASSES
    }
    reader.bad = reader.bad or chains.bad
    return read


def _is_target(text: str) -> bool:
    return bool(text) and not re.search(r"[\s,]", text)

"""Catalog -> CATALOG.md, for people. The public rendering shows roles and flows: no names of hosts or people, no addresses, no UUIDs."""

from __future__ import annotations

from collections import Counter
from typing import Iterable, List

from ._catalog_expand import sha256
from ._catalog_hermes import alias_context
from ._catalog_model import CLASSES, TIERS, Alias, Catalog, is_hosted


def catalog_md(catalog: Catalog, public: bool = False) -> str:
    """The text of CATALOG.md."""
    parts = [
        ["# The fleet's catalog", "", f"Rendered from catalog `{sha256(catalog)}`; do not edit.", ""],
        _overrides(catalog),
        _aliases(catalog, public),
        _chains(catalog, public),
        _models(catalog, public),
        _hosts(catalog, public),
        _identities(catalog, public),
    ]
    return "\n".join(line for part in parts for line in part).rstrip("\n") + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> List[str]:
    columns = list(head)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return [*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows), ""]


def _overrides(catalog: Catalog) -> List[str]:
    lines = [
        f"**Test override:** model `{name}` declares {model['declared_context']} tokens of context and serves {model['context']}. Not for production."
        for name, model in sorted(catalog["models"].items())
        if model["declared_context"] is not None
    ]
    return [*lines, ""] if lines else []


def _aliases(catalog: Catalog, public: bool) -> List[str]:
    rows = []
    for name, alias in sorted(catalog["aliases"].items(), key=lambda item: (TIERS.index(item[1]["tier"]), item[0])):
        deployments = len(catalog["placement"][alias["model"]]) if alias["model"] else 0
        row = [f"`{name}`", alias["tier"], alias["kind"], alias["model"] or "hosted", alias_context(catalog, name), deployments]
        rows.append(row if public else [*row, alias["description"]])
    head = ["alias", "tier", "kind", "model", "context", "hosts"]
    return ["## Aliases", "", *_table(head if public else [*head, "description"], rows)]


def _chains(catalog: Catalog, public: bool) -> List[str]:
    rows = [[f"`{name}`", *(_chain(alias, cls, public) for cls in CLASSES)] for name, alias in sorted(catalog["aliases"].items())]
    return [
        "## Where a request goes",
        "",
        "The first link that answers serves it. Hosted links of `internal` need an approval; `restricted` has none.",
        "",
        *_table(["alias", *CLASSES], rows),
    ]


def _chain(alias: Alias, cls: str, public: bool) -> str:
    links = alias["chains"].get(cls)
    if not links:
        return "refused"
    return " → ".join("hosted" if public and is_hosted(link) else link for link in links)


def _models(catalog: Catalog, public: bool) -> List[str]:
    rows = []
    for name, model in sorted(catalog["models"].items()):
        cards = sum(len(slots) for slots in catalog["placement"][name].values())
        row = [f"`{name}`", model["backend"], model["context"], model["parallel"], model["cache_type"], model["memory_mib"], cards]
        rows.append(row if public else [*row, ", ".join(model["labels"]) or "any"])
    head = ["model", "backend", "context", "parallel", "cache", "MiB", "cards that hold it"]
    return ["## Local models", "", *_table(head if public else [*head, "labels"], rows)]


def _hosts(catalog: Catalog, public: bool) -> List[str]:
    cards = [card for host in catalog["hosts"].values() for card in host["cards"]]
    if public:
        sizes = Counter(card["memory_mib"] for card in cards)
        lines = [f"{len(catalog['hosts'])} hosts with {len(cards)} cards:", ""]
        return ["## Cards", "", *lines, *_table(["MiB", "cards"], sorted(sizes.items()))]
    rows = [
        [
            f"`{name}`",
            host["address"],
            "yes" if host["local_only"] else "no",
            card["slot"],
            f"`{card['uuid']}`",
            card["memory_mib"],
            ", ".join(card["labels"]),
        ]
        for name, host in sorted(catalog["hosts"].items())
        for card in host["cards"]
    ]
    return ["## Cards", "", *_table(["host", "address", "local only", "slot", "UUID", "MiB", "labels"], rows)]


def _identities(catalog: Catalog, public: bool) -> List[str]:
    if public:
        roles = Counter(identity["role"] for identity in catalog["identities"])
        rows: List[List[object]] = []
        for role, count in sorted(roles.items()):
            known = [identity for identity in catalog["identities"] if identity["role"] == role]
            aliases = sorted({alias for identity in known for alias in identity["aliases"]})
            rows.append([role, count, ", ".join(f"`{alias}`" for alias in aliases), "yes" if role == "operator" else "no"])
        return ["## Who may ask", "", *_table(["role", "identities", "aliases", "node aliases"], rows)]
    rows = [
        [
            identity["name"],
            identity["role"],
            identity["min_class"],
            ", ".join(f"`{alias}`" for alias in identity["aliases"]),
            "all" if identity["role"] == "operator" else "none",
            ", ".join(identity["tailnet"]) or "—",
        ]
        for identity in catalog["identities"]
    ]
    return ["## Who may ask", "", *_table(["identity", "role", "lowest class", "aliases", "node aliases", "tailnet"], rows)]

"""Which group of the gateway serves an alias for each data class: the one place that gateway configuration and grants agree on.

The plain name of an alias is its most restricted chain; a class with another chain gets a group of its own (`t3-code@public`). So a
request whose class was lost never goes further than the strictest one.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional

from ._catalog_model import CLASSES, Catalog, is_hosted


class Group(NamedTuple):
    """One model group of the gateway: its links in order; the first is its own deployments, the rest its fallbacks."""

    name: str
    alias: str
    links: List[str]


class Groups(NamedTuple):
    """All groups of one gateway, and class -> alias -> group."""

    groups: Dict[str, Group]
    routes: Dict[str, Dict[str, Group]]


def group_chains(catalog: Catalog, local_only: bool = False) -> Groups:
    """Groups and routes of a gateway; `local_only` leaves out every hosted link, and what then has none left."""
    groups: Dict[str, Group] = {}
    routes: Dict[str, Dict[str, Group]] = {cls: {} for cls in CLASSES}
    for alias in sorted(catalog["aliases"]):
        plain: Optional[Group] = None
        made: Dict[str, Group] = {}
        for cls in reversed(CLASSES):
            chain = catalog["aliases"][alias]["chains"].get(cls, [])
            links = [link for link in chain if not (local_only and is_hosted(link))]
            if not links:
                continue
            same = next((group for group in made.values() if group.links == links), None)
            group = same or Group(alias if plain is None else f"{alias}@{cls}", alias, links)
            plain = plain or group
            made[cls] = groups[group.name] = routes[cls][alias] = group
    return Groups(groups, routes)


def node_aliases(catalog: Catalog) -> Dict[str, tuple[str, str]]:
    """`host/alias` -> (host, alias), for every alias with a local model on every host that can hold it."""
    return {
        f"{host}/{alias}": (host, alias)
        for alias, settings in sorted(catalog["aliases"].items())
        if settings["model"] is not None
        for host in sorted(catalog["placement"][settings["model"]])
    }

"""Catalog -> what would happen to one request: served by which chain on which cards, or refused by which layer and why. Takes no lease."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ._catalog_groups import group_chains, node_aliases
from ._catalog_memory import holds
from ._catalog_model import CLASSES, Catalog, is_hosted


def explain(catalog: Catalog, identity: str, alias: str, data_class: str, public: bool = False) -> Dict[str, Any]:
    """The way of a request of this identity, alias and class. `public`: no names of hosts or people, no UUIDs."""
    answer: Dict[str, Any] = {
        "identity": "(an identity)" if public else identity,
        "alias": alias.split("/", 1)[-1] if public else alias,
        "class": data_class,
        "allowed": False,
        "layer": None,
        "reason": None,
        "tier": None,
        "chain": [],
        "needs_approval": False,
        "hosts": [],
        "lines": [],
    }
    refused = _refusal(catalog, identity, alias, data_class)
    host, name = node_aliases(catalog).get(alias, (None, alias))
    if name in catalog["aliases"]:
        answer["tier"] = catalog["aliases"][name]["tier"]
        chain = catalog["aliases"][name]["chains"].get(data_class, [])
        answer["chain"] = chain[:1] if host else list(chain)
    if refused is not None:
        answer["layer"] = refused[0]
        answer["reason"] = _role_only(catalog, identity, refused[1]) if public else refused[1]
        answer["chain"] = []
        answer["lines"] = _lines(answer)
        return answer
    answer["allowed"] = True
    answer["needs_approval"] = data_class == "internal" and any(is_hosted(link) for link in answer["chain"])
    answer["reason"] = "served by the first link that answers" + (
        "; hosted links only with an approval, without one the restricted chain" if answer["needs_approval"] else ""
    )
    answer["hosts"] = _cards(catalog, answer["chain"], host, public)
    if public:
        answer["chain"] = ["hosted" if is_hosted(link) else link for link in answer["chain"]]
    answer["lines"] = _lines(answer)
    return answer


def _lines(answer: Dict[str, Any]) -> List[str]:
    """The answer for a terminal."""
    lines = [
        f"{answer['identity']} asks for {answer['alias']} with {answer['class']} data: {'allowed' if answer['allowed'] else 'refused'}",
        f"tier: {answer['tier'] or 'unknown'}",
        f"chain: {' → '.join(answer['chain']) or 'none'}",
    ]
    if not answer["allowed"]:
        return [*lines, f"refused by: {answer['layer']}", f"reason: {answer['reason']}"]
    lines.append(answer["reason"])
    for host in answer["hosts"]:
        cards = ", ".join(
            f"{card['slot']} {card['uuid']} ({card['memory_mib']} MiB)" if "slot" in card else f"{card['memory_mib']} MiB"
            for card in host["cards"]
        )
        lines.append(f"{host['link']} ({host['needs_mib']} MiB) on {host['host']}: {cards}")
    return lines


def _refusal(catalog: Catalog, identity: str, alias: str, data_class: str) -> Optional[tuple[str, str]]:
    """(layer, reason) of the first layer that refuses; layers in the order in which a request meets them."""
    known = next((one for one in catalog["identities"] if one["name"] == identity), None)
    if known is None:
        return "authentication", f"there is no identity {identity} in fleet_identities: its key answers 401"
    if data_class not in CLASSES:
        return "data class", f"{data_class} is none of {', '.join(CLASSES)}: 400"
    if CLASSES.index(data_class) < CLASSES.index(known["min_class"]):
        return "data class", f"{identity}'s key has min_class {known['min_class']}: {data_class} is below it: 403"
    nodes = node_aliases(catalog)
    if "/" in alias:
        if known["role"] != "operator":
            return "grants", f"{alias} is a node alias and {identity} has the role {known['role']}: operators only: 403"
        if alias not in nodes:
            return "placement", f"{alias} has no card: no such host or alias, or no card of that host holds the model"
        return None
    if alias not in catalog["aliases"]:
        return "grants", f"there is no alias {alias} in fleet_aliases: 403"
    if alias not in known["aliases"]:
        return "grants", f"{identity} is not granted {alias} (tier {catalog['aliases'][alias]['tier']}): 403"
    if alias not in group_chains(catalog).routes[data_class]:
        return "data class", f"{alias} has no chain for {data_class} requests (it would leave the fleet): 403"
    return None


def _cards(catalog: Catalog, chain: List[str], only: Optional[str], public: bool) -> List[Dict[str, Any]]:
    """Eligible hosts and cards of each local link, in the chain's order."""
    eligible = []
    for link in chain:
        if is_hosted(link):
            continue
        model = catalog["models"][link.split(":", 1)[1]]
        for host in sorted(catalog["placement"][link.split(":", 1)[1]]):
            if only not in (None, host):
                continue
            cards = [card for card in catalog["hosts"][host]["cards"] if holds(card, model)]
            shown = [
                {"memory_mib": card["memory_mib"]} if public else {key: card[key] for key in ("slot", "uuid", "memory_mib")}
                for card in cards
            ]
            eligible.append({"link": link, "host": "(a host)" if public else host, "needs_mib": model["memory_mib"], "cards": shown})
    return eligible


def _role_only(catalog: Catalog, identity: str, reason: str) -> str:
    """The reason without names of people and hosts."""
    for host in sorted(catalog["hosts"], key=len, reverse=True):
        reason = reason.replace(f"{host}/", "HOST/")
    return reason.replace(identity, "the identity")

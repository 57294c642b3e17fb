"""Cards that were found on a host -> commented host variables for a person to check and keep."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ._catalog_faults import Faults
from ._catalog_input import split
from ._catalog_memory import holds
from ._catalog_model import Card, Model
from ._catalog_models import read_backend_labels, read_models
from ._catalog_read import plain

# Compute capability -> label, newest first (NVIDIA's table of CUDA GPUs).
_GENERATIONS = ((10.0, "blackwell"), (9.0, "hopper"), (8.9, "ada"), (8.0, "ampere"), (7.5, "turing"), (7.0, "volta"), (6.0, "pascal"))
_SMI_FIELDS = ("uuid", "memory_mib", "name", "pci", "compute_capability", "mig")


def discovered_host_vars(found: List[Dict[str, Any]], inventory: Mapping[str, Mapping[str, Any]], host: str, address: str) -> str:
    """YAML text for host_vars. `found` is the list `cards` of module gpu_info (uuid, memory_mib, and what else is known)."""
    variables = plain(dict(inventory.get(host, {})))
    known = {
        str(card["uuid"]).lower(): card
        for card in (variables.get("fleet_cards") or [])
        if isinstance(card, dict) and card.get("uuid") and card.get("slot")
    }
    lines = [
        "---",
        f"# {host}, found by playbooks/discover.yml. Check it and keep it as host_vars/{host}.yml.",
        "# A slot names a card's place for good: keep it when a card is replaced. What fits follows from fleet_models.",
        "",
        "# The address that the other hosts reach this host by (tailnet or private network).",
        f"fleet_address: {variables.get('fleet_address') or address}",
        "fleet_cards:",
    ]
    models = _models(inventory)
    aliases = _aliases(inventory)
    slots = {card["slot"] for card in known.values()}
    whole = [card for card in found if card.get("uuid") and card.get("memory_mib")]
    for card in sorted(whole, key=lambda card: (str(card.get("pci") or ""), str(card["uuid"]))):
        kept = known.get(str(card["uuid"]).lower())
        slot = kept["slot"] if kept else _free_slot(slots)
        slots.add(slot)
        label = generation(card.get("compute_capability"))
        labels = list(kept.get("labels") or []) if kept else [label] if label else []
        entry: Card = {"slot": slot, "uuid": str(card["uuid"]), "memory_mib": int(card["memory_mib"]), "labels": labels}
        fit_labels = sorted({*labels, *(variables.get("fleet_labels") or [])})
        lines += [f"  # {_what(card)}", *_fits({**entry, "labels": fit_labels}, models, aliases)]
        lines.append(f"  - {{slot: {slot}, uuid: {entry['uuid']}, memory_mib: {entry['memory_mib']}, labels: [{', '.join(labels)}]}}")
    if not whole:
        lines[-1] = "fleet_cards: [] # no card answered: is the driver loaded?"
    for card in found:
        if card not in whole:
            lines.append(f"# A card did not answer: {card.get('state', 'unknown')}: {' '.join(str(card.get('message') or '').split())}")
    gone = sorted(set(known) - {str(card["uuid"]).lower() for card in whole})
    lines += [f"# {known[uuid]['slot']} ({known[uuid]['uuid']}) is in the inventory and was not found." for uuid in gone]
    return "\n".join(lines) + "\n"


def smi_cards(text: str) -> List[Dict[str, Any]]:
    """Cards out of `nvidia-smi --query-gpu=uuid,memory.total,name,pci.bus_id,compute_cap,mig.mode.current --format=csv,noheader,nounits`."""
    cards: List[Dict[str, Any]] = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_SMI_FIELDS) or not fields[1].isdigit():
            cards.append({"uuid": None, "state": "error", "message": line})
            continue
        card: Dict[str, Any] = dict(zip(_SMI_FIELDS, fields))
        cards.append({**card, "memory_mib": int(fields[1]), "mig": fields[5] == "Enabled"})
    return cards


def generation(capability: Any) -> Optional[str]:
    """The label of a card's generation, None when it is not known."""
    try:
        number = float(capability)
    except (TypeError, ValueError):
        return None
    return next((label for least, label in _GENERATIONS if number >= least), None)


def _models(inventory: Mapping[str, Mapping[str, Any]]) -> Dict[str, Model]:
    """The local models that are whole; faults are validate.yml's business."""
    faults = Faults()
    _hosts, fleet = split(faults, inventory)
    return read_models(faults, fleet.get("fleet_models"), read_backend_labels(faults, fleet.get("fleet_backend_labels"))) if fleet else {}


def _aliases(inventory: Mapping[str, Mapping[str, Any]]) -> Dict[str, str]:
    _hosts, fleet = split(Faults(), inventory)
    declared = fleet.get("fleet_aliases") if fleet else None
    return {
        str(name): alias["model"]
        for name, alias in sorted(declared.items() if isinstance(declared, dict) else [], key=lambda item: str(item[0]))
        if isinstance(alias, dict) and isinstance(alias.get("model"), str)
    }


def _fits(card: Card, models: Dict[str, Model], aliases: Dict[str, str]) -> List[str]:
    fits, lacks = [], []
    for alias, name in aliases.items():
        model = models.get(name)
        if model is None:
            continue
        if holds(card, model):
            fits.append(alias)
        elif model["memory_mib"] > card["memory_mib"]:
            lacks.append(f"{alias} ({model['memory_mib']} MiB)")
        else:
            lacks.append(f"{alias} (labels {', '.join(sorted(set(model['labels']) - set(card['labels'])))})")
    lines = [f"  # Fits: {', '.join(fits) or 'no alias'}"]
    return [*lines, f"  # Does not fit: {', '.join(lacks)}"] if lacks else lines


def _what(card: Dict[str, Any]) -> str:
    parts = [
        card.get("name"),
        card.get("pci"),
        f"compute capability {card['compute_capability']}" if card.get("compute_capability") else None,
    ]
    text = ", ".join(" ".join(str(part).split()) for part in parts if part) or "a card"
    return text + (
        ", MIG is enabled: give its instances' UUIDs (fleet_pool.supervisor: process) or switch it off" if card.get("mig") else ""
    )


def _free_slot(taken: set[str]) -> str:
    return next(f"c{number}" for number in range(len(taken) + 1) if f"c{number}" not in taken)

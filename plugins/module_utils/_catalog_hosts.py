"""Hosts and their cards: host variables -> Host, or faults."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Dict, List, Optional, Tuple

from ._catalog_faults import HIDDEN, MISSING, Faults, shown
from ._catalog_input import HOST_VARIABLES
from ._catalog_model import Card, Host
from ._catalog_pool_settings import mines, read_pool_settings
from ._catalog_read import LABEL, LABEL_WORDS, Reader

_SLOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UUID_WORDS = "must be the card's NVML UUID: GPU- and 32 hex digits in groups of 8-4-4-4-12 (nvidia-smi -L shows it)"
_MIG = re.compile(r"MIG-[0-9A-Za-z/-]{8,}")
# Reachable from inside only: private use, tailnets (100.64.0.0/10), this host, this link.
_INSIDE = [
    ipaddress.ip_network(net)
    for net in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "fc00::/7",
        "fe80::/10",
        "::1/128",
    )
]


def read_hosts(faults: Faults, inventory: Dict[str, Dict[str, Any]]) -> Dict[str, Host]:
    """The hosts that are whole; a faulty one is reported and left out."""
    hosts: Dict[str, Host] = {}
    by_host: Dict[str, _HostFaults] = {}
    for name, variables in inventory.items():
        by_host[name] = _HostFaults()
        host = _read_host(by_host[name], variables)
        if host is not None:
            hosts[name] = host
    _report(faults, by_host)
    _report_shared(faults, inventory)
    return hosts


def _read_host(scoped: _HostFaults, variables: Dict[str, Any]) -> Optional[Host]:
    reader = Reader(scoped, "", {key: variables.get(key) for key in HOST_VARIABLES}, HOST_VARIABLES)
    labels = reader.texts("fleet_labels", LABEL.fullmatch, LABEL_WORDS)
    settings = variables.get("fleet_pool")
    pool = read_pool_settings(scoped, settings)
    address = _read_address(reader, reader.flag("fleet_firewall_enabled"))
    cards = _read_cards(scoped, variables.get("fleet_cards"), labels, settings.get("supervisor") if isinstance(settings, dict) else None)
    wallet = variables.get("gpu_miner_wallet")
    if mines(settings) and not (isinstance(wallet, str) and wallet.strip()):
        scoped.add(
            "gpu_miner_wallet",
            MISSING if wallet is None else "(empty)" if wallet == "" else HIDDEN,
            "must be the wallet that idle cards mine to, or fleet_pool.idle_workload must be {driver: none}",
        )
    local_only = reader.flag("fleet_local_only")
    if address is None or cards is None or pool is None or reader.bad:
        return None
    return {"address": address, "local_only": local_only, "cards": cards, "pool": pool}


class _HostFaults(Faults):
    """Faults of one host; kept until all hosts are read, so that a fault of every host can be one line."""

    def __init__(self) -> None:
        super().__init__()
        self.found: List[Tuple[str, str, str]] = []

    def add(self, path: str, found: str, allowed: str) -> None:
        self.found.append((path, found, allowed))


def _report(faults: Faults, by_host: Dict[str, _HostFaults]) -> None:
    where: Dict[Tuple[str, str, str], List[str]] = {}
    for name, scoped in by_host.items():
        for fault in scoped.found:
            if faults.is_unreadable(f"{name}: {fault[0].split('.')[0].split('[')[0]}"):
                continue
            where.setdefault(fault, []).append(name)
    for (path, found, allowed), names in where.items():
        for name in ["every host"] if len(names) == len(by_host) > 1 else names:
            faults.add(f"{name}: {path}", found, allowed)


def _read_address(reader: Reader, firewall: bool) -> Optional[str]:
    text = reader.text("fleet_address", None, "must be the IP address that other hosts reach this host by")
    if text is None:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        reader.fault("fleet_address", "must be an IP address without port or name")
        return None
    if address.is_unspecified or address.is_multicast:
        reader.fault("fleet_address", "must be one address that other hosts reach this host by")
        return None
    if not firewall and not any(address in net for net in _INSIDE if net.version == address.version):
        reader.fault("fleet_address", "is a public address: use the tailnet's or a private one, or set fleet_firewall_enabled: true")
        return None
    return str(address)


def _read_cards(faults: Faults, data: Any, host_labels: List[str], supervisor: Any) -> Optional[List[Card]]:
    if not isinstance(data, list) or not data:
        faults.add("fleet_cards", MISSING if data is None else shown(data), "must list at least one card {slot, uuid, memory_mib}")
        return None
    cards: List[Card] = []
    slots: Dict[str, int] = {}
    uuids: Dict[str, int] = {}
    whole = True
    for index, item in enumerate(data):
        reader = Reader(faults, f"fleet_cards[{index}]", item, ("slot", "uuid", "memory_mib", "labels"))
        if not reader.data:
            whole = False
            continue
        slot = reader.text("slot", _SLOT, "must be 1 to 32 letters, digits, '_' or '-', such as c0")
        uuid = reader.text("uuid", None, _UUID_WORDS)
        if uuid is not None and _MIG.fullmatch(uuid):
            if supervisor != "process":
                reader.fault("uuid", "MIG instances need fleet_pool.supervisor: process; under systemd give whole cards")
        elif uuid is not None and not _UUID.fullmatch(uuid):
            reader.fault("uuid", _UUID_WORDS)
        memory = reader.number("memory_mib", required=True)
        labels = reader.texts("labels", LABEL.fullmatch, LABEL_WORDS)
        for key, value, seen in (("slot", slot, slots), ("uuid", uuid, uuids)):
            if value is not None and seen.setdefault(value.lower(), index) != index:
                reader.fault(key, f"is fleet_cards[{seen[value.lower()]}].{key} already: each card needs its own")
        if reader.bad or slot is None or uuid is None or memory is None:
            whole = False
            continue
        cards.append({"slot": slot, "uuid": uuid, "memory_mib": memory, "labels": sorted({*labels, *host_labels})})
    return sorted(cards, key=lambda card: card["slot"]) if whole else None


def _report_shared(faults: Faults, inventory: Dict[str, Dict[str, Any]]) -> None:
    """An address or UUID that two hosts claim."""
    addresses: Dict[str, str] = {}
    uuids: Dict[str, str] = {}
    for name, variables in inventory.items():
        address = variables.get("fleet_address")
        if isinstance(address, str) and addresses.setdefault(address, name) != name:
            faults.add(f"{name}: fleet_address", shown(address), f"is {addresses[address]}'s already: each host needs its own")
        cards = variables.get("fleet_cards")
        for index, card in enumerate(cards if isinstance(cards, list) else []):
            uuid = card.get("uuid") if isinstance(card, dict) else None
            if isinstance(uuid, str) and uuids.setdefault(uuid.lower(), name) != name:
                faults.add(f"{name}: fleet_cards[{index}].uuid", shown(uuid), f"is on {uuids[uuid.lower()]} already: a card is on one host")

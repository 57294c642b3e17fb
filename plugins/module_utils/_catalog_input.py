"""Which variables make the catalog, and which of them must be the same on every host."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Tuple

from ._catalog_faults import MISSING, Faults, shown
from ._catalog_read import NAME, NAME_WORDS, plain

HOST_VARIABLES = (
    "fleet_address",
    "fleet_cards",
    "fleet_labels",
    "fleet_local_only",
    "fleet_firewall_enabled",
    "fleet_pool",
    "gpu_miner_wallet",
)
FLEET_VARIABLES = (
    "fleet_models",
    "fleet_backend_labels",
    "fleet_aliases",
    "fleet_hosted_providers",
    "fleet_identities",
    "fleet_pool_token",
    "fleet_pool_tokens_accepted",
    "fleet_aperture",
    "fleet_hermes",
)
UNREADABLE = "__fleet_input_unreadable__"  # marks a variable whose template failed; the fault says why

Inventory = Mapping[str, Mapping[str, Any]]


def pick(hostvars: Mapping[str, Mapping[str, Any]], hosts: Iterable[str]) -> Dict[str, Dict[str, Any]]:
    """Only the catalog's variables of these hosts. A variable that cannot be templated is kept as a marked message."""
    picked: Dict[str, Dict[str, Any]] = {}
    for host in hosts:
        variables, values = hostvars[host], {}
        for name in HOST_VARIABLES + FLEET_VARIABLES:
            try:
                if name in variables:
                    values[name] = plain(variables[name])
            except Exception as error:  # whatever a template raises is the operator's fault line, beside all the others
                values[name] = {UNREADABLE: str(error)}
        picked[str(host)] = values
    return picked


def split(faults: Faults, inventory: Any) -> Tuple[Dict[str, Dict[str, Any]], Dict[str, Any]]:
    """(host -> its variables, the fleet's variables). Reports no hosts, bad names, unreadable variables and variables that differ between hosts."""
    if not isinstance(inventory, Mapping) or not inventory:
        faults.add("gpu_hosts", MISSING if not inventory else shown(inventory), "the inventory group needs at least one host")
        return {}, {}
    hosts: Dict[str, Dict[str, Any]] = {}
    for name in sorted(inventory, key=str):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            faults.add("gpu_hosts", shown(name), "a host's name " + NAME_WORDS)
        variables = inventory[name]
        hosts[str(name)] = dict(variables) if isinstance(variables, Mapping) else {}
    _report_unreadable(faults, hosts)
    return hosts, _common(faults, hosts)


def _report_unreadable(faults: Faults, hosts: Dict[str, Dict[str, Any]]) -> None:
    for name, variables in hosts.items():
        for variable, value in variables.items():
            if isinstance(value, Mapping) and UNREADABLE in value:
                path = variable if variable in FLEET_VARIABLES else f"{name}: {variable}"
                faults.add_unreadable(path, str(value[UNREADABLE]).split("\n", maxsplit=1)[0])
                variables[variable] = None


def _common(faults: Faults, hosts: Dict[str, Dict[str, Any]]) -> Dict[str, Any]:
    first = next(iter(hosts))
    common = {name: hosts[first].get(name) for name in FLEET_VARIABLES}
    for name, value in common.items():
        others = [host for host, variables in hosts.items() if variables.get(name) != value]
        if others:
            faults.add(
                name, f"{first} and {others[0]} have different values", "must be the same on every host: set it for the group gpu_hosts"
            )
    return {name: plain(value) for name, value in common.items()}

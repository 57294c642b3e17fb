"""`expand()`: the inventory's variables -> the proven catalog, or every fault at once. Pure: same input, same bytes, in any order."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping, Set

from ._catalog_aliases import read_aliases
from ._catalog_chains import Chains
from ._catalog_faults import CatalogError, Faults, shown
from ._catalog_hosts import read_hosts
from ._catalog_identities import check_accepted_tokens, check_pool_token, read_aperture, read_hermes, read_identities
from ._catalog_input import split
from ._catalog_memory import best_card, place
from ._catalog_model import Alias, Catalog, Host, HostedModel, Model
from ._catalog_models import read_backend_labels, read_hosted, read_models

VERSION = 1


def expand(inventory: Any) -> Catalog:
    """`{host: {variable: value}}` -> catalog. Raises CatalogError with every fault, each with its variable's path."""
    faults = Faults()
    hosts_in, fleet = split(faults, inventory)
    if not hosts_in:
        raise CatalogError(faults.lines())
    check_pool_token(faults, fleet["fleet_pool_token"])
    check_accepted_tokens(faults, fleet["fleet_pool_tokens_accepted"])
    hosts = read_hosts(faults, hosts_in)
    models = read_models(faults, fleet["fleet_models"], read_backend_labels(faults, fleet["fleet_backend_labels"]))
    hosted = read_hosted(faults, fleet["fleet_hosted_providers"])
    declared = read_aliases(faults, fleet["fleet_aliases"])
    known_aliases, known_models = _Names.of(faults, fleet, "fleet_aliases"), _Names.of(faults, fleet, "fleet_models")
    providers = _Names.of(faults, fleet, "fleet_hosted_providers")
    chains = Chains(
        faults,
        declared=declared,
        models=models,
        hosted=hosted,
        known_aliases=known_aliases,
        known_models=known_models,
        known_hosted=_hosted_keys(providers, fleet["fleet_hosted_providers"]),
        hosts=set(hosts_in),
    )
    aliases = chains.aliases()
    _report_names(faults, set(hosts_in), known_models, known_aliases, providers)
    _report_ambiguous(faults, hosted, known_aliases | known_models)
    placement = place(hosts, models)
    unread = [variables.get("fleet_cards") for host, variables in hosts_in.items() if host not in hosts]
    _report_homeless(faults, aliases, models, hosts=hosts, placement=placement, largest_unread=_largest_unread(unread))
    identities = read_identities(faults, fleet["fleet_identities"], aliases, known_aliases, set(hosts_in))
    known_identities = _identity_names(faults, fleet["fleet_identities"])
    catalog: Catalog = {
        "version": VERSION,
        "hosts": hosts,
        "models": models,
        "hosted": hosted,
        "aliases": aliases,
        "identities": identities,
        "placement": placement,
        "aperture": read_aperture(faults, fleet["fleet_aperture"], identities, known_identities),
        "hermes": read_hermes(
            faults, fleet["fleet_hermes"], identities=identities, known=known_identities, aliases=aliases, models=models, hosted=hosted
        ),
    }
    found = faults.lines()
    if found:
        raise CatalogError(found)
    return catalog


def faults_of(inventory: Any) -> List[str]:
    """Every fault of these variables, [] when there is none."""
    try:
        expand(inventory)
    except CatalogError as error:
        return error.faults
    return []


def sha256(catalog: Catalog) -> str:
    """The catalog's digest: what gateways serve and acceptance compares."""
    return hashlib.sha256(json.dumps(catalog, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class _Names(Set[str]):
    """The names that a variable declares, faulty entries included. Of a variable that is no mapping nothing is known: `x in names` is then true."""

    unknown = False

    @classmethod
    def of(cls, faults: Faults, fleet: Mapping[str, Any], variable: str) -> _Names:
        data = fleet[variable]
        names = cls(key for key in data if isinstance(key, str)) if isinstance(data, Mapping) else cls()
        names.unknown = faults.is_unreadable(variable) or not (data is None or isinstance(data, Mapping))
        return names

    def __contains__(self, name: object) -> bool:
        return self.unknown or super().__contains__(name)


def _hosted_keys(providers: _Names, data: Any) -> _Names:
    names = _Names()
    names.unknown = providers.unknown
    for name in providers:
        models = data[name].get("models") if isinstance(data[name], Mapping) else None
        names |= {f"{name}/{model}" for model in models} if isinstance(models, Mapping) else set()
    return names


def _identity_names(faults: Faults, data: Any) -> _Names:
    names = _Names()
    names.unknown = not isinstance(data, list) or not data
    for item in [] if names.unknown else data:
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            names.add(item["name"])
    return names


def _report_names(faults: Faults, hosts: Set[str], models: Set[str], aliases: Set[str], providers: Set[str]) -> None:
    """Names that two kinds of things share: `x/y` and a model's name must each mean one thing."""
    groups = (("fleet_models", models), ("fleet_aliases", aliases), ("fleet_hosted_providers", providers))
    owner: Dict[str, str] = dict.fromkeys(hosts, "a host of gpu_hosts")
    for variable, names in groups:
        for name in sorted(names):
            if name in owner:
                faults.add(
                    f"{variable}.{name}",
                    shown(name),
                    f"is {owner[name]} already: hosts, models, aliases and providers need names of their own",
                )
            owner.setdefault(name, f"one of {variable}")


def _report_ambiguous(faults: Faults, hosted: Dict[str, HostedModel], local: Set[str]) -> None:
    """LiteLLM also answers to `openai/<name>`: that must not mean a local and a hosted deployment at once."""
    for model in hosted.values():
        prefix, name = model["litellm"].split("/", 1)
        if prefix == "openai" and name in local:
            path = f"fleet_hosted_providers.{model['provider']}.models.{name}"
            faults.add(path, shown(name), "is the name of a local model or alias already: the gateway could not tell them apart")


def _largest_unread(cards_of_hosts: List[Any]) -> float:
    """MiB of the largest card on hosts with a fault of their own; infinite where that cannot be told. Such a card may be the one that holds a model."""
    largest = 0.0
    for cards in cards_of_hosts:
        for card in cards if isinstance(cards, list) and cards else [None]:
            memory = card.get("memory_mib") if isinstance(card, dict) else None
            largest = max(largest, memory if isinstance(memory, int) and not isinstance(memory, bool) else float("inf"))
    return largest


def _report_homeless(
    faults: Faults,
    aliases: Dict[str, Alias],
    models: Dict[str, Model],
    *,
    hosts: Dict[str, Host],
    placement: Dict[str, Dict[str, List[str]]],
    largest_unread: float,
) -> None:
    for name, alias in aliases.items():
        model = alias["model"]
        if model is None or model not in models or placement[model]:
            continue
        need = models[model]["memory_mib"]
        if need <= largest_unread:
            continue
        labels = models[model]["labels"]
        faults.add(
            f"fleet_aliases.{name}.model",
            f"{model} needs {need} MiB{' and ' + ', '.join(labels) if labels else ''}",
            f"no card can hold it: {best_card(hosts, labels)}",
        )

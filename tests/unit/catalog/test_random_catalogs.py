"""Random fleets, whole and broken: what expands keeps every promise when it is rendered and read back, what does not is refused in words."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_aperture import aperture_config, aperture_faults
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import expand, sha256
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_explain import explain
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_faults import CatalogError
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_grants import gateway_grants
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_hermes import hermes_input
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_litellm import litellm_config
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_md import catalog_md
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_pool import pool_config, watchdog_peers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lease_pool import config as pool
from tests.support.fleets import TOKEN, WALLET, fleet, host_variables, key_sha256
from tests.support.router_graph import RouterGraph

CLASSES = ("public", "internal", "restricted")
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)  # without `explain`, which traces every line
ROOT = Path(__file__).resolve().parents[3]
FAULT = re.compile(r"\S[^\n]*: [^\n]+: [^\n]+")


def is_broken(inventory: dict[str, Any]) -> str | None:
    """Judges the declared variables by itself: what of the promises could not hold? Knows nothing of how `expand` works."""
    fleet_vars = next(iter(inventory.values()))
    aliases, providers = fleet_vars["fleet_aliases"], fleet_vars["fleet_hosted_providers"]
    hosted = {f"{p}/{m}": settings["classes"] for p, settings in providers.items() for m in settings["models"]}
    for name, alias in aliases.items():
        for cls in CLASSES:
            stack: list[tuple[str, tuple[str, ...]]] = [(name, ())]
            while stack:
                current, way = stack.pop()
                if current in way:
                    return "loop"
                for target in aliases[current].get("chains", {}).get(cls, []):
                    if target in hosted:
                        if cls == "restricted" or cls not in hosted[target]:
                            return "leak"
                    elif not aliases[target].get("model") and not aliases[target].get("chains", {}).get(cls):
                        return "dead end"
                    else:
                        stack.append((target, (*way, current)))
        model = fleet_vars["fleet_models"].get(alias.get("model"))
        if model and not any(
            card["memory_mib"] >= model["memory_mib"] and set(model["labels"]) <= set(card["labels"])
            for host in inventory.values()
            for card in host["fleet_cards"]
        ):
            return "homeless"
    return None


@st.composite
def inventories(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Fleets of 1–3 hosts, 1–3 models, 2–6 aliases with random chains; about half of them cannot keep their promises."""
    memory = st.sampled_from([8192, 12288, 24576])
    labels = st.lists(st.sampled_from(["ampere", "cuda12"]), unique=True)
    models = {
        f"m{n}": {
            "kind": "chat",
            "file": "/m.gguf",
            "context": 65536,
            "memory_mib": draw(st.sampled_from([2000, 8192, 12000, 20000])),
            "labels": draw(st.one_of(st.just([]), labels)),
            "parallel": draw(st.integers(1, 3)),
        }
        for n in range(draw(st.integers(1, 3)))
    }
    providers = {
        f"p{n}": {
            "litellm": "anthropic",
            "key_env": f"FLEET_P{n}",
            "classes": draw(st.sampled_from([["public"], ["public", "internal"], ["internal"]])),
            "models": {"big": {"context": 65536}, "org/huge": {"context": 65536}},
        }
        for n in range(draw(st.integers(0, 2)))
    }
    hosted = sorted(f"{p}/{m}" for p in providers for m in ("big", "org/huge"))
    tiers = draw(st.lists(st.sampled_from(["t3", "t4", "t1"] if hosted else ["t3", "t4"]), min_size=2, max_size=6))
    names = [f"{tier}-a{n}" for n, tier in enumerate(tiers)]
    aliases: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(names):
        wild = draw(st.integers(0, 7)) == 0  # wild ones may lead anywhere: back, to themselves, out
        later = names if wild else [other for other in names[place + 1 :] if other[:2] != "t1"]
        chains = {}
        for cls in CLASSES:
            fitting = [target for target in hosted if wild or (cls != "restricted" and cls in providers[target.split("/")[0]]["classes"])]
            chains[cls] = draw(st.lists(st.sampled_from(later + fitting), max_size=3, unique=True)) if later + fitting else []
        if name[:2] == "t1":
            if not any(chains.values()):
                chains["public" if "public" in providers[hosted[0].split("/")[0]]["classes"] else "internal"] = [hosted[0]]
            aliases[name] = {"tier": "T1", "chains": chains}
        else:
            aliases[name] = {"tier": name[:2].upper(), "model": draw(st.sampled_from(sorted(models))), "chains": chains}
    identities = [
        {"name": "op", "role": "operator", "key_sha256": key_sha256("op"), "tiers": ["T1", "T3", "T4"], "min_class": "public", "tailnet": ["op@x.y"]},
        {"name": "agent", "role": "agent", "key_sha256": key_sha256("agent"), "tiers": ["T1", "T3", "T4"], "tailnet": ["tag:agent"],
         "min_class": draw(st.sampled_from(CLASSES))},
    ]  # fmt: skip
    common = {
        "fleet_models": models,
        "fleet_aliases": aliases,
        "fleet_hosted_providers": providers,
        "fleet_identities": identities,
        "fleet_aperture": {"admin": "root@x.y", "identity": "op"},
        "fleet_pool_token": TOKEN,
        "gpu_miner_wallet": WALLET,
    }
    inventory = {}
    for number in range(1, draw(st.integers(1, 3)) + 1):
        host = host_variables(number, cards=draw(st.integers(1, 3)))
        for card in host["fleet_cards"]:
            card.update(memory_mib=draw(memory), labels=draw(labels))
        host["fleet_local_only"] = draw(st.booleans())
        inventory[f"gpu-{number}"] = {**host, **copy.deepcopy(common)}
    return inventory


def shuffled(value: Any, order: random.Random) -> Any:
    """The same data with every mapping's order changed; chains and argv have an order that counts."""
    if isinstance(value, dict):
        keys = list(value)
        order.shuffle(keys)
        return {key: shuffled(value[key], order) for key in keys}
    return [shuffled(item, order) for item in value] if isinstance(value, list) else value


def reordered(inventory: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same fleet in another order: hosts, every mapping, cards, identities."""
    order = random.Random(seed)
    changed: dict[str, Any] = shuffled(inventory, order)
    for variables in changed.values():
        order.shuffle(variables["fleet_cards"])
        random.Random(seed).shuffle(variables["fleet_identities"])  # a group variable: the same on every host
    return changed


def attempt(inventory: Any) -> tuple[Any, list[str]]:
    """(catalog, []) or (None, faults)."""
    try:
        return expand(inventory), []
    except CatalogError as error:
        return None, error.faults


def without_places(line: str) -> str:
    """A fault without the places in lists whose order was changed."""
    return re.sub(r"fleet_(identities|cards)\[\d+\]", r"fleet_\1", line)


def renderings(catalog: Any) -> list[str]:
    """Every rendering of a catalog, as text."""
    texts = [sha256(catalog), catalog_md(catalog), catalog_md(catalog, public=True)]
    for local_only in (False, True):
        texts += [litellm_config(catalog, local_only), json.dumps(gateway_grants(catalog, local_only))]
    for host in catalog["hosts"]:
        texts += [json.dumps(pool_config(catalog, host)), json.dumps(watchdog_peers(catalog, host))]
    if catalog["aperture"] and not all(host["local_only"] for host in catalog["hosts"].values()):
        texts.append(aperture_config(catalog))
    if catalog["hermes"]:
        texts.append(json.dumps(hermes_input(catalog)))
    return texts


def check_nothing_restricted_leaves(grants: dict[str, Any], graph: RouterGraph, alone: RouterGraph) -> None:
    """By any name that a restricted request may use, and by any name at all on a local-only host."""
    entries = {name for key in grants["keys"].values() for name in key["models"]["local"]}
    for route in grants["routes"]["restricted"].values():
        entries |= {route["group"], *route["fallbacks"]}
    assert [leak for entry in sorted(entries) for leak in graph.leaks(entry)] == []
    assert [leak for entry in alone.by_name for leak in alone.leaks(entry)] == []


def check_classes(declared: dict[str, Any], grants: dict[str, Any], graph: RouterGraph) -> None:
    """A class reaches only providers that list it; a chain's links are its group's fallbacks, and each link ends the chain."""
    for cls, routes in grants["routes"].items():
        for route in routes.values():
            names = (route["group"], *route["fallbacks"])
            assert graph.edges[route["group"]] == set(route["fallbacks"])
            assert not any(graph.edges[name] for name in route["fallbacks"])
            assert route["hosted"] == any(graph.leaks(name) for name in names)
            keys = {deployment["litellm_params"]["api_key"] for name in names for deployment in graph.by_name[name]}
            for key in keys - {"os.environ/FLEET_POOL_TOKEN"}:
                assert cls in declared["fleet_hosted_providers"][f"p{key[-1]}"]["classes"]


def check_placement(inventory: dict[str, Any], declared: dict[str, Any], graph: RouterGraph) -> None:
    """A local alias is on exactly the hosts with a fitting card, and a node alias pins it on each."""
    for name, alias in declared["fleet_aliases"].items():
        if "model" not in alias:
            continue
        model = declared["fleet_models"][alias["model"]]
        fitting = {
            host
            for host, variables in inventory.items()
            if any(
                card["memory_mib"] >= model["memory_mib"] and set(model["labels"]) <= set(card["labels"])
                for card in variables["fleet_cards"]
            )
        }
        assert fitting
        assert {deployment["model_info"]["host"] for deployment in graph.by_name[name]} == fitting
        for host in fitting:
            assert [deployment["model_info"]["host"] for deployment in graph.by_name[f"{host}/{name}"]] == [host]


def check_promises(inventory: dict[str, Any], catalog: Any) -> None:
    """Reads the renderings back and holds every claim against the declared variables."""
    declared = next(iter(inventory.values()))
    grants, graph = gateway_grants(catalog), RouterGraph(litellm_config(catalog))
    check_nothing_restricted_leaves(grants, graph, RouterGraph(litellm_config(catalog, local_only=True)))
    check_classes(declared, grants, graph)
    check_placement(inventory, declared, graph)
    for key in grants["keys"].values():
        assert key["role"] == "operator" or not [name for name in key["models"]["local"] if "/" in name]
    ids = [deployment["model_info"]["id"] for deployment in graph.deployments]
    assert len(ids) == len(set(ids))
    assert not set(ids) & {deployment["model_name"] for deployment in graph.deployments}
    for host in inventory:
        pool.parse(yaml.safe_dump(pool_config(catalog, host)), host)
    if any(host for host in inventory.values() if not host["fleet_local_only"]):
        assert aperture_faults(aperture_config(catalog)) == []
    for name in declared["fleet_aliases"]:
        for cls in CLASSES:
            allowed = explain(catalog, "op", name, cls)["allowed"]
            assert allowed == (name in grants["routes"][cls])


def test_what_expands_keeps_every_promise_and_what_could_not_is_refused() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=100, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(inventories())
    def check(inventory: dict[str, Any]) -> None:
        catalog, faults = attempt(inventory)
        broken = is_broken(inventory)
        seen[broken or "whole"] += 1
        assert (broken is not None) == bool(faults), faults
        assert all(FAULT.fullmatch(line) for line in faults)
        if catalog is not None:
            check_promises(inventory, catalog)

    check()
    assert min(seen[kind] for kind in ("whole", "leak", "loop", "homeless")) >= 3, f"the fleets are too uniform to prove anything: {seen}"


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(inventories(), st.integers(0, 2**32))
def test_bytes_do_not_depend_on_the_order_of_hosts_mappings_or_cards(inventory: dict[str, Any], seed: int) -> None:
    catalog, faults = attempt(inventory)
    other, other_faults = attempt(reordered(inventory, seed))
    assert (other is None) == (catalog is None)
    assert [without_places(line) for line in other_faults] == [without_places(line) for line in faults]
    if catalog is not None:
        assert renderings(other) == renderings(catalog)


def test_bytes_do_not_depend_on_the_process_that_renders() -> None:
    script = (
        "from tests.support.fleets import fleet\nimport tests.conftest, hashlib\n"
        "from tests.unit.catalog.test_random_catalogs import renderings, expand\n"
        "print(hashlib.sha256('\\n'.join(renderings(expand(fleet()))).encode()).hexdigest())\n"
    )
    script = "import tests.conftest\n" + script
    digests = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1


JUNK = [
    None,
    "",
    " ",
    "x y",
    "a,b",
    "*",
    "\n",
    "é",
    "../x",
    -1,
    0,
    1,
    1.5,
    10**30,
    True,
    [],
    {},
    [None],
    [[]],
    {"": ""},
    {1: 2},
    ["x", "x"],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every entry in nested data."""
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        found += places(item, (*path, key))
    return found


@settings(max_examples=250, deadline=None, phases=PHASES)
@given(st.data())
def test_junk_anywhere_is_a_fault_in_words_or_harmless_never_a_crash(data: st.DataObject) -> None:
    inventory = fleet(2)
    pool_settings = {
        "window_s": 5,
        "bounds": {"queue": 3, "ping_s": 1.5},
        "servers": {"llama_cpp": ["/opt/x"]},
        "idle_workload": {"driver": "none"},
    }
    inventory["gpu-01"]["fleet_pool"] = pool_settings
    for _ in range(data.draw(st.integers(1, 3))):
        junk = data.draw(st.sampled_from(JUNK))
        everywhere = data.draw(st.booleans())
        variables: Any = inventory["gpu-01"]
        path = data.draw(st.sampled_from(places(variables)))
        for target in inventory.values() if everywhere and path[0] not in ("fleet_cards", "fleet_address") else [variables]:
            place: Any = target
            try:
                for key in path[:-1]:
                    place = place[key]
                place[path[-1]] = copy.deepcopy(junk)
            except (KeyError, IndexError, TypeError):
                continue
    catalog, faults = attempt(inventory)
    assert (catalog is None) == bool(faults)
    assert all(FAULT.fullmatch(line) for line in faults)
    assert TOKEN not in "\n".join(faults)
    if catalog is not None:
        renderings(catalog)
        for host in catalog["hosts"]:
            pool.parse(yaml.safe_dump(pool_config(catalog, host)), host)

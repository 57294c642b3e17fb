"""Where each alias' chain leads for each data class, and the proofs about it.

Proven here, before anything is deployed: targets exist, no alias leads back to itself, no `restricted` request reaches a hosted model,
no class reaches a provider that does not list it, every link does the alias' job, no link has less context unless said, an agent's
alias has enough of it.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Set, Tuple

from ._catalog_aliases import Declared
from ._catalog_faults import Faults, shown
from ._catalog_model import AGENT_CONTEXT, CLASSES, Alias, HostedModel, Model, hosted_link, is_hosted, link_context, local_link


class Chains:
    """Resolves chains over the declared names. `known_*` also hold names whose entries are faulty: they exist, so no second fault."""

    def __init__(
        self,
        faults: Faults,
        *,
        declared: Mapping[str, Declared],
        models: Mapping[str, Model],
        hosted: Mapping[str, HostedModel],
        known_aliases: Set[str],
        known_models: Set[str],
        known_hosted: Set[str],
        hosts: Set[str],
    ) -> None:
        self._faults, self._declared, self._models, self._hosted = faults, declared, dict(models), dict(hosted)
        self._known_aliases, self._known_models, self._known_hosted, self._hosts = known_aliases, known_models, known_hosted, hosts
        self._resolved: Dict[Tuple[str, str], List[str]] = {}

    def aliases(self) -> Dict[str, Alias]:
        """Every alias with its resolved chains; adds a fault for whatever does not hold."""
        aliases: Dict[str, Alias] = {}
        for name in sorted(self._declared):
            declared = self._declared[name]
            if declared["model"] is not None and declared["model"] not in self._known_models:
                self._faults.add(
                    f"fleet_aliases.{name}.model", shown(declared["model"]), "must name one of fleet_models" + _names(self._known_models)
                )
            self._report_targets(name)
            chains = {cls: self._links(name, cls, []) for cls in CLASSES}
            whole = {cls: links for cls, links in chains.items() if links}
            alias: Alias = {
                "tier": declared["tier"],
                "kind": self._kind(name),
                "model": declared["model"],
                "agent": declared["agent"],
                "smaller_context": declared["smaller_context"],
                "description": declared["description"],
                "chains": {cls: list(links) for cls, links in whole.items()},
            }
            self._prove(name, alias)
            aliases[name] = alias
        return aliases

    def _kind(self, name: str) -> str:
        declared = self._declared[name]
        model = self._models.get(declared["model"] or "")
        return declared["kind"] or (model["kind"] if model else "" if declared["model"] else "chat")

    def _report_targets(self, name: str) -> None:
        for cls, targets in self._declared[name]["chains"].items():
            for index, target in enumerate(targets):
                if target in self._known_aliases or target in self._known_hosted:
                    continue
                path = f"fleet_aliases.{name}.chains.{cls}[{index}]"
                if "/" in target and target.split("/", 1)[0] in self._hosts:
                    self._faults.add(path, shown(target), "is a node alias: those are for operators only and belong in no chain")
                elif target in self._known_models:
                    self._faults.add(path, shown(target), "is a model: name an alias that has it")
                else:
                    self._faults.add(path, shown(target), "must be an alias of fleet_aliases or a provider/model of fleet_hosted_providers")

    def _links(self, name: str, cls: str, way: List[str]) -> List[str]:
        """The links of one alias for one class, each once, in order. A way back to an alias on the way is a fault."""
        if name in way:
            loop = way[way.index(name) :]
            first = loop.index(min(loop))
            loop = loop[first:] + loop[:first]
            self._faults.add(
                f"fleet_aliases.{loop[0]}.chains.{cls}",
                " -> ".join([*loop, loop[0]]),
                "a chain must not lead back to an alias it came from",
            )
            return []
        if (name, cls) in self._resolved:
            return self._resolved[name, cls]
        declared = self._declared.get(name)
        if declared is None:  # faulty in itself, reported there
            return []
        links: Dict[str, None] = {}
        if declared["model"] is not None:
            links[local_link(declared["model"])] = None
        for target in declared["chains"][cls]:
            if target in self._known_aliases:
                links.update(dict.fromkeys(self._links(target, cls, [*way, name])))
            elif target in self._known_hosted:
                links[hosted_link(target)] = None
        self._resolved[name, cls] = list(links)
        return list(links)

    def _prove(self, name: str, alias: Alias) -> None:
        declared = self._declared[name]
        for cls in CLASSES:
            links = alias["chains"].get(cls, [])
            path = f"fleet_aliases.{name}.chains.{cls}"
            for index, target in enumerate(declared["chains"][cls]):
                if target != name and self._serves_nothing(target, cls):
                    self._faults.add(f"{path}[{index}]", shown(target), f"has no chain for {cls} requests: give it one or leave it out")
            self._prove_class(path, name, cls, links)
            self._prove_kind(path, name, alias, links)
            self._prove_context(path, name, alias, links)
        self._prove_agent(name, alias)
        if alias["kind"] == "embedding" and len({link for links in alias["chains"].values() for link in links}) > 1:
            self._faults.add(
                f"fleet_aliases.{name}.chains",
                shown(sorted({link for links in alias["chains"].values() for link in links})),
                "vectors of different models cannot be compared: an embedding alias has one model and no chain",
            )

    def _serves_nothing(self, target: str, cls: str) -> bool:
        declared = self._declared.get(target)
        return declared is not None and declared["model"] is None and not declared["chains"][cls]

    def _known(self, link: str) -> bool:
        return link.split(":", 1)[1] in (self._hosted if is_hosted(link) else self._models)

    def _prove_class(self, path: str, name: str, cls: str, links: List[str]) -> None:
        for link in links:
            if not is_hosted(link):
                continue
            way = f"{name} -> {link}"
            if cls == "restricted":
                self._faults.add(path, way, "restricted requests never leave the fleet: the chain may hold local aliases only")
            elif self._known(link) and cls not in self._hosted[link.split(":", 1)[1]]["classes"]:
                provider = self._hosted[link.split(":", 1)[1]]["provider"]
                self._faults.add(path, way, f"fleet_hosted_providers.{provider}.classes does not list {cls}")

    def _prove_kind(self, path: str, name: str, alias: Alias, links: List[str]) -> None:
        kind = alias["kind"]
        for link in links:
            if not kind or not self._known(link):
                continue
            does = self._hosted[link.split(":", 1)[1]]["kinds"] if is_hosted(link) else [self._models[link.split(":", 1)[1]]["kind"]]
            if kind in does or (kind == "chat" and "vision" in does):
                continue
            if alias["model"] is not None and link == local_link(alias["model"]):
                self._faults.add(f"fleet_aliases.{name}.kind", shown(kind), f"its model {alias['model']} does {', '.join(does)}")
            else:
                self._faults.add(path, f"{name} -> {link} ({', '.join(does)})", f"every link of this alias must do {kind}")

    def _prove_context(self, path: str, name: str, alias: Alias, links: List[str]) -> None:
        known = [(link, link_context(self._models, self._hosted, link)) for link in links if self._known(link)]
        if not known or alias["smaller_context"] or alias["kind"] not in ("chat", "vision"):
            return
        promised = known[0][1]
        for link, context in known:
            if context < promised:
                way = f"{name} -> {link} with {context} tokens of context"
                self._faults.add(path, way, f"must not be less than the first link's {promised}, or the alias says smaller_context: true")

    def _prove_agent(self, name: str, alias: Alias) -> None:
        links = {link for chain in alias["chains"].values() for link in chain if self._known(link)}
        for link in sorted(links) if alias["agent"] else []:
            context = link_context(self._models, self._hosted, link)
            if context < AGENT_CONTEXT:
                way = f"{name} -> {link} with {context} tokens of context"
                self._faults.add(f"fleet_aliases.{name}.agent", way, f"an agent's main model needs at least {AGENT_CONTEXT}")


def _names(names: Set[str]) -> str:
    return f" ({', '.join(sorted(names)[:10])}{', …' if len(names) > 10 else ''})" if names else ""

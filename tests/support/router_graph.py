"""Walks a rendered LiteLLM configuration by brute force, knowing nothing of how it was made: where can a request end up?

Follows every edge that LiteLLM's router has: fallbacks, default, context-window and content-policy fallbacks (each with its own
fallbacks, to any depth), `model_group_alias`, comma lists, deployment ids and provider-qualified names.
"""

from __future__ import annotations

from typing import Any

import yaml

_FALLBACKS = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks")


class RouterGraph:
    """One parsed configuration."""

    def __init__(self, text: str) -> None:
        self.config: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
        self.deployments: list[dict[str, Any]] = self.config["model_list"]
        self.by_name: dict[str, list[dict[str, Any]]] = {}
        for deployment in self.deployments:
            for name in (deployment["model_name"], deployment["model_info"]["id"], deployment["litellm_params"]["model"]):
                self.by_name.setdefault(name, []).append(deployment)
        self.edges = self._edges()

    def _edges(self) -> dict[str, set[str]]:
        edges: dict[str, set[str]] = {}
        everyone: set[str] = set()
        for section in ("router_settings", "litellm_settings"):
            settings = self.config.get(section) or {}
            for kind in _FALLBACKS:
                for mapping in settings.get(kind) or []:
                    for name, targets in mapping.items():
                        (everyone if name == "*" else edges.setdefault(name, set())).update(targets)
            everyone.update(settings.get("default_fallbacks") or [])
            for name, target in (settings.get("model_group_alias") or {}).items():
                edges.setdefault(name, set()).add(target["model"] if isinstance(target, dict) else target)
        for name in list(self.by_name):
            edges.setdefault(name, set()).update(everyone)
        return edges

    def paths(self, entry: str) -> list[list[str]]:
        """Every path of names, without repetition, that begins at what a client asks for."""
        found: list[list[str]] = []
        queue = [[part] for part in entry.split(",")]
        while queue:
            path = queue.pop()
            found.append(path)
            queue += [[*path, target] for target in sorted(self.edges.get(path[-1], ())) if target not in path]
        return found

    def leaks(self, entry: str) -> list[str]:
        """The paths from `entry` to a deployment outside the fleet: one whose key is not the pools' or whose zone is not local."""
        return sorted(
            " -> ".join(path) + f" => {deployment['litellm_params']['model']}"
            for path in self.paths(entry)
            for deployment in self.by_name.get(path[-1], [])
            if deployment["litellm_params"]["api_key"] != "os.environ/FLEET_POOL_TOKEN" or deployment["model_info"]["zone"] != "local"
        )

"""Catalog -> LiteLLM's config.yaml, one deployment a line; the same bytes for every gateway of the fleet.

The settings are those that were measured to matter (docs/gateway.md): identities are enforced on every route, nothing calls a model by
itself, a client that leaves gives its card back, nothing runs twice.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Optional

from ._catalog_expand import sha256
from ._catalog_groups import group_chains, node_aliases
from ._catalog_model import POOL_PORT, Catalog, hosted_link, http, is_hosted, link_context, local_link

_MODE = {"chat": "chat", "vision": "chat", "embedding": "embedding", "rerank": "rerank", "image": "image_generation"}
# LiteLLM reranks nothing for provider `openai`, and refuses `response_format` of its images; `hosted_vllm` is the same protocol without either.
_POOL_PROVIDER = {"rerank": "hosted_vllm", "image": "hosted_vllm"}
_POOL_REQUEST_S = 1800  # the pool's own bound of a request; the gateway waits a little longer, so that the pool's answer arrives
_HOSTED_TIMEOUT_S = 600

_LITELLM_SETTINGS: Dict[str, Any] = {
    "callbacks": ["gateway_guard.guard.guard"],
    "drop_params": False,
    "enable_post_custom_auth_checks": True,
    "json_logs": True,
    "redact_user_api_key_info": True,
    "request_timeout": _HOSTED_TIMEOUT_S,
    "sse_keepalive_ping_interval_seconds": 15,
    "telemetry": False,
    "turn_off_message_logging": True,
    "use_chat_completions_url_for_anthropic_messages": True,
}
_GENERAL_SETTINGS: Dict[str, Any] = {
    "background_health_checks": False,
    "cancel_on_disconnect": True,
    "custom_auth": "gateway_guard.auth.user_api_key_auth",
    "custom_auth_run_common_checks": True,
    "disable_spend_logs": True,
    "enforce_fallback_model_access": True,
    "health_check_skip_disabled_background_models": True,
    "master_key": "os.environ/LITELLM_MASTER_KEY",
}
_ROUTER_SETTINGS: Dict[str, Any] = {
    "allowed_fails": 0,
    "cooldown_time": 5,
    "enable_pre_call_checks": False,
    "enable_weighted_failover": True,
    "num_retries": 1,
    "retry_after": 0,
    "retry_policy": {
        "AuthenticationErrorRetries": 0,
        "BadRequestErrorRetries": 0,
        "ContentPolicyViolationErrorRetries": 0,
        "TimeoutErrorRetries": 0,
    },
    "routing_strategy": "simple-shuffle",
    "stream_timeout": _HOSTED_TIMEOUT_S,
    "timeout": _HOSTED_TIMEOUT_S,
}


def litellm_config(catalog: Catalog, local_only: bool = False) -> str:
    """The text of config.yaml. `local_only`: for hosts whose gateway may hold no hosted entry at all."""
    renderer = _Renderer(catalog)
    grouped = group_chains(catalog, local_only)
    fallbacks: List[Dict[str, List[str]]] = []
    further: Dict[str, str] = {}  # link -> kind of an alias that uses it further down a chain
    deployments: List[Dict[str, Any]] = []
    for group in sorted(grouped.groups.values()):
        deployments += renderer.link(group.name, group.links[0], group.alias)
        if group.links[1:]:
            fallbacks.append({group.name: group.links[1:]})
            further.update(dict.fromkeys(group.links[1:], group.alias))
    for link in sorted(further):
        deployments += renderer.link(link, link, None)
    for name, (host, alias) in node_aliases(catalog).items():
        model = catalog["aliases"][alias]["model"]
        deployments.append(renderer.local(name, str(model), host, alias))
    return "".join(
        [
            f"# Rendered by agentic.gpu_fleet from catalog {sha256(catalog)}; do not edit.\n",
            "model_list:\n" if deployments else "model_list: []\n",
            *(f"- {_flow(deployment)}\n" for deployment in deployments),
            *_section("router_settings", dict(_ROUTER_SETTINGS, fallbacks=fallbacks)),
            *_section("litellm_settings", _LITELLM_SETTINGS),
            *_section("general_settings", _GENERAL_SETTINGS),
        ]
    )


class _Renderer:
    """Makes the entries of model_list."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._timeout = 30 + max(
            int(host["pool"].get("bounds", {}).get("request_s", _POOL_REQUEST_S) or _POOL_REQUEST_S) for host in catalog["hosts"].values()
        )

    def link(self, group: str, link: str, alias: Optional[str]) -> List[Dict[str, Any]]:
        """The deployments of one link under a group's name: one per host that holds the local model, or the hosted one."""
        name = link.split(":", 1)[1]
        if is_hosted(link):
            return [self._hosted(group, name)]
        local_alias = alias if alias is not None and self._catalog["aliases"][alias]["model"] == name else None
        return [self.local(group, name, host, local_alias) for host in sorted(self._catalog["placement"][name])]

    def local(self, group: str, model: str, host: str, alias: Optional[str]) -> Dict[str, Any]:
        """One host's pool. It is asked for the alias, or for the model's own name where no alias stands behind the link."""
        kind = self._catalog["models"][model]["kind"]
        params: Dict[str, Any] = {
            "model": f"{_POOL_PROVIDER.get(kind, 'openai')}/{alias or model}",
            "api_base": http(self._catalog["hosts"][host]["address"], POOL_PORT) + "/v1",
            "api_key": "os.environ/FLEET_POOL_TOKEN",
            "timeout": self._timeout,
        }
        entry = self._entry(group, params, kind, host, link_context(self._catalog["models"], {}, local_link(model)))
        # The guard knows which hosts to leave alone; LiteLLM would cool a full one for as long as its Retry-After says.
        entry["model_info"]["cooldown_time"] = 0
        return entry

    def _hosted(self, group: str, name: str) -> Dict[str, Any]:
        hosted = self._catalog["hosted"][name]
        params: Dict[str, Any] = {"model": hosted["litellm"], "api_key": "os.environ/" + hosted["key_env"]}
        if hosted["api_base"] is not None:
            params["api_base"] = hosted["api_base"]
        kind = "chat" if "chat" in hosted["kinds"] else hosted["kinds"][0]
        return self._entry(group, params, kind, None, link_context({}, self._catalog["hosted"], hosted_link(name)))

    def _entry(self, group: str, params: Dict[str, Any], kind: str, host: Optional[str], context: int) -> Dict[str, Any]:
        if kind == "embedding":
            params["allowed_openai_params"] = ["dimensions"]
        return {
            "model_name": group,
            "litellm_params": params,
            "model_info": {
                "id": f"dep:{group}:{host or 'hosted'}",
                "mode": _MODE[kind],
                "zone": "local" if host else "hosted",
                "host": host,
                "disable_background_health_check": True,
                "max_input_tokens": context,
            },
        }


def _section(name: str, settings: Dict[str, Any]) -> Iterator[str]:
    yield f"{name}:\n"
    for key in sorted(settings):
        yield f"  {key}: {_flow(settings[key])}\n"


def _flow(value: Any) -> str:
    """JSON is YAML: fast, one line, and the same in every library version."""
    return json.dumps(value)

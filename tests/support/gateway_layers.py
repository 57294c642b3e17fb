"""The guard with layers switched off, for the proof that each of them holds by itself. GATEWAY_LAYERS_OFF names them, comma-separated.

auth: every key may use every model, LiteLLM checks nothing (the configuration's two flags are off as well); pre_call, filter, last_hop: those hooks.
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import Request
from gateway_guard.guard import Guard
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import UserAPIKeyAuth

from gateway_guard import auth as guard_auth

LAYERS = {"auth", "pre_call", "filter", "last_hop"}
OFF = frozenset(os.environ.get("GATEWAY_LAYERS_OFF", "").split(",")) - {""}


async def user_api_key_auth(request: Request, api_key: str) -> UserAPIKeyAuth:
    found = UserAPIKeyAuth() if OFF >= LAYERS else await guard_auth.user_api_key_auth(request, api_key)
    if "auth" in OFF:
        found.models = []  # all models, to LiteLLM
    return found


class LayeredGuard(Guard):
    """Falls back to LiteLLM's own do-nothing hooks where a layer is off."""

    async def async_pre_call_hook(self, *args: Any, **kwargs: Any) -> Any:
        owner = CustomLogger if "pre_call" in OFF else Guard
        return await owner.async_pre_call_hook(self, *args, **kwargs)

    async def async_filter_deployments(self, *args: Any, **kwargs: Any) -> Any:
        owner = CustomLogger if "filter" in OFF else Guard
        return await owner.async_filter_deployments(self, *args, **kwargs)

    async def async_pre_call_deployment_hook(self, *args: Any, **kwargs: Any) -> Any:
        owner = CustomLogger if "last_hop" in OFF else Guard
        return await owner.async_pre_call_deployment_hook(self, *args, **kwargs)


guard = LayeredGuard()

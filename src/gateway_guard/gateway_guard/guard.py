"""The other three layers, called by LiteLLM: before the request, for every choice of a deployment, and for every attempt (the last hop).

Each of them decides by itself from the access that authentication found; a request without one is refused.
"""

# mypy: disallow-subclassing-any=False
# (LiteLLM is not in the environment that checks the types)
from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

import httpx
from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy._types import ProxyException
from litellm.types.utils import CallTypes

from gateway_guard import client_fields, other_routes, retries, routing
from gateway_guard.auth import configured_grants, configured_settings
from gateway_guard.capacity import Capacity
from gateway_guard.failures import classify_error, retry_after
from gateway_guard.health import Health
from gateway_guard.outgoing import outgoing_fields
from gateway_guard.policy import Refusal
from gateway_guard.request_state import CURRENT, RequestState
from gateway_guard.text_redaction import TextRedactor
from gateway_guard.upstream_client import use_one_client

LOG = logging.getLogger("gateway_guard")
CONNECT_S = 2.0
READ_S = 1800.0
RETRIED = ("TimeoutErrorRetries", "RateLimitErrorRetries", "InternalServerErrorRetries", "ServiceUnavailableErrorRetries", "DefaultRetries")
NOT_RETRIED = ("BadRequestErrorRetries", "AuthenticationErrorRetries", "ContentPolicyViolationErrorRetries", "NotFoundErrorRetries")
SHORT_TEXT = 20_000
NOT_CONNECTED_STATUSES = (408, 500)  # LiteLLM's for a connection that timed out or was refused
UNREACHABLE_RETRY_S = "2"  # the readers ask an unreachable pool again within a second


class Guard(CustomLogger):
    """The data-class gate and the routing to free cards; one instance a gateway."""

    def __init__(self) -> None:
        super().__init__()
        use_one_client()
        other_routes.use_error_headers()
        other_routes.use_single_attempts()
        other_routes.log_no_departures()
        self._health = Health()

    @cached_property
    def _capacity(self) -> Capacity:
        return Capacity(configured_grants().pools, os.environ.get("FLEET_POOL_TOKEN", ""), self._health)

    @cached_property
    def _redact(self) -> TextRedactor:
        return TextRedactor(configured_grants().pools, configured_settings().patterns)

    @cached_property
    def _host_of(self) -> Mapping[str, str]:
        return {f"{url}/v1": host for host, url in configured_grants().pools.items()}

    # -- before the request ---------------------------------------------------------------------------------------------------------------

    async def async_pre_call_hook(self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: Any) -> dict[str, Any]:
        """Only granted aliases, only the fields a client may send; then the alias becomes the model group of its data class."""
        self._capacity.start()
        try:
            state = _state()
            access = state.access
            alias = data.get("model")
            route = access.aliases.get(alias) if isinstance(alias, str) else None
            if route is None:
                raise Refusal(403, "this key may not use that model for this data class")
            client_fields.strip(data)
        except Refusal as refusal:
            raise _denied(refusal) from None
        data["model"] = route.group
        data["disable_fallbacks"] = not route.fallbacks
        data["num_retries"] = retries.MAX_ATTEMPTS - 1 if _size_of(route.group) > 1 else 0
        once_more = {**dict.fromkeys(RETRIED, data["num_retries"]), **dict.fromkeys(NOT_RETRIED, 0)}
        data["model_group_retry_policy"] = {
            route.group: once_more,
            # a fallback waits for nobody: a refused link leads to the next one at once
            **{group: dict.fromkeys((*RETRIED, *NOT_RETRIED), 0) for group in route.fallbacks if group != route.group},
        }
        if call_type in other_routes.UNWATCHED:
            other_routes.watch_client(state)
        return data

    # -- for every choice of a deployment -------------------------------------------------------------------------------------------------

    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[dict[str, Any]],
        messages: Any,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[dict[str, Any]]:
        """Drop what this request may not reach; of the hosts that are left, keep the one whose card it should get."""
        state = _state()
        if model not in state.access.groups:
            return []
        allowed = [item for item in healthy_deployments if self._host(item["litellm_params"]) or state.access.may_cross]
        attempts = state.attempts.get(model, [])
        if not retries.may_try_again(attempts) and state.last_error is not None:
            raise state.last_error
        by_host = {host: item for item in allowed if (host := self._host(item["litellm_params"])) is not None}
        if not by_host:
            state.begin(model, None, at_once=False)
            return allowed
        candidates = [self._capacity.candidate(host, _alias(item["litellm_params"])) for host, item in by_host.items()]
        refused = retries.failed_hosts(attempts)
        last = len(attempts) + 1 >= retries.MAX_ATTEMPTS
        choice = routing.choose(candidates, refused, last, random.random())  # noqa: S311  # breaks ties
        self._capacity.sent(choice.host, _alias(by_host[choice.host]["litellm_params"]))
        state.begin(model, choice.host, choice.at_once)
        return [by_host[choice.host]]

    # -- for every attempt: the last hop --------------------------------------------------------------------------------------------------

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:
        """Decide by the address that the request is about to be sent to: a pool of ours, or the world outside."""
        state = _state()
        host = self._host(kwargs)
        if host is not None:
            kwargs["extra_headers"] = _headers_to_pool(state, host)
            kwargs.update(other_routes.arguments(call_type, kwargs["extra_headers"]))
        else:
            try:
                kwargs.update(await self._outgoing(state, kwargs))
            except Refusal as refusal:
                raise _denied(refusal) from None
        timeout = kwargs.get("timeout")
        if timeout is None or isinstance(timeout, int | float):
            kwargs["timeout"] = httpx.Timeout(float(timeout or READ_S), connect=CONNECT_S)
        return kwargs

    async def _outgoing(self, state: RequestState, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not state.access.may_cross:
            LOG.warning(
                "request %s of %s: class %s may not leave the fleet",
                state.access.request_id,
                state.access.principal,
                state.access.data_class,
            )
            raise Refusal(403, "this request may not leave the fleet")
        withhold = state.access.data_class in configured_settings().withhold
        size = sum(len(str(kwargs[name])) for name in client_fields.CONTENT_FIELDS if name in kwargs)
        if size <= SHORT_TEXT:
            return outgoing_fields(kwargs, self._redact, withhold)
        return await asyncio.to_thread(outgoing_fields, kwargs, self._redact, withhold)  # the detectors take 2 microseconds a character

    async def async_post_call_success_deployment_hook(self, request_data: Any, response: Any, call_type: Any) -> None:
        host = self._host(request_data)
        if host is not None:
            self._health.worked(host, _alias(request_data))
        state = CURRENT.get()
        if state is not None:
            state.stop_watching()
            if call_type == CallTypes.arerank:  # the one route that does not ask for response headers
                response._hidden_params["additional_headers"] = _response_headers(state)

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        exception: Exception,
        call_type: Any,
        fallback_depth: int | None = None,
    ) -> None:
        """Learn from a failed attempt: about the request (may it try again?) and about the host (leave it alone for a while?)."""
        state = CURRENT.get()
        if state is None:
            return
        attempt = state.attempt
        failure = classify_error(exception, attempt is not None and attempt.at_once, state.last_error)
        state.fail(failure, exception, retry_after(exception))
        host = self._host(request_data)
        if host is None:
            return
        now = time.monotonic()
        if failure is retries.Failure.NOT_REACHED:
            self._health.failed(host, None, now)
        elif failure in (retries.Failure.NO_WORKER, retries.Failure.FAULT, retries.Failure.NOT_NOW):
            self._health.failed(host, _alias(request_data), now)
        elif failure is retries.Failure.NO_CARD_NOW:
            self._capacity.took_none(host, _alias(request_data))

    async def async_post_call_failure_hook(
        self, request_data: Any, original_exception: Exception, user_api_key_dict: Any, traceback_str: str | None = None
    ) -> HTTPException | None:
        """Say 503 where nobody could be reached: LiteLLM calls a refused connection 500, which clients do not try again."""
        state = CURRENT.get()
        if state is None:
            return None
        state.stop_watching()
        if getattr(original_exception, "status_code", None) not in NOT_CONNECTED_STATUSES:
            return None
        unreached = state.unreached()
        if not unreached:
            return None
        state.retry_after = UNREACHABLE_RETRY_S
        told = f"no {' and no '.join(unreached)} can be reached now"
        error: Any = original_exception
        error.status_code, error.message = 503, told  # rerank and images do not look at what is returned
        return HTTPException(503, told, state.error_headers())

    async def async_post_call_response_headers_hook(
        self,
        data: Any,
        user_api_key_dict: Any,
        response: Any,
        request_headers: Any = None,
        litellm_call_info: Any = None,
    ) -> dict[str, str] | None:
        """Name the request and the card, and hand on a pool's Retry-After, which LiteLLM keeps to itself."""
        state = CURRENT.get()
        if state is None:
            return None
        if response is not None:
            return _response_headers(state)
        return state.error_headers()

    def _host(self, parameters: Mapping[str, Any]) -> str | None:
        """Return the host whose pool these LiteLLM parameters lead to, None for anything else in the world."""
        base = parameters.get("api_base")
        return self._host_of.get(base.rstrip("/")) if isinstance(base, str) else None


def _state() -> RequestState:
    state = CURRENT.get()
    if state is None:
        raise ProxyException(message="not authenticated by this gateway", type="permission_error", param=None, code=403)
    return state


def _response_headers(state: RequestState) -> dict[str, str]:
    """Name the pool's as LiteLLM does for the routes on which it passes them on by itself: nginx knows them by these names."""
    return {"x-request-id": state.access.request_id, **{f"llm_provider-{name}": value for name, value in state.pool_headers.items()}}


def _headers_to_pool(state: RequestState, host: str) -> dict[str, str]:
    headers = {
        "x-gpu-fleet-principal": state.access.principal,
        "x-gpu-fleet-class": state.access.data_class,
        "x-request-id": state.access.request_id,
        # A kept connection to a host that has been powered off would swallow the request; a new one fails within CONNECT_S.
        "connection": "close",
    }
    attempt = state.attempt
    if attempt is not None and attempt.host == host and attempt.at_once:
        headers["x-gpu-fleet-max-wait-ms"] = "0"
    return headers


def _alias(parameters: Mapping[str, Any]) -> str:
    """Return the name that the pool knows: LiteLLM's `openai/t3-code` (`hosted_vllm/` for some kinds) and, at the last hop, `t3-code`."""
    return str(parameters.get("model", "")).removeprefix("openai/").removeprefix("hosted_vllm/")


@cache
def _size_of(group: str) -> int:
    """Return how many deployments a group has; LiteLLM copies them all to tell it, and they do not change while it runs."""
    from litellm.proxy.proxy_server import llm_router  # noqa: PLC0415  # exists only while the proxy runs

    return len(llm_router.get_model_list(model_name=group) or []) if llm_router is not None else 0


def _denied(refusal: Refusal) -> ProxyException:
    return ProxyException(
        message=str(refusal), type="permission_error" if refusal.status == 403 else "invalid_request_error", param=None, code=refusal.status
    )


guard = Guard()

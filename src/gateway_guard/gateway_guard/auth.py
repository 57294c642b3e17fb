"""First layer: LiteLLM's `custom_auth`. Answers who it is and which model groups this one request may reach."""

from __future__ import annotations

import time
import uuid
from functools import cache

from fastapi import Request
from litellm.proxy._types import LitellmUserRoles, ProxyException, UserAPIKeyAuth

from gateway_guard import approval, grants, settings
from gateway_guard.policy import Access, Refusal, claimed_class, decide
from gateway_guard.request_state import CURRENT, RequestState

# What nginx lets through, held here a second time; with and without /v1, as OpenAI's clients send them.
MODEL_LISTS = frozenset({"/v1/models", "/models"})
ROUTES = MODEL_LISTS | frozenset(
    prefix + route
    for prefix in ("/v1", "")
    for route in ("/chat/completions", "/completions", "/responses", "/embeddings", "/rerank", "/images/generations", "/messages")
)


@cache
def configured_grants() -> grants.Grants:
    return grants.load(settings.directory() / "keys.json")


@cache
def configured_settings() -> settings.Settings:
    return settings.load(settings.directory() / "guard.json")


async def user_api_key_auth(request: Request, api_key: str) -> UserAPIKeyAuth:  # LiteLLM takes it from a dozen places
    """Return what the request may reach; raises ProxyException (400, 401, 403, 404)."""
    CURRENT.set(None)
    try:
        access = await _access(request)
    except Refusal as refusal:
        raise _denied(refusal) from None
    CURRENT.set(RequestState(access, request))
    listed = frozenset(access.aliases) if request.scope["path"] in MODEL_LISTS else frozenset(access.aliases) | access.groups
    return UserAPIKeyAuth(
        api_key=None,
        token=None,
        key_alias=access.principal,
        user_id=access.principal,
        models=sorted(listed),
        user_role=LitellmUserRoles.INTERNAL_USER,
    )


async def _access(request: Request) -> Access:
    if request.scope["path"] not in ROUTES:
        raise Refusal(404, "this gateway has no such route")
    known = configured_grants()
    key = known.find(_api_key(request))
    if key is None:
        raise Refusal(401, "invalid API key")
    data_class = claimed_class(request.headers.getlist("x-data-class"))
    tokens = request.headers.getlist("x-boundary-approval")
    if tokens:
        approvers = configured_settings().approvers
        body = await request.body()
        if len(tokens) > 1 or not approval.is_valid(tokens[0], approvers, key.name, body, time.time()):
            raise Refusal(403, "the approval is not valid for this request")
    return decide(key, known, data_class, bool(tokens), uuid.uuid4().hex)


def _api_key(request: Request) -> str:
    """Return the key of `Authorization: Bearer` or, for Anthropic's clients, `x-api-key`; nothing where it is not unique."""
    values = request.headers.getlist("authorization")
    if values:
        scheme, _, key = values[0].partition(" ")
        return key.strip() if len(values) == 1 and scheme.lower() == "bearer" else ""
    values = request.headers.getlist("x-api-key")
    return values[0] if len(values) == 1 else ""


def _denied(refusal: Refusal) -> ProxyException:
    kind = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}.get(refusal.status, "permission_error")
    return ProxyException(message=str(refusal), type=kind, param=None, code=refusal.status)

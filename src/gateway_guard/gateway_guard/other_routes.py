"""What LiteLLM does for chat but not for /v1/rerank, /v1/images/generations, /v1/embeddings, /v1/completions and /v1/messages (1.108.7).

Rerank and images ignore `cancel_on_disconnect`: a client that left kept its card to the end. They, completions and messages ask no hook for an error's
headers, so that a pool's Retry-After was lost. Images and embeddings are made with a client that tries each attempt three times: nine requests for one.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any

from fastapi import Request
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
from litellm.proxy._types import ProxyException
from litellm.proxy.anthropic_endpoints import endpoints as anthropic_endpoints
from litellm.proxy.image_endpoints import endpoints as image_endpoints
from litellm.proxy.rerank_endpoints import endpoints as rerank_endpoints
from litellm.types.utils import CallTypes
from openai import AsyncOpenAI

from gateway_guard.request_state import CURRENT, RequestState
from gateway_guard.upstream_client import note_pool_headers

UNWATCHED = frozenset({CallTypes.rerank.value, CallTypes.image_generation.value})


def use_single_attempts() -> None:
    """LiteLLM sets two retries on every client of these routes, hosted providers' too, after it was made."""
    AsyncOpenAI.max_retries = property(lambda _: 0, lambda *_: None)  # type: ignore[assignment]


def use_error_headers() -> None:
    """Give these routes' errors the headers that the others get from the guard's hook."""
    from litellm.proxy import proxy_server  # noqa: PLC0415  # it is what loads the guard

    proxy_server.litellm_call_id_headers = _error_headers
    anthropic_endpoints._anthropic_error_json_response = _message_error
    rerank_endpoints.litellm_call_id_headers = _error_headers
    image_endpoints.litellm_call_id_headers = _error_headers


def _error_headers(_: str | None) -> dict[str, str]:
    state = CURRENT.get()
    return state.error_headers() if state is not None else {}


_json_response = anthropic_endpoints._anthropic_error_json_response


def _message_error(error: ProxyException, request: Request) -> Any:
    error.headers.update(_error_headers(None))
    return _json_response(error, request)


def arguments(call_type: Any, headers: dict[str, str]) -> dict[str, Any]:
    """Return what an attempt at a pool needs on these routes beside `extra_headers`; nothing on others."""
    if call_type == CallTypes.arerank:
        return {"headers": headers, "client": _rerank_client()}
    return {}


@cache
def _rerank_client() -> AsyncHTTPHandler:
    return AsyncHTTPHandler(event_hooks={"response": [note_pool_headers]})


def log_no_departures() -> None:
    """A request that `watch_client` cancels is no fault of the server: uvicorn would log a hundred lines for each."""
    logging.getLogger("uvicorn.error").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
    )


def watch_client(state: RequestState) -> None:
    """Cancel the request that this task handles when its client leaves; `state.watching` ends it once there is an answer."""
    handling = asyncio.current_task()
    if handling is None or state.request is None:
        return
    state.watching = asyncio.create_task(_cancel_when_left(state.request, handling))
    handling.add_done_callback(lambda _: state.stop_watching())


async def _cancel_when_left(request: Request, handling: asyncio.Task[Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    handling.cancel()

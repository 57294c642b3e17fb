"""How LiteLLM's requests leave: one HTTP client for pools and OpenAI-shaped providers, and sockets that notice a host that is powered off.

By default /v1/completions gets another client than chat, one that keeps its connection open when the stream behind it is cancelled: a client that
left in the middle of a text stream kept its card to the end (LiteLLM 1.108.7). The one set here closes it.

No client follows redirects: a pool's would lead a restricted request to wherever it says, behind the last hop's back. /v1/responses and /v1/rerank are
sent by clients of LiteLLM's own, which do by default.

LiteLLM closes the stream of a client that left by its `aclose`. That of /v1/responses lacks one, and that of /v1/messages closes only the generator round
the stream, which does nothing before its first event: the client's leaving then closed nothing, and the card was kept until the worker's next event.
"""

from __future__ import annotations

from typing import Any

import httpx
import litellm
from litellm.llms.anthropic.pass_through.adapters.streaming_iterator import AnthropicSSEStream
from litellm.llms.custom_httpx import http_handler
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
from litellm.responses.streaming_iterator import ResponsesAPIStreamingIterator

from gateway_guard.probed_socket import probed_socket
from gateway_guard.request_state import CURRENT

_create_client = AsyncHTTPHandler.create_client


def use_one_client() -> None:
    AsyncHTTPHandler.create_client = _create_client_without_redirects
    # LiteLLM's own probes idle connections only: a request that nobody acknowledges would hang for a quarter of an hour.
    http_handler.build_aiohttp_keepalive_socket_factory = lambda: probed_socket
    transport = AsyncHTTPHandler.create_async_transport()
    litellm.aclient_session = httpx.AsyncClient(transport=transport, follow_redirects=False, event_hooks={"response": [note_pool_headers]})
    ResponsesAPIStreamingIterator.aclose = _close_responses
    AnthropicSSEStream.aclose = _close_messages


def _create_client_without_redirects(handler: AsyncHTTPHandler, *args: Any, **kwargs: Any) -> httpx.AsyncClient:
    client: httpx.AsyncClient = _create_client(handler, *args, **kwargs)
    client.follow_redirects = False
    return client


async def note_pool_headers(response: httpx.Response) -> None:
    """Keep what a pool tells of the card, for the routes on which LiteLLM does not pass it on."""
    state = CURRENT.get()
    if state is not None and state.attempt is not None and state.attempt.host is not None:
        state.pool_headers = {name: value for name, value in response.headers.items() if name.startswith("x-gpu-fleet-")}


async def _close_responses(stream: ResponsesAPIStreamingIterator) -> None:
    await stream.response.aclose()


async def _close_messages(stream: AnthropicSSEStream) -> None:
    try:
        await stream._byte_stream.aclose()
    finally:
        worker_stream = stream._anthropic_wrapper.completion_stream
        while not hasattr(worker_stream, "aclose"):  # LiteLLM puts a splitter of chunks round it, which cannot be closed
            worker_stream = worker_stream._stream
        await worker_stream.aclose()

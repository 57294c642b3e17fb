"""The one HTTP client that LiteLLM talks to pools and OpenAI-shaped providers with.

By default /v1/completions gets another client than chat, one that keeps its connection open when the stream behind it is cancelled: a client that
left in the middle of a text stream kept its card to the end (LiteLLM 1.108.7). The one set here closes it, and follows no redirects.
"""

from __future__ import annotations

import httpx
import litellm
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler


def use_one_client() -> None:
    transport = AsyncHTTPHandler.create_async_transport()
    litellm.aclient_session = httpx.AsyncClient(transport=transport, follow_redirects=False)

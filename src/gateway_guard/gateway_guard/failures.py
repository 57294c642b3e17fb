"""Reads what LiteLLM's exceptions say about a failed attempt."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from gateway_guard.retries import Failure, classify

# By name: aiohttp, httpx, httpcore and openai each have their own.
NOT_CONNECTED = (
    "ConnectError",
    "ConnectTimeout",
    "ClientConnectorError",
    "ConnectionTimeoutError",
    "ConnectionRefusedError",
    "ClientConnectorDNSError",
)
TIMED_OUT = ("Timeout", "ReadTimeout", "APITimeoutError", "TimeoutError", "SocketTimeoutError")


def classify_error(error: Exception, at_once: bool, earlier: Exception | None = None) -> Failure:
    """Return the kind of failure; `at_once`: the attempt had asked for a card now or none; `earlier`: how the attempt before it failed."""
    # LiteLLM makes the next attempt while it handles the earlier one's error, which Python then names as the context of the new one.
    past = {id(item) for item in _chain(earlier)} if earlier is not None and earlier is not error else set()
    chain = [item for item in _chain(error) if id(item) not in past]
    names = {type(item).__name__ for item in chain}
    connected = names.isdisjoint(NOT_CONNECTED) and not any(map(_is_silence, chain))
    status = getattr(error, "status_code", None)
    return classify(status if isinstance(status, int) else None, connected, not names.isdisjoint(TIMED_OUT), at_once)


def retry_after(error: Exception) -> str | None:
    """Return the Retry-After of the answer behind the error, in whole seconds."""
    response = getattr(error, "response", None)
    for headers in (getattr(error, "litellm_response_headers", None), getattr(response, "headers", None)):
        value = headers.get("retry-after") if headers is not None else None
        if isinstance(value, str) and value.isdecimal():
            return value
    return None


def _is_silence(error: BaseException) -> bool:
    """Tell whether the kernel gave the connection up (probed_socket.py): what ran there is lost, unlike with a deadline of ours."""
    return isinstance(error, OSError) and error.errno == errno.ETIMEDOUT


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        item = todo.pop()
        if item is not None and id(item) not in seen:
            seen.add(id(item))
            yield item
            todo += [item.__cause__, item.__context__]

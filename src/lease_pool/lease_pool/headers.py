"""Which headers cross the pool, in both directions (RFC 9110 section 7.6.1; DESIGN.md 4.3)."""

from __future__ import annotations

from collections.abc import Iterable

RawHeaders = Iterable[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer trailers transfer-encoding upgrade".split()
)
# The client's credentials and the gateway's notes end here; framing and Host are the pool's own on its side of the wire.
_NOT_TO_WORKER = _HOP_BY_HOP | frozenset(
    b"host content-length expect authorization cookie x-api-key api-key x-request-id x-data-class forwarded".split()
)
_NOT_TO_WORKER_PREFIXES = (b"x-gpu-fleet-", b"x-forwarded-", b"x-litellm-", b"proxy-", b"sec-websocket-")
_NOT_TO_CLIENT = _HOP_BY_HOP | frozenset(b"content-length content-type date server set-cookie x-accel-buffering".split())
_NOT_TO_CLIENT_PREFIXES = (b"x-gpu-fleet-", b"proxy-")

# Names repeat with every request: one lookup instead of a lower() and three set tests. Bounded, because clients choose the names.
_CACHE_MAX = 1024
_to_worker: dict[bytes, bool] = {}
_to_client: dict[bytes, bool] = {}


def _crosses(name: bytes, cache: dict[bytes, bool], names: frozenset[bytes], prefixes: tuple[bytes, ...]) -> bool:
    known = cache.get(name)
    if known is None:
        low = name.lower()
        known = low not in names and not low.startswith(prefixes)
        if len(cache) < _CACHE_MAX:
            cache[name] = known
    return known


def to_worker(raw: RawHeaders, stream: bool) -> bytes:
    """The client's end-to-end headers as lines. A stream's answer must be readable here (pings, error events), so no encoding is offered for it."""
    lines = []
    for name, value in _end_to_end(raw):
        if _crosses(name, _to_worker, _NOT_TO_WORKER, _NOT_TO_WORKER_PREFIXES) and not (stream and name.lower() == b"accept-encoding"):
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


def to_client(raw: RawHeaders) -> bytes:
    """The worker's end-to-end headers as lines, without those the pool writes itself."""
    return b"".join(
        [
            b"%b: %b\r\n" % (name, value)
            for name, value in _end_to_end(raw)
            if _crosses(name, _to_client, _NOT_TO_CLIENT, _NOT_TO_CLIENT_PREFIXES) and b"\r" not in value and b"\n" not in value
        ]
    )


def _end_to_end(raw: RawHeaders) -> RawHeaders:
    """Without the headers that a `Connection` header names."""
    named: set[bytes] = set()
    for name, value in raw:
        if len(name) == 10 and name.lower() == b"connection":
            named.update(part.strip().lower() for part in value.split(b","))
    named -= {b"", b"close", b"keep-alive", b"content-type"}
    return raw if not named else [(name, value) for name, value in raw if name.lower() not in named]

"""HTTP with one deadline over the whole exchange, on TCP or a unix socket: a peer that trickles bytes cannot hold us."""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_ANSWER_BYTES = 4 * 1024 * 1024


class WebError(Exception):
    """No answer, or one that makes no sense; the message says which."""


def call(target: Path | str, method: str, path: str, bound_s: float, body: object = None) -> tuple[int, Any]:
    """The status and the JSON body (None if there is none) of one request to a socket path or an `http://host:port` URL.

    Name resolution has no bound of its own: call it for a URL in a bounded child only.
    """
    end = time.monotonic() + bound_s
    try:
        with _connect(target, bound_s) as sock:
            payload = b"" if body is None else json.dumps(body).encode()
            host = "localhost" if isinstance(target, Path) else urlsplit(target).netloc
            head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n"
            sock.settimeout(_left(end))
            sock.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + payload)
            raw = bytearray()
            while len(raw) < _ANSWER_BYTES:
                sock.settimeout(_left(end))
                chunk = sock.recv(65536)
                if not chunk:
                    break
                raw += chunk
        return _parse(bytes(raw))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise WebError(f"{target}{path if isinstance(target, str) else f' {path}'}: {error or type(error).__name__}") from error


def _connect(target: Path | str, bound_s: float) -> socket.socket:
    if isinstance(target, Path):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(bound_s)
            sock.connect(str(target))
        except BaseException:
            sock.close()
            raise
        return sock
    parts = urlsplit(target)
    return socket.create_connection((parts.hostname or "", parts.port or 80), bound_s)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("no whole answer within its bound")
    return left


class _Bytes:
    """What http.client reads an answer from."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, *_args: object) -> io.BytesIO:
        return io.BytesIO(self._raw)


def _parse(raw: bytes) -> tuple[int, Any]:
    answer = http.client.HTTPResponse(_Bytes(raw))  # type: ignore[arg-type]  # it only ever calls makefile
    answer.begin()
    text = answer.read()
    return answer.status, json.loads(text) if text.strip() else None

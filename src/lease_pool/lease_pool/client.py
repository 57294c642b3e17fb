"""The admin socket from the client's side: plain `http.client`, so that the verbs start fast."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0


class ClientError(Exception):
    """The pool cannot be reached, or said no."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("pool", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float | None = TIMEOUT_S) -> Any:
        """The parsed answer. Raises ClientError."""
        response = self._send(method, path, body, timeout_s)
        with response:
            return json.loads(response.read() or b"null")

    def lines(self, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Iterator[str]:
        """The answer's lines as they come, without a bound."""
        with self._send(method, path, body, None) as response:
            for line in response:
                yield line.decode().rstrip("\n")

    def open(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        """A streamed answer whose connection lasts as long as the caller keeps it."""
        return self._send("POST", path, body, None)

    def _send(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None) -> http.client.HTTPResponse:
        connection = _Connection(self._path, timeout_s)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise ClientError(f"{self._path}: the pool does not answer: {getattr(error, 'strerror', None) or error}") from None
        if response.status >= 300:
            text = response.read().decode(errors="replace")
            with contextlib.suppress(ValueError, LookupError, TypeError):
                text = json.loads(text)["error"]
            raise ClientError(f"{response.status}: {text}")
        return response

# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""One HTTP connection over a unix socket or TCP, by the standard library only; nothing here knows Ansible."""

from __future__ import annotations

import http.client
import socket
import ssl
import typing as t
from urllib.parse import urlsplit


class UnixHTTPConnection(http.client.HTTPConnection):
    """HTTP over a unix stream socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connection(url: str, timeout: float, socket_path: t.Optional[str] = None, validate_certs: bool = True) -> http.client.HTTPConnection:
    """A connection to the host of `url`, or to `socket_path` when given. Proxies of the environment are never used.

    Raises ValueError on a URL that is not http(s)://host[:port][/path].
    """
    if socket_path:
        return UnixHTTPConnection(socket_path, timeout)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is not an http:// or https:// URL")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    context = ssl.create_default_context()
    if not validate_certs:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)


def error_message(body: bytes) -> str:
    """What an answer that is not 2xx says: the envelope's message, else the start of the body."""
    return str(error_of(body).get("message") or body[:200].decode("utf-8", "replace"))


def error_of(body: bytes) -> t.Dict[str, t.Any]:
    """The `error` object of an OpenAI-shaped body; empty when there is none."""
    import json

    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {"message": str(error)}

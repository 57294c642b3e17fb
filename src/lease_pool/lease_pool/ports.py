"""Loopback ports for servers that cannot listen on a unix socket."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A loopback port that was free a moment ago; a worker that loses it to someone else fails to start and is tried again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

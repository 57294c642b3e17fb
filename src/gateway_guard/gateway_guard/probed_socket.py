"""Sockets that notice a host that was powered off while a request is under way."""

from __future__ import annotations

import socket
from typing import Any

SILENT_S = 10  # without a packet of the other end's kernel, which answers whatever its worker is busy with
FIRST_PROBE_S, PROBE_S, PROBES = 4, 2, 3


def probed_socket(address: Any) -> socket.socket:
    """Return a socket for an entry of getaddrinfo; its connection ends with ETIMEDOUT about SILENT_S after the other end's last packet."""
    made = socket.socket(*address[:3])
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {
        socket.TCP_KEEPIDLE: FIRST_PROBE_S,
        socket.TCP_KEEPINTVL: PROBE_S,
        socket.TCP_KEEPCNT: PROBES,
        socket.TCP_USER_TIMEOUT: SILENT_S * 1000,  # probes wait while something sent is not acknowledged
    }.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made

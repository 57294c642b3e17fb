"""systemd's notify protocol (sd_notify(3)), as far as it is needed."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*lines: str) -> None:
    """Tell systemd; does nothing outside a Type=notify unit, and never fails."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(1)
        sock.sendto("\n".join(lines).encode(), "\0" + path[1:] if path.startswith("@") else path)

"""Asking the other hosts of the fleet how they are. Run as a child (`python -m gpu_watchdog.peers`), since resolving names can block."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_watchdog import web
from gpu_watchdog.observation import Peer


def judge(answer: object) -> Peer:
    """What a /ready body (DESIGN.md 4.3) says; whatever is not understood counts as down."""
    if not isinstance(answer, dict):
        return Peer.DOWN
    match answer.get("rebooting"):
        case "rebooting":
            return Peer.REBOOTING
        case "intending":
            return Peer.INTENDING
        case None:
            return Peer.READY if answer.get("ready") is True else Peer.DOWN
        case _:
            return Peer.DOWN


def ask(url: str, bound_s: float) -> Peer:
    try:
        _status, answer = web.call(url, "GET", "/ready", bound_s)
    except web.WebError:
        return Peer.DOWN
    return judge(answer)


def main(given: str) -> dict[str, Any]:
    """`given`: {"peers": {name: url}, "bound_s": S}; all are asked at once."""
    wanted = json.loads(given)
    urls: dict[str, str] = wanted["peers"]
    with ThreadPoolExecutor(max_workers=max(1, min(32, len(urls)))) as pool:
        return dict(zip(urls, pool.map(lambda url: ask(url, wanted["bound_s"]), urls.values()), strict=True))


if __name__ == "__main__":
    print(json.dumps(main(sys.stdin.read())))

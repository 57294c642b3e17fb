"""A lease pool's admin socket as DESIGN.md 4.4 describes it: real HTTP on a real unix socket, cards and leases that are only written down."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

CARD_A = "GPU-a0000000-0000-4000-8000-0000000000c0"
CARD_B = "GPU-a0000000-0000-4000-8000-0000000000c1"


def card(slot: str, uuid: str, **fields: Any) -> dict[str, Any]:
    return {"slot": slot, "uuid": uuid, "memory_mib": 12288, "state": "mining", "reason": None, "hold": None, "lease": None} | fields


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class AdminDouble:
    """`before_status` runs before every `GET /status`: with it a test lets time pass. `posts` records what was asked for."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.draining = False
        self.drain_reason: str | None = None
        self.cards = [card("c0", CARD_A), card("c1", CARD_B)]
        self.events: list[dict[str, Any]] = []
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.before_status: Callable[[], None] = lambda: None
        self.answer: tuple[int, bytes] | None = None
        self.silent = threading.Event()
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                double._serve(self)

            do_POST = do_GET

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_arguments: object) -> None: ...

        self._server = _Server(self.path, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.silent.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def find(self, uuid: str) -> dict[str, Any]:
        return next(found for found in self.cards if found["uuid"] == uuid)

    def lend(self, uuid: str) -> None:
        """Give the card a lease; a held card would get none."""
        lease = {"id": "lease-1", "alias": "t4-router", "model": "small", "worker_pid": 7, "since": "2026-11-30T02:00:00Z", "requests": 1}
        self.find(uuid).update(state="serving", lease=lease)

    def finish(self, uuid: str) -> None:
        """End the card's lease: it goes where its hold says."""
        found = self.find(uuid)
        found.update(state=found["hold"] or "mining", lease=None)

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        size = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(size)) if size else {}
        if self.answer == (0, b""):  # accept and say nothing
            self.silent.wait()
            return
        status, data = self.answer or self._answer(request.command, url.path, parse_qs(url.query), body)
        request.send_response(status)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _answer(self, method: str, path: str, query: dict[str, list[str]], body: dict[str, Any]) -> tuple[int, bytes]:
        if method == "GET" and path == "/status":
            self.before_status()
            status = {"version": "0.1.0", "draining": self.draining, "drain_reason": self.drain_reason, "queue": 0, "models": []}
            return 200, json.dumps(status | {"cards": self.cards}).encode()
        if method == "GET" and path == "/leases":
            return 200, json.dumps([found["lease"] | {"card": found["uuid"]} for found in self.cards if found["lease"]]).encode()
        if method == "GET" and path == "/events":
            since = query["since"][0]
            return 200, b"".join(json.dumps(event).encode() + b"\n" for event in self.events if since == "0" or event["time"] >= since)
        if method == "POST" and path in ("/drain", "/resume"):
            self.posts.append((path, body))
            self._hold(path == "/drain", body)
            return 200, b"{}"
        return 404, json.dumps(
            {"error": {"message": f"no route {path}", "type": "invalid_request_error", "param": None, "code": None}}
        ).encode()

    def _hold(self, drain: bool, body: dict[str, Any]) -> None:
        reason = body.get("reason")
        if "card" not in body:
            self.draining, self.drain_reason = drain, reason if drain else None
            return
        found = self.find(body["card"])
        found.update(hold="drained" if drain else None, reason=reason if drain else None)
        if not found["lease"]:
            found["state"] = "drained" if drain else "mining"

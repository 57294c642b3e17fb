"""An HTTP server that answers as a test says, on TCP or a unix socket, and keeps what it was sent."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any


@dataclass
class Sent:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """`chunks` are written one by one, chunked; iterating them may block. `cut` closes the connection without the last chunk.

    `length` promises more bytes than `body` has: the connection ends early.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] | None = None
    cut: bool = False
    length: int | None = None


def json_answer(body: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(status, json.dumps(body).encode(), {name.replace("_", "-"): value for name, value in headers.items()})


class _Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class HttpDouble:
    def __init__(self, answer: Callable[[Sent], Answer], socket: Path | None = None) -> None:
        self.answer = answer
        self.sent: list[Sent] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                double._serve(self)

            do_POST = do_GET

            def address_string(self) -> str:
                return "client"

            def log_message(self, *_arguments: object) -> None: ...

        self._server: socketserver.BaseServer = _Unix(str(socket), Handler) if socket else _Tcp(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        size = int(request.headers.get("Content-Length") or 0)
        sent = Sent(
            request.command, request.path, {name.lower(): value for name, value in request.headers.items()}, request.rfile.read(size)
        )
        self.sent.append(sent)
        answer = self.answer(sent)
        request.send_response(answer.status)
        for name, value in answer.headers.items():
            request.send_header(name, value)
        if answer.chunks is None:
            request.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            request.end_headers()
            request.wfile.write(answer.body)
        else:
            request.send_header("Transfer-Encoding", "chunked")
            request.end_headers()
            for chunk in answer.chunks:
                request.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                request.wfile.flush()
            if not answer.cut:
                request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True

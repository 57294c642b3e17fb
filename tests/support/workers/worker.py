"""A model server that misbehaves on demand; standard library only.

    worker.py (--socket PATH | --port N) [--key-file F] [--load S] [--mode MODE ...]

Modes: ignore-term, never-ready, die-start, die-loading, die-ready, die-request, die-stream, chatty, grandchild (forks a child in its own session),
keep-pipe (a child in its own session that keeps stdout open), close-fds (a child that closes every descriptor), error-500, hold-request.
`POST /v1/chat/completions` answers after `"delay"` seconds (a key of the body); `"fail"` answers 500; `"stream": true` sends ten chunks with `"gap"` between.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

STARTED = time.monotonic()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket")
    parser.add_argument("--port", type=int)
    parser.add_argument("--key-file")
    parser.add_argument("--load", type=float, default=0.0)
    parser.add_argument("--dimensions", type=int, default=4)
    parser.add_argument("--mode", action="append", default=[])
    parser.add_argument("--claim", type=int, help="MiB to use of the simulated card ($GPU_SIM_DIR, $CUDA_VISIBLE_DEVICES)")
    parser.add_argument("--record", help="append a line for the start of this worker")
    return parser.parse_args()


OPTIONS = parse()
MODES = set(OPTIONS.mode)
KEY = Path(OPTIONS.key_file).read_text().strip() if OPTIONS.key_file else ""


def child(*, keep_stdout: bool = False, close_all: bool = False) -> None:
    code = "import os,signal,time; [signal.signal(s, signal.SIG_IGN) for s in (1,2,15)];"
    code += "os.closerange(0, 1024);" if close_all else ""
    code += "time.sleep(3600)"
    out = None if keep_stdout else subprocess.DEVNULL
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, stdout=out, stderr=out, close_fds=False)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        if "chatty" in MODES:
            sys.stderr.write("x" * 4000 + "\n")

    def address_string(self) -> str:
        return "pool"

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path != "/health":
            self.answer(200, {"data": []})
        elif "never-ready" in MODES or time.monotonic() - STARTED < OPTIONS.load:
            self.answer(503, {"error": {"message": "loading"}})
        else:
            try:
                self.answer(200, {"status": "ok"})
            finally:  # the pool may have closed the connection already: the head was enough for it
                if "die-ready" in MODES:
                    os._exit(9)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if KEY and self.headers.get("Authorization") != f"Bearer {KEY}":
            return self.answer(401, {"error": {"message": "no key"}})
        if self.path == "/v1/embeddings":
            return self.answer(200, {"data": [{"embedding": [0.0] * OPTIONS.dimensions}]})
        if "die-request" in MODES:
            os._exit(7)
        if "error-500" in MODES or body.get("fail"):
            return self.answer(500, {"error": {"message": "CUDA error"}})
        time.sleep(body.get("delay", 0))
        if body.get("stream"):
            return self.stream(body)
        return self.answer(200, {"pid": os.getpid(), "env": dict(os.environ), "choices": [{"message": {"content": "hello"}}]})

    def stream(self, body: dict) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(body.get("chunks", 10)):
            if "die-stream" in MODES and number == 3:
                self.wfile.flush()
                os._exit(8)
            self.chunk(f"data: {json.dumps({'n': number, 'pid': os.getpid()})}\n\n")
            time.sleep(body.get("gap", 0.01))
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
        self.wfile.flush()


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def get_request(self) -> tuple[socket.socket, str]:
        connection, _ = super().get_request()
        return connection, "pool"


class TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


def main() -> None:
    if OPTIONS.record:
        with open(OPTIONS.record, "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {time.time()}\n")
    if OPTIONS.claim:
        claim(OPTIONS.claim)
    if "die-start" in MODES:
        sys.exit(3)
    misbehave()
    if OPTIONS.socket:
        server: socketserver.BaseServer = UnixServer(OPTIONS.socket, Handler)
    else:
        server = TcpServer(("127.0.0.1", OPTIONS.port), Handler)
    server.serve_forever(poll_interval=0.5)


def claim(mib: int) -> None:
    """Use memory of the simulated card that is visible."""
    for card in (Path(os.environ["GPU_SIM_DIR"]) / "cards").iterdir():
        if (card / "uuid").read_text().strip() == os.environ["CUDA_VISIBLE_DEVICES"]:
            (card / "procs" / str(os.getpid())).write_text(f"{mib}\n")


def misbehave() -> None:
    if "ignore-term" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "grandchild" in MODES:
        child()
    if "keep-pipe" in MODES:
        child(keep_stdout=True)
    if "close-fds" in MODES:
        child(close_all=True)
    if "chatty" in MODES:
        for _ in range(2000):
            sys.stdout.write("y" * 2000 + "\n")
        sys.stdout.flush()
    if "die-loading" in MODES:
        threading.Timer(OPTIONS.load / 2, lambda: os._exit(4)).start()


if __name__ == "__main__":
    main()

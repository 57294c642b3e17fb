"""A quick OpenAI-compatible model server that a test holds where it likes: `gated.py --socket PATH --key-file FILE [--answer-s S] GATES`.
Standard library only.

In the folder GATES the files `load` (not ready), `answer` (a plain answer, a stream's first event) and `stream` (after the first event) are gates:
whoever holds one of them exclusively (flock) holds every request there. `begun` is made when a stream's first event is out. A plain answer takes S seconds
more (0): for workers on hosts that no test reaches quickly.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from openai_answers import event, last_event, plain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--key-file", required=True)
    parser.add_argument("--answer-s", type=float, default=0.0)
    parser.add_argument("gates", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    key = Path(options.key_file).read_text().strip()
    pass_gate(options.gates / "load")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(options.socket)
        listening.listen(16)
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=serve, args=(connection, key, options.gates, options.answer_s), daemon=True).start()


def pass_gate(gate: Path) -> None:
    """Wait until nobody holds this gate."""
    with gate.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def serve(connection: socket.socket, key: str, gates: Path, answer_s: float) -> None:
    """Answer the requests of one connection, until the other side leaves."""
    with connection, connection.makefile("rb") as reader:
        while request := reader.readline():
            method, path, _ = request.decode().split()
            headers: dict[str, str] = {}
            while (line := reader.readline().decode().strip()) != "":
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = json.loads(reader.read(int(headers.get("content-length", 0))) or "{}")
            try:
                if method == "GET":
                    send(connection, 200, {"status": "ok"})
                elif headers.get("authorization") != f"Bearer {key}":
                    send(connection, 401, {"error": {"message": "no key"}})
                elif body.get("stream"):
                    stream(connection, path, body, gates)
                else:
                    pass_gate(gates / "answer")
                    time.sleep(answer_s)
                    send(connection, 200, plain(path, body))
            except OSError:
                return  # who asked has left


def send(connection: socket.socket, status: int, body: object) -> None:
    data = json.dumps(body).encode()
    connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def stream(connection: socket.socket, path: str, body: dict[str, object], gates: Path) -> None:
    def chunk(data: bytes) -> None:
        connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    pass_gate(gates / "answer")
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk(event(path, body, 0))
    (gates / "begun").touch()
    pass_gate(gates / "stream")
    chunk(event(path, body, 1))
    chunk(last_event(path, body))
    chunk(b"")


if __name__ == "__main__":
    main()

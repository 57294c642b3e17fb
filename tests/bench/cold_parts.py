"""What stands at both ends of a lease in tests/bench/cold.py, each part stamping when it began and was done: `cold_parts.py VERB SLOT FOLDER [ARGUMENT]`.

`start`, `stop` and `alive` are the idle workload's commands round the stand-in miner, `worker` is the model server on the socket ARGUMENT.
Stamps are lines `WHAT MONOTONIC` in `<folder>/stamps`. Standard library only: interpreters start with `-I -S`, and none of their start is in a stamp.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

MINER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support", "standin_miner", "standin_miner.py")
LOAD_S = 0.2  # the model server's own time to ready
LEAVE_S = 0.05  # its own exit
ANSWER = b'{"choices": []}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def stamp(folder: str, what: str) -> None:
    line = f"{what} {time.monotonic()}\n".encode()
    file = os.open(f"{folder}/stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line)
    os.close(file)


def start(folder: str, pid_file: str, port: str) -> int:
    stamp(folder, "start_began")
    argv = [sys.executable, "-I", "-S", MINER, "-o", "pool.example:1", "-u", "w", "--api-port", port]
    null = os.open(os.devnull, os.O_RDWR)
    places = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=places, setsid=True)
    stamp(folder, "miner_started")
    with open(pid_file, "w") as file:
        file.write(str(pid))
    return 0


def stop(folder: str, pid_file: str) -> int:
    stamp(folder, "stop_began")
    try:
        with open(pid_file) as file:
            pid = int(file.read())
        gone = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    import select

    select.select([gone], [], [])
    os.unlink(pid_file)
    stamp(folder, "stop_done")
    return 0


def alive(folder: str, port: str) -> int:
    try:
        with socket.create_connection(("127.0.0.1", int(port)), 1) as miner:
            miner.sendall(b"GET /summary HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: miner.recv(65536), b""))
    except OSError:
        return 1
    if b'"hashrate": 0' in answer:
        return 1
    stamp(folder, "hashes")
    return 0


def worker(folder: str, path: str) -> int:
    stamp(folder, "worker_began")
    signal.signal(signal.SIGTERM, lambda *_: leave(folder))
    time.sleep(LOAD_S)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        stamp(folder, "worker_ready")
        while True:
            client = listener.accept()[0]
            if os.fork() == 0:  # the pool keeps a connection open: each has its own process
                signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
                answer_all(client)
                os._exit(0)
            client.close()


def leave(folder: str) -> None:
    stamp(folder, "worker_told")
    time.sleep(LEAVE_S)
    stamp(folder, "worker_left")
    os._exit(0)


def answer_all(client: socket.socket) -> None:
    """Every request whose head and body have come gets the same answer."""
    data = b""
    while chunk := client.recv(65536):
        data += chunk
        while (end := data.find(b"\r\n\r\n")) >= 0:
            lengths = [line.split(b":")[1] for line in data[:end].lower().split(b"\r\n") if line.startswith(b"content-length:")]
            whole = end + 4 + int((lengths or [b"0"])[0])
            if len(data) < whole:
                break
            data = data[whole:]
            client.sendall(HEAD % len(ANSWER) + ANSWER)


def main() -> int:
    verb, slot, folder, *argument = sys.argv[1:]
    pid_file = f"{folder}/{slot}.pid"
    if verb == "start":
        return start(folder, pid_file, argument[0])
    if verb == "stop":
        return stop(folder, pid_file)
    return alive(folder, argument[0]) if verb == "alive" else worker(folder, argument[0])


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""A miner for tests, in the manner of PeakMiner: one process a card, a summary over HTTP, and faults on demand. Pays no one.

It claims 2700 MiB of each of its cards in the simulated NVML ($GPU_SIM_DIR, default /run/gpu-sim) for as long as it lives.
Faults are words in $STANDIN_MINER_FAULTS, or in the file $GPU_SIM_DIR/miner/<uuid> (read at start and then ten times a second):

    fail-start       exits 1 before it touches a card
    hang-start       runs, claims nothing, answers nothing
    zero             runs at a hashrate of 0, no share is accepted any more
    die              exits 1, as after a CUDA fault
    ignore-sigterm   goes on after SIGTERM
    keep-memory[=S]  its memory stays taken S seconds after it ended (without S: for ever); gpu-sim.service frees it

Standard library only: it runs with the host's python3. It never prints the wallet.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

VERSION = "1.0.0"
MEMORY_MIB = 2700
HASHRATE = 51_200_000
WARM_UP_S = 0.3  # the kernel is compiled, the first hash is out
SHARE_EVERY_S = 4.0
POLL_S = 0.1


class Card:
    """One card's folder in the simulated NVML."""

    def __init__(self, folder: Path, faults_file: Path) -> None:
        self.folder = folder
        self.uuid = (folder / "uuid").read_text().strip()
        self.faults_file = faults_file
        self.claim_file = folder / "procs" / str(os.getpid())

    def device_refused(self) -> bool:
        """Whether this process may not open the card's node (a node without a driver, or none at all, is fine)."""
        try:
            os.close(os.open(f"/dev/nvidia{(self.folder / 'minor').read_text().strip()}", os.O_RDWR))
        except PermissionError:
            return True
        except OSError:
            pass
        return False

    def claim(self, mib: int) -> None:
        replace(self.claim_file, f"{mib}\n")

    def keep(self, seconds: str) -> None:
        """Moves the memory from this process to nobody: it is then still taken when the process has ended."""
        replace(self.folder / "held_until", f"{os.getpid()} {seconds}\n")
        replace(self.folder / "held", f"{MEMORY_MIB}\n")
        self.claim(0)

    def release(self) -> None:
        self.claim_file.unlink(missing_ok=True)


def replace(file: Path, text: str) -> None:
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o666)
    fresh.replace(file)


class Miner:
    """State that the main loop changes and the HTTP threads read."""

    def __init__(self, cards: Sequence[Card], pool: str, coin: str) -> None:
        self.cards = cards
        self.pool = pool
        self.coin = coin
        self.began = time.monotonic()
        self.accepted = 0
        self.last_share: float | None = None
        self.faults: dict[str, str] = {}
        self.kept = False
        self.stopped = threading.Event()

    def read_faults(self) -> None:
        text = os.environ.get("STANDIN_MINER_FAULTS", "")
        for card in self.cards:
            try:
                text += " " + card.faults_file.read_text()
            except OSError:
                continue
        self.faults = dict(word.partition("=")[::2] for word in text.split())

    def on_sigterm(self, *_: object) -> None:
        self.read_faults()
        if "ignore-sigterm" not in self.faults:
            self.stopped.set()

    @property
    def hashrate(self) -> int:
        return 0 if "zero" in self.faults or time.monotonic() - self.began < WARM_UP_S else HASHRATE

    def mine(self) -> int:
        """Mines until it is stopped or dies; returns the exit status."""
        for card in self.cards:
            card.claim(MEMORY_MIB)
        while not self.stopped.wait(POLL_S):
            self.read_faults()
            if "keep-memory" in self.faults and not self.kept:
                self.kept = True
                for card in self.cards:
                    card.keep(self.faults["keep-memory"] or "forever")
            if "die" in self.faults:
                print("standin-miner: CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
                return 1
            now = time.monotonic()
            if self.hashrate and (self.last_share is None or now - self.last_share >= SHARE_EVERY_S):
                self.last_share = now
                self.accepted += len(self.cards)
        return 0

    def summary(self) -> dict[str, object]:
        now = time.monotonic()
        return {
            "miner": f"standin-miner {VERSION}",
            "coin": self.coin,
            "algorithm": "pearlhash",
            "pool": self.pool,
            "pid": os.getpid(),
            "uptime_s": round(now - self.began, 1),
            "hashrate": self.hashrate * len(self.cards),
            "accepted": self.accepted,
            "rejected": 0,
            "last_share_age_s": None if self.last_share is None else round(now - self.last_share, 1),
            "gpus": [
                {"index": place, "uuid": card.uuid, "hashrate": self.hashrate, "memory_mib": MEMORY_MIB}
                for place, card in enumerate(self.cards)
            ],
        }


def serve(miner: Miner, port: int) -> ThreadingHTTPServer:
    """Answers GET /summary on loopback. Raises OSError where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/summary"
            body = json.dumps(miner.summary() if found else {"error": "not found"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """One line a request would fill the journal."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def find_cards(devices: str | None) -> list[Card]:
    """The cards of CUDA_VISIBLE_DEVICES, or all; -d picks from those by number. Raises SystemExit naming what is not there."""
    directory = Path(os.environ.get("GPU_SIM_DIR") or "/run/gpu-sim")
    by_uuid = {}
    for folder in sorted((directory / "cards").glob("*")):
        try:
            uuid, mode = (folder / "uuid").read_text().strip(), folder / "mode"
            if not (mode.exists() and mode.read_text().strip() in {"gone", "lost"}):
                by_uuid[uuid] = Card(folder, directory / "miner" / uuid)
        except OSError:
            continue
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = [uuid.strip() for uuid in named.split(",")] if named else list(by_uuid)
    if devices is not None:
        numbers = [int(number) for number in devices.split(",")]
        if max(numbers) >= len(wanted):
            raise SystemExit(f"standin-miner: no device {max(numbers)}; {len(wanted)} visible")
        wanted = [wanted[number] for number in numbers]
    missing = [uuid for uuid in wanted if uuid not in by_uuid]
    if missing or not wanted:
        raise SystemExit(f"standin-miner: no such card: {', '.join(missing) or 'none is visible'}")
    return [by_uuid[uuid] for uuid in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(prog="standin-miner", description=__doc__, allow_abbrev=False)
    parser.add_argument("--coin", default="pearl")
    parser.add_argument("-o", "--pool", required=True, metavar="HOST:PORT")
    parser.add_argument("-u", "--user", required=True, metavar="WALLET.WORKER")
    parser.add_argument("-p", "--password", default="x")
    parser.add_argument("-d", "--devices", metavar="N[,N…]", help="numbers among the visible cards (default: all)")
    parser.add_argument("--api-port", type=int, default=4068)
    parser.add_argument("--version", action="version", version=VERSION)
    options = parser.parse_args()
    cards = find_cards(options.devices)
    miner = Miner(cards, options.pool, options.coin)
    signal.signal(signal.SIGTERM, miner.on_sigterm)
    signal.signal(signal.SIGINT, miner.on_sigterm)
    miner.read_faults()
    if "fail-start" in miner.faults:
        print("standin-miner: no CUDA-capable device is detected", file=sys.stderr)
        return 1
    while "hang-start" in miner.faults and not miner.stopped.wait(POLL_S):
        miner.read_faults()
    if miner.stopped.is_set():
        return 0
    refused = [card.uuid for card in cards if card.device_refused()]
    if refused:
        print(f"standin-miner: may not open the device of {', '.join(refused)}", file=sys.stderr)
        return 1
    try:
        server = serve(miner, options.api_port)
    except OSError as taken:
        print(f"standin-miner: API port {options.api_port}: {taken.strerror}", file=sys.stderr)
        return 1
    print(f"standin-miner {VERSION}: mining {options.coin} on {', '.join(card.uuid for card in cards)}", flush=True)
    try:
        return miner.mine()
    finally:
        for card in cards:
            card.release()
        server.server_close()


if __name__ == "__main__":
    sys.exit(main())

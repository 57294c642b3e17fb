"""The miner's `alive` script against a real HTTP server."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "roles" / "gpu_miner" / "files" / "alive.py"


class Summary(BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/summary" else 404)
        self.end_headers()
        self.wfile.write(self.body if self.path == "/summary" else b"{}")

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Summary)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def alive(root: Path, port: int, **settings: object) -> subprocess.CompletedProcess[str]:
    shutil.copy(SCRIPT, root / "alive")
    keys = {"hashrate_key": "hashrate", "share_age_key": "last_share_age_s", "uptime_key": "uptime_s"}
    (root / "alive.json").write_text(json.dumps({"ports": {"c0": port}, "path": "/summary", "max_share_age_s": 600, **keys, **settings}))
    return subprocess.run(["/usr/bin/env", "python3", "-I", str(root / "alive"), "c0"], check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("summary", "status", "word"),
    [
        ({"hashrate": 5e7, "last_share_age_s": 10}, 0, ""),
        ({"hashrate": 0, "last_share_age_s": 10}, 1, "hashrate is 0"),
        ({}, 1, "hashrate is None"),
        ({"hashrate": True}, 1, "hashrate is None"),
        ({"hashrate": 5e7, "last_share_age_s": 601}, 1, "last accepted share is 601 s old"),
        ({"hashrate": 5e7, "last_share_age_s": None, "uptime_s": 30}, 0, ""),
        ({"hashrate": 5e7, "last_share_age_s": None, "uptime_s": 700}, 1, "no accepted share in 700 s"),
        ({"hashrate": 5e7}, 0, ""),
    ],
)
def test_only_a_miner_that_hashes_and_is_paid_counts(tmp_path: Path, port: int, summary: dict[str, object], status: int, word: str) -> None:
    Summary.body = json.dumps(summary).encode()
    done = alive(tmp_path, port)
    assert (done.returncode, word in done.stderr) == (status, True), done.stderr


def test_other_miners_put_their_numbers_elsewhere(tmp_path: Path, port: int) -> None:
    Summary.body = json.dumps({"gpus": [{"rate": 7}], "pool": {"age": 601}}).encode()
    assert alive(tmp_path, port, hashrate_key="gpus.0.rate", share_age_key="pool.none").returncode == 0
    assert alive(tmp_path, port, hashrate_key="gpus.0.rate", share_age_key="pool.age").returncode == 1
    assert alive(tmp_path, port, hashrate_key="gpus.1.rate").returncode == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]"])
def test_an_answer_that_is_no_summary_is_not_alive(tmp_path: Path, port: int, body: bytes) -> None:
    Summary.body = body
    assert alive(tmp_path, port).returncode == 1


def test_no_answer_is_not_alive(tmp_path: Path) -> None:
    done = alive(tmp_path, 1)
    assert done.returncode == 1
    assert "no summary" in done.stderr

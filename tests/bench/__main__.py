"""`python -m tests.bench [--repeats N] [--seconds S]`: one table, all columns in one run, interleaved, median and spread of the repeats.

Columns: `direct` (the stand-in worker alone), `yardstick` (tests/bench/forwarder.py), `pool` (`lease-pool serve` with authentication, admission,
accounting and metrics, its window warm) and, with LLAMA_SERVER=/path/llama-server and LLAMA_MODELS_DIR= set, `router` (llama.cpp's own).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "bench-token"
MODEL = "bench-model"
CASES = [("whole", 1), ("whole", 16), ("whole", 64), ("stream", 1), ("stream", 256)]


@dataclass(frozen=True)
class Target:
    name: str
    port: int
    model: str = MODEL


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def process(*argv: str, **env: str) -> Iterator[None]:
    """A server for as long as the block; SIGTERM at its end."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src' / 'lease_pool'}", "GPU_FLEET_LOG_LEVEL": "warning"} | env
    # Streams that are cut at the end of a measurement make the yardstick log tracebacks; a failed measurement speaks for itself.
    running = subprocess.Popen(argv, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        running.terminate()
        running.wait(30)


def wait_for(port: int, path: str | None = None, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            if path is None:
                socket.create_connection(("127.0.0.1", port), 1).close()
            else:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def pool_config(folder: Path, port: int) -> Path:
    (folder / "pool.token").write_text(TOKEN + "\n")
    config = {
        "listen": {"host": "127.0.0.1", "port": port},
        "token_file": str(folder / "pool.token"),
        "state_dir": str(folder / "state"),
        "runtime_dir": str(folder / "run"),
        "supervisor": "process",
        "card_source": "declared",
        "cards": [{"slot": "c0", "uuid": "GPU-bench", "memory_mib": 1000}],
        "window_s": 3600,
        "bounds": {"queue": 1000},
        "models": {
            MODEL: {
                "backend": "command",
                "argv": [sys.executable, str(ROOT / "tests" / "bench" / "standin_worker.py"), "{socket}"],
                "memory_mib": 100,
                "parallel": 512,
            }
        },
    }
    path = folder / "pool.yml"
    path.write_text(json.dumps(config))
    return path


@contextlib.contextmanager
def targets() -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct, yardstick, pool, router = (free_port() for _ in range(4))
        stack.enter_context(process(sys.executable, "-m", "tests.bench.standin_worker", str(direct)))
        stack.enter_context(process(sys.executable, "-m", "tests.bench.standin_worker", str(folder / "worker.sock")))
        stack.enter_context(process(sys.executable, "-m", "tests.bench.forwarder", str(yardstick), str(folder / "worker.sock")))
        stack.enter_context(process(sys.executable, "-m", "lease_pool", "serve", "--config", str(pool_config(folder, pool))))
        found = [Target("direct", direct), Target("yardstick", yardstick), Target("pool", pool)]
        server = os.environ.get("LLAMA_SERVER")
        if server:
            models = os.environ["LLAMA_MODELS_DIR"]
            argv = [server, "--models-dir", models, "--host", "127.0.0.1", "--port", str(router), "--api-key", TOKEN]
            stack.enter_context(process(*argv))
            found.append(Target("router", router, os.environ.get("LLAMA_MODEL", next(Path(models).glob("*.gguf")).stem)))
            wait_for(router, "/health")
        for target in found[:3]:
            wait_for(target.port)
        measure(Target("pool", pool), "whole", 1, 2)  # loads the worker
        yield found


def measure(target: Target, kind: str, connections: int, seconds: float) -> dict[str, float]:
    argv = [sys.executable, "-m", "tests.bench.load", str(target.port), TOKEN, kind, str(connections), str(seconds), target.model]
    line = subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True, timeout=seconds * 10 + 60).stdout
    result: dict[str, float] = json.loads(line)
    if result.pop("failed"):
        raise SystemExit(f"{target.name}: {line}")
    return result


def cell(figures: list[float]) -> str:
    middle = statistics.median(figures)
    digits = 3 if middle < 10 else 0
    return f"{middle:.{digits}f} [{min(figures):.{digits}f}..{max(figures):.{digits}f}]"


def verdicts(middle: dict[tuple[str, int, str, str], float], names: list[str]) -> Iterator[str]:
    """The targets of this pool, each with what was measured."""

    def ratio(kind: str, connections: int, figure: str, other: str) -> float:
        return middle[kind, connections, figure, "pool"] / middle[kind, connections, figure, other]

    checks = [("p50 at 1 connection <= 1.1 x yardstick", ratio("whole", 1, "p50", "yardstick"), 1.1, True)]
    checks += [(f"p99 at {n} <= 3 x yardstick", ratio("whole", n, "p99", "yardstick"), 3.0, True) for n in (1, 16)]
    checks += [(f"requests/s at {n} >= 0.85 x yardstick", ratio("whole", n, "rate", "yardstick"), 0.85, False) for n in (16, 64)]
    if "router" in names:
        checks += [(f"requests/s at {n} >= 2 x router", ratio("whole", n, "rate", "router"), 2.0, False) for n in (16, 64)]
    added = middle["stream", 1, "p50", "pool"] - middle["stream", 1, "p50", "direct"]
    checks.append(("ms added to a chunk at p50 <= 0.3", added, 0.3, True))
    checks.append(("chunk rate of 256 streams >= 0.9 x direct", ratio("stream", 256, "rate", "direct"), 0.9, False))
    for what, value, bound, at_most in checks:
        met = value <= bound if at_most else value >= bound
        yield f"  {'met   ' if met else 'MISSED'} {what}: {value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    figures: dict[tuple[str, int, str, str], list[float]] = {}
    with targets() as found:
        for _ in range(options.repeats):
            for kind, connections in CASES:
                for target in found:
                    if target.name == "router" and kind == "stream":
                        continue  # its stream is a real model's, not the stand-in's
                    for name, value in measure(target, kind, connections, options.seconds).items():
                        figures.setdefault((kind, connections, name, target.name), []).append(value)
    names = [target.name for target in found]
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.repeats} repeats of {options.seconds:g} s; median [least..most]"
    )
    print(f"{'':34}" + "".join(f"{name:>28}" for name in names))
    rows = [("whole", n, f, u) for n in (1, 16) for f, u in (("p50", "ms"), ("p99", "ms"))] + [
        ("whole", n, "rate", "requests/s") for n in (1, 16, 64)
    ]
    rows += [("stream", n, f, u) for n in (1, 256) for f, u in (("p50", "ms a chunk"), ("p99", "ms a chunk"), ("rate", "chunks/s"))]
    for kind, connections, figure, unit in rows:
        cells = (figures.get((kind, connections, figure, name)) for name in names)
        print(f"{f'{kind} x{connections} {figure} ({unit})':34}" + "".join(f"{cell(c) if c else '-':>28}" for c in cells))
    print("targets:")
    print(*verdicts({key: statistics.median(values) for key, values in figures.items()}, names), sep="\n")


if __name__ == "__main__":
    main()

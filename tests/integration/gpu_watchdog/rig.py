"""A host for the watchdog, in one folder: the real command over the real pynvml and the simulated library, a systemctl and a reboot of
ours, a pool that answers on a real socket, and a real webhook receiver."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.nvml_sim.cards import Card, Cards
from tests.support.nvml_sim.library import build

ROOT = Path(__file__).parents[3]
UUIDS = ("GPU-11111111-1111-4111-8111-111111111111", "GPU-22222222-2222-4222-8222-222222222222")

# The command itself, on a boot id that the test can change and without the package managers of this machine.
_RUN = """
import sys
from pathlib import Path
from gpu_watchdog import clocks, packages
clocks._BOOT_ID = Path(sys.argv.pop(1))
packages.ROOT = clocks._BOOT_ID.parent / "root"
from gpu_watchdog.cli import main
sys.exit(main())
"""

# Unit states are files of one word; a shell, because it is called several times a round.
_SYSTEMCTL = r"""
here=$1; shift
[ -e "$here/units/hang" ] && exec sleep 3600
while case "$1" in --*) true;; *) false;; esac; do shift; done
verb=$1; shift
for unit; do
  [ "$unit" = -- ] && continue
  case "$unit" in --*) continue;; esac
  if [ "$verb" = show ]; then
    state=none; [ -e "$here/units/$unit" ] && read -r state < "$here/units/$unit"
    load=loaded; [ "$state" = none ] && load=not-found && state=inactive
    printf 'Id=%s\nLoadState=%s\nActiveState=%s\n\n' "$unit" "$load" "$state"
  else
    echo "$verb $unit" >> "$here/orders"
    case "$verb" in stop) state=inactive;; *) state=active;; esac
    echo "$state" > "$here/units/$unit"
  fi
done
"""


class Rig:
    def __init__(self, folder: Path, *, cards: int = 2, **bounds: float) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.cards = Cards(folder / "gpu")
        self.cards.lay_out([Card(uuid) for uuid in UUIDS[:cards]])
        for name in ("state", "run", "launch", "hold"):
            (folder / name).mkdir()
        (folder / "root/proc").mkdir(parents=True)
        (folder / "root/proc/locks").touch()
        self.boot("boot-1")
        self.units({"lease-pool.service": "active"})
        (folder / "kernel.jsonl").write_text("")
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src/gpu_watchdog"),
            "LD_LIBRARY_PATH": str(build(ROOT / "build/nvml_sim").parent),
            "GPU_SIM_DIR": str(self.cards.directory),
        }
        (folder / "systemctl.sh").write_text(_SYSTEMCTL)
        (folder / "run.py").write_text(_RUN)
        # A "new boot" has the uptime of this machine, so the cooldown must be longer than that.
        quick = {
            "interval_s": 0.05, "probe_s": 2, "command_s": 2, "pool_s": 0.2, "peers_s": 1, "alert_s": 3, "misses": 3, "misses_with_signal": 2,
            "min_uptime_s": 1, "cooldown_s": 5e8, "window_s": 6e8, "drain_s": 0.5, "retry_s": 3600, "reboot_s": 30, "verify_s": 1, "clock_settle_s": 1,
            "reconcile_s": 0.3, "hash_s": 0.4,
        }  # fmt: skip
        self.options: dict[str, Any] = {
            "host": "gpu-b",
            "state_dir": str(self.state_dir),
            "runtime_dir": str(folder / "run"),
            "admin_socket": str(folder / "pool.sock"),
            "launch_dir": str(folder / "launch"),
            "hold_dir": str(folder / "hold"),
            "systemctl": ["/bin/sh", str(folder / "systemctl.sh"), str(folder)],
            "reboot": ["/bin/sh", "-c", f"echo rebooted >> {folder}/reboots"],
            "kernel_log": ["/bin/cat", str(folder / "kernel.jsonl"), "--"],
            "bounds": {**quick, **bounds},
            "cards": [{"slot": f"c{number}", "uuid": uuid} for number, uuid in enumerate(UUIDS[:cards])],
        }

    @property
    def config(self) -> Path:
        path = self.folder / "watchdog.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.options.items() if key not in {"bounds", "cards", "peers"}]
        lines += ["[bounds]", *(f"{key} = {value}" for key, value in self.options["bounds"].items())]
        for table in ("cards", "peers"):
            for row in self.options.get(table, []):
                lines += [f"[[{table}]]", *(f"{key} = {json.dumps(value)}" for key, value in row.items())]
        path.write_text("\n".join(lines) + "\n")
        return path

    def boot(self, boot_id: str) -> None:
        (self.folder / "boot_id").write_text(boot_id + "\n")

    def units(self, states: dict[str, str]) -> None:
        (self.folder / "units").mkdir(exist_ok=True)
        for unit, state in states.items():
            (self.folder / "units" / unit).write_text(state + "\n")

    def unit_state(self, unit: str) -> str:
        return (self.folder / "units" / unit).read_text().strip()

    def orders(self) -> list[str]:
        return self._lines("orders")

    def reboots(self) -> int:
        return len(self._lines("reboots"))

    def _lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, str(self.folder / "run.py"), str(self.folder / "boot_id"), *words, "--config", str(self.config)]

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.argv(*words), env=self.environment, capture_output=True, text=True, timeout=20, check=False)

    def status(self) -> dict[str, Any]:
        done = self.call("status", "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def state(self) -> dict[str, Any]:
        return dict(json.loads((self.state_dir / "watchdog.json").read_text())["state"])

    def last(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "run/last.json").read_text()))

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.argv("run"), env=self.environment, stderr=log)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def stop(self) -> int:
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(15)
        self.process = None
        return code

    def rounds(self, number: int) -> None:
        """Return after so many further rounds of the running watchdog."""
        for _ in range(number):
            seen = self._stamp()
            self.until(lambda seen=seen: self._stamp() != seen)

    def _stamp(self) -> int:
        try:
            return (self.folder / "run/last.json").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def until(self, holds: Callable[[], Any], bound_s: float = 20) -> None:
        """Poll what another process writes; there is nothing to await across processes but its files."""
        end = time.monotonic() + bound_s
        while not self._quietly(holds):
            assert time.monotonic() < end, f"not within {bound_s} s; log:\n{self.log()}"
            assert self.process is None or self.process.poll() is None, f"the watchdog ended; log:\n{self.log()}"
            time.sleep(0.01)

    @staticmethod
    def _quietly(holds: Callable[[], Any]) -> bool:
        try:
            return bool(holds())
        except (FileNotFoundError, json.JSONDecodeError):
            return False

    def phase_is(self, phase: str, bound_s: float = 20) -> None:
        self.until(lambda: self.state()["phase"] == phase, bound_s)


class _Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class FakePool:
    """Answers like the pool's admin socket (DESIGN.md 4.4), and remembers what it was told."""

    def __init__(self, socket: Path, uuids: tuple[str, ...] = UUIDS) -> None:
        self.cards = {
            uuid: {"uuid": uuid, "slot": f"c{n}", "state": "mining", "reason": None, "lease": None} for n, uuid in enumerate(uuids)
        }
        self.draining, self.drain_reason = False, None
        self.told: list[tuple[str, Any]] = []
        pool = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return "unix"

            def log_message(self, *_args: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer({"draining": pool.draining, "drain_reason": pool.drain_reason, "cards": list(pool.cards.values())})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null")
                pool.post(self.path, body)
                self.answer({})

            def answer(self, body: Any) -> None:
                raw = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        self.server = _Unix(str(socket), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def post(self, path: str, body: Any) -> None:
        self.told.append((path, body))
        if path == "/drain":
            self.draining, self.drain_reason = True, body["reason"]
        elif path == "/resume" and body:
            self.cards[body["card"]].update(state="mining", reason=None)
        elif path == "/resume":
            self.draining, self.drain_reason = False, None
        elif path.startswith("/quarantine/"):
            self.cards[path.removeprefix("/quarantine/")].update(state="quarantined", reason=body["reason"])

    def lease(self, uuid: str, held: bool) -> None:
        lease = {"id": "l1", "alias": "t3", "model": "m", "worker_pid": 1, "since": "", "requests": 1} if held else None
        self.cards[uuid].update(state="serving" if held else "mining", lease=lease)

    def paths(self) -> list[str]:
        return [path for path, _body in self.told]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Tcp(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


class Receiver:
    """A real HTTP receiver for alerts; also serves a peer's /ready from `ready` (None: 500)."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.ready: Any = {"ready": True, "draining": False, "rebooting": None}
        self.status = 200
        self.headers: list[dict[str, str]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if receiver.status == 200:
                    receiver.got.append(body)
                    receiver.headers.append(dict(self.headers))
                self.send_response(receiver.status)
                self.end_headers()

            def do_GET(self) -> None:
                raw = json.dumps(receiver.ready).encode()
                self.send_response(200 if receiver.ready and receiver.ready["ready"] else 503)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        self.server = _Tcp(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def kinds(self) -> list[str]:
        return [alert["kind"] for alert in self.got]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

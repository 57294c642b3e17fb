"""The real pool as a subprocess under `supervisor: process`, with stand-in idle workloads and workers, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "tests" / "support" / "workers"
PYTHON = sys.executable
TOKEN = "test-token"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def worker_argv(*extra: str) -> list[str]:
    return [PYTHON, "-I", "-S", str(WORKERS / "worker.py"), "--socket", "{socket}", "--key-file", "{api_key_file}", *extra]


def model(*extra: str, memory_mib: int = 1000, **keys: Any) -> dict[str, Any]:
    return {"backend": "command", "memory_mib": memory_mib, "argv": worker_argv(*extra), "endpoints": ["chat"]} | keys


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


Maker = Callable[..., "PoolRig"]  # the fixture `rigs`


class PoolRig:
    """One pool in its own folder. `async with` starts it and ends everything it left."""

    def __init__(self, cards: int = 1, models: dict[str, Any] | None = None, *, memory: list[int] | None = None, **overrides: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pool-"))  # short: a unix socket's path is bounded
        self.idle = self.folder / "idle"
        self.idle.mkdir()
        self.port = free_port()
        (self.folder / "token").write_text(TOKEN + "\n")
        idle = [PYTHON, "-I", "-S", str(WORKERS / "idle.py")]
        bounds = {"free_s": 5, "ready_s": 8, "stop_s": 1, "queue_s": 10, "drain_s": 5, "first_byte_s": 10, "stall_s": 10}
        self.config: dict[str, Any] = {
            "listen": {"host": "127.0.0.1", "port": self.port},
            "token_file": str(self.folder / "token"),
            "state_dir": str(self.folder / "state"),
            "runtime_dir": str(self.folder / "run"),
            "supervisor": "process",
            "card_source": "declared",
            "cards": [{"slot": f"c{n}", "uuid": f"GPU-{n}", "memory_mib": (memory or [10000] * cards)[n]} for n in range(cards)],
            "idle_workload": {"driver": "command"} | {verb: [*idle, verb, "{slot}", str(self.idle)] for verb in ("start", "stop", "alive")},
            "models": models if models is not None else {"m": model(aliases=["t4-m"])},
        } | {key: value for key, value in overrides.items() if key != "bounds"}
        self.config["bounds"] = bounds | overrides.get("bounds", {})
        self.path = self.folder / "pool.yml"
        self.write()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / "pool.log"
        self.session: aiohttp.ClientSession | None = None

    # --- life ---

    def write(self) -> None:
        self.path.write_text(yaml.safe_dump(self.config))

    def spawn(self, env: dict[str, str] | None = None) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool")} | (env or {})
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "lease_pool", "serve", "--config", str(self.path)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def start(self, env: dict[str, str] | None = None, *, settled: bool = True) -> None:
        self.spawn(env)
        if self.session is None:
            self.session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=60), connector=aiohttp.TCPConnector(limit=0, force_close=True)
            )
        await self.until(self._answers, "the pool answers", 15)
        if settled:
            await self.until_all("mining", 15)

    async def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"pool ended with {self.process.returncode}:\n{self.log.read_text()}")
        try:
            await self.status()
        except (aiohttp.ClientError, OSError):
            return False
        return True

    async def __aenter__(self) -> PoolRig:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> list[int]:
        """Stop the pool as a supervisor would, and say which worker processes it left (none, ever)."""
        left: list[int] = []
        try:
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                self.process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.to_thread(self.process.wait, 20)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            left = self.workers()
            if self.session is not None:
                await self.session.close()
                self.session = None
        finally:
            self.clear()
        return left

    def clear(self) -> None:
        for file in self.idle.glob("*.fault"):
            file.unlink()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for file in self.idle.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self, bound_s: float = 30) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, bound_s)

    # --- looking ---

    async def until(self, condition: Callable[[], Any], what: str, bound_s: float = 10) -> Any:
        """Poll a condition (an endpoint or /proc, where there is nothing to await)."""
        deadline = time.monotonic() + bound_s
        while True:
            result = condition()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return result
            if time.monotonic() >= deadline:
                raise AssertionError(f"not within {bound_s} s: {what}\n{self.log.read_text()[-4000:] if self.log.exists() else ''}")
            await asyncio.sleep(0.02)

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        connector = aiohttp.UnixConnector(path=str(self.folder / "run" / "pool.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request(method, f"http://pool{path}", json=body) as response,
        ):
            answer = await response.json()
            if response.status >= 300:
                raise AssertionError(f"{response.status}: {answer}")
            return answer

    async def status(self) -> dict[str, Any]:
        return await self.admin("GET", "/status")

    async def card(self, slot: str = "c0") -> dict[str, Any]:
        return next(card for card in (await self.status())["cards"] if card["slot"] == slot)

    async def until_state(self, state: str, slot: str = "c0", bound_s: float = 10) -> dict[str, Any]:
        async def reached() -> Any:
            card = await self.card(slot)
            return card if card["state"] == state else None

        return await self.until(reached, f"{slot} is {state}", bound_s)

    async def until_all(self, state: str, bound_s: float = 10) -> None:
        for card in self.config["cards"]:
            await self.until_state(state, card["slot"], bound_s)

    async def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        connector = aiohttp.UnixConnector(path=str(self.folder / "run" / "pool.sock"))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://pool/events?since=0") as response:
            lines = [json.loads(line) for line in (await response.text()).splitlines()]
        return [line for line in lines if kind is None or line["event"] == kind]

    def processes(self) -> list[int]:
        """Workers, their children, guards' children: everything whose environment carries this pool's folder or mark, but the pool itself."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or (self.process is not None and int(name) == self.process.pid):
                continue
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{name}/environ").read_bytes()
                cmdline = Path(f"/proc/{name}/cmdline").read_bytes()
                ours = (b"GPU_FLEET_WORKER=" in environ and self.mark in environ) or str(self.folder).encode() in cmdline
                if ours and alive(int(name)):
                    found.append(int(name))
        return found

    @property
    def mark(self) -> bytes:
        import hashlib

        return hashlib.sha256(str(self.folder / "state").encode()).hexdigest()[:16].encode()

    def workers(self) -> list[int]:
        """Live processes of worker trees of this pool."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    environ = Path(f"/proc/{name}/environ").read_bytes()
                    if b"GPU_FLEET_WORKER=" in environ and self.mark in environ and alive(int(name)):
                        found.append(int(name))
        return found

    def guards(self) -> list[int]:
        """The guards of the running pool: its children that run guard.py."""
        assert self.process is not None
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                    if int(stat[1]) == self.process.pid and b"guard.py" in Path(f"/proc/{name}/cmdline").read_bytes():
                        found.append(int(name))
        return found

    def idle_pid(self, slot: str = "c0") -> int | None:
        try:
            pid = int((self.idle / f"{slot}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if alive(pid) else None

    def fault(self, *faults: str, slot: str = "c0") -> None:
        (self.idle / f"{slot}.fault").write_text("\n".join(faults))

    # --- asking ---

    def post(self, body: dict[str, Any] | None = None, *, path: str = "/v1/chat/completions", **headers: str) -> Any:
        assert self.session is not None
        return self.session.post(
            f"http://127.0.0.1:{self.port}{path}",
            json={"model": "m"} | (body or {}),
            headers={"Authorization": f"Bearer {TOKEN}"} | {k.replace("_", "-"): v for k, v in headers.items()},
        )

    async def ask(self, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, Any]:
        async with self.post(body, **headers) as response:
            text = await response.text()
            try:
                return response.status, json.loads(text)
            except ValueError:
                return response.status, text

    async def get(self, path: str) -> tuple[int, Any]:
        assert self.session is not None
        async with self.session.get(f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"}) as response:
            text = await response.text()
            return response.status, json.loads(text) if response.content_type == "application/json" else text

    def cli(self, *arguments: str, **keys: Any) -> subprocess.CompletedProcess[str]:
        return self.cli_with(self.path, *arguments, **keys)

    def cli_with(self, config: Path, *arguments: str, **keys: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PYTHON, "-m", "lease_pool", arguments[0], "--config", str(config), *arguments[1:]],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **keys,
        )

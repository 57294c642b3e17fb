"""Runs the real LiteLLM with the guard, as the unit on a host does, on a free port."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import aiohttp

from tests.support.pool_double import TOKEN

MASTER_KEY = "sk-master-key-of-the-tests"
ROOT = Path(__file__).resolve().parents[2]


class GatewayProcess:
    """One LiteLLM. `folder` holds config.yaml, keys.json and guard.json; `extra` adds to the environment."""

    def __init__(self, python: Path, folder: Path, extra: dict[str, str] | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"litellm-{self.port}.log"
        self._python = python
        self._folder = folder
        self._environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": f"{ROOT / 'src' / 'gateway_guard'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "DISABLE_ADMIN_UI": "True",
            "NO_DOCS": "True", "NO_REDOC": "True", "NO_OPENAPI": "True", "GATEWAY_GUARD_DIR": str(folder),
            "FLEET_POOL_TOKEN": TOKEN, "FLEET_FAR_KEY": "hosted-key", "LITELLM_MASTER_KEY": MASTER_KEY, **(extra or {}),
        }  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, within_s: float = 90) -> None:
        program = str(self._python.parent / "litellm")
        arguments = ["--config", str(self._folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(self.port), "--num_workers", "1"]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                program, *arguments, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        async with aiohttp.ClientSession() as session, asyncio.timeout(within_s):
            while True:
                try:
                    async with session.get(f"{self.url}/health/liveliness") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                if self._process.returncode is not None:
                    raise RuntimeError(f"LiteLLM ended: {self.log.read_text()[-3000:]}")
                await asyncio.sleep(0.1)

    async def stop(self, kill: bool = False) -> None:
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL if kill else signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                os.killpg(self._process.pid, signal.SIGKILL)
                await self._process.wait()
        self._process = None

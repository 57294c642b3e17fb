"""A fleet of doubles with a real LiteLLM in front of it, and how a client talks to it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway_guard import approval
from tests.support import litellm_venv
from tests.support.gateway_fleet import KEYS, MODELS, render
from tests.support.gateway_process import GatewayProcess
from tests.support.hosted_double import HostedDouble
from tests.support.pool_double import PoolDouble

SIGNERS = {name: Ed25519PrivateKey.generate() for name in ("operator", "workflow", "stranger")}
CARDS = {"gpu-a": [12, 12, 12], "gpu-b": [12, 24, 24]}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class GatewayClient:
    """Asks one gateway as its clients do."""

    session: aiohttp.ClientSession
    gateway: GatewayProcess

    async def ask(
        self,
        model: str,
        *,
        key: str = "agent",
        data_class: str | None = None,
        path: str = "/v1/chat/completions",
        base: str | None = None,
        **body: Any,
    ) -> Answer:
        """Ask for an answer; `base`: another address than the gateway's own."""
        content = (
            {"messages": [{"role": "user", "content": "hello"}]}
            if path.endswith(("chat/completions", "messages")) and "messages" not in body
            else {}
        )
        payload = {"model": model, **content, **body}
        headers = {"X-Data-Class": data_class} if data_class else {}
        return await self.send(path, json.dumps(payload).encode(), key=key, headers=headers, base=base)

    async def send(
        self,
        path: str,
        body: bytes,
        *,
        key: str = "agent",
        method: str = "POST",
        headers: dict[str, str] | None = None,
        base: str | None = None,
    ) -> Answer:
        all_headers = {"Authorization": f"Bearer {KEYS.get(key, key)}", "Content-Type": "application/json", **(headers or {})}
        url = aiohttp.client.URL(f"{base or self.gateway.url}{path}", encoded=True)
        async with self.session.request(method, url, data=body, headers=all_headers, allow_redirects=False) as response:
            return Answer(
                response.status, {name.lower(): value for name, value in response.headers.items()}, await response.text(errors="replace")
            )


@dataclass
class Fleet(GatewayClient):
    """The doubles with the gateway in front of them."""

    pools: dict[str, PoolDouble]
    hosted: HostedDouble
    folder: Path

    def left_the_fleet(self) -> list[dict[str, Any]]:
        """What reached the hosted model; LiteLLM's own question for the provider's list of models carries nothing of a request."""
        return [item for item in self.hosted.requests if item["path"] != "/v1/models" or item["text"]]

    def pool_requests(self) -> dict[str, list[dict[str, Any]]]:
        return {host: [item for item in pool.requests if item["path"] != "/v1/models"] for host, pool in self.pools.items()}


async def start_fleet(
    folder: Path, *, extra: dict[str, str] | None = None, change: Callable[[dict[str, Any]], None] | None = None
) -> Fleet:
    pools = {host: PoolDouble(cards=list(cards), models=dict(MODELS)) for host, cards in CARDS.items()}
    hosted = HostedDouble()
    for double in (*pools.values(), hosted):
        await double.start()
    render(folder, {host: pool.url for host, pool in pools.items()}, hosted.url, guard_settings())
    if change is not None:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        change(config)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    gateway = GatewayProcess(litellm_venv.python(), folder, extra)
    await gateway.start()
    return Fleet(aiohttp.ClientSession(), gateway, pools, hosted, folder)


async def stop_fleet(fleet: Fleet) -> None:
    await fleet.session.close()
    await fleet.gateway.stop()
    for double in (*fleet.pools.values(), fleet.hosted):
        await double.stop()


def guard_settings() -> dict[str, Any]:
    public = {name: base64.b64encode(approval.public_bytes(key)).decode() for name, key in SIGNERS.items()}
    approvers = {"operator": {"public_key": public["operator"]}, "workflow": {"public_key": public["workflow"], "principals": ["workflow"]}}
    return {"approvers": approvers, "withhold": ["public", "internal"], "patterns": {"PROJECT": "Orion-[0-9]+"}}

"""Whether a worker is ready: its own ready path answers 200, nothing less (a model list answers before the model is loaded)."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

from lease_pool.config import ModelConfig
from lease_pool.types import Endpoint

FIRST_PAUSE_S = 0.01
MOST_PAUSE_S = 0.025  # on average half of this is added to every load; a try costs half a millisecond of CPU
TRY_S = 5.0


class WrongDimensions(Exception):
    """The server embeds in another size than the configuration says."""


def _session(endpoint: Endpoint) -> tuple[aiohttp.ClientSession, str]:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    timeout = aiohttp.ClientTimeout(total=TRY_S)
    if endpoint.socket is not None:
        connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path=str(endpoint.socket), force_close=True)
        return aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout), "http://worker"
    return aiohttp.ClientSession(headers=headers, timeout=timeout), f"http://{endpoint.host}:{endpoint.port}"


async def until_ready(endpoint: Endpoint, model: ModelConfig) -> None:
    """Return once the worker answers 200; the caller bounds it. Raises WrongDimensions."""
    session, base = _session(endpoint)
    pause = FIRST_PAUSE_S
    async with session:
        while not await _answers_200(session, base + model.ready_path):
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, MOST_PAUSE_S)
        if model.dimensions is not None and "embeddings" in model.endpoints:
            await _check_dimensions(session, base, model)


async def _answers_200(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.get(url) as response:
            return response.status == 200
    return False


async def _check_dimensions(session: aiohttp.ClientSession, base: str, model: ModelConfig) -> None:
    try:
        async with session.post(f"{base}/v1/embeddings", json={"model": model.name, "input": "ready"}) as response:
            size = len((await response.json())["data"][0]["embedding"])
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
        raise WrongDimensions(f"{model.name}: its embeddings cannot be checked: {error or type(error).__name__}") from None
    if size != model.dimensions:
        raise WrongDimensions(f"{model.name}: embeddings have {size} dimensions, {model.dimensions} are configured")

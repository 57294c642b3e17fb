"""The route allowlist: what nginx lets through to LiteLLM, and what of LiteLLM's answers it lets out."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from tests.support.gateway_cases import ENDPOINTS
from tests.support.gateway_front import MISSING, Front, is_installed
from tests.support.gateway_hostile import hostile_requests
from tests.support.gateway_rig import Fleet

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.skipif(not is_installed(), reason=MISSING)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def front(shared_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    nginx = Front(tmp_path_factory.mktemp("front"), shared_fleet.gateway.port)
    await nginx.start()
    yield nginx
    await nginx.stop()


@pytest.fixture
def through(fleet: Fleet, front: Front) -> Fleet:
    """The fleet, asked through nginx."""
    gateway: Any = SimpleNamespace(url=front.url, log=fleet.gateway.log)
    return dataclasses.replace(fleet, gateway=gateway)


async def test_a_stream_passes_chunk_by_chunk(through: Fleet) -> None:
    for pool in through.pools.values():
        pool.tokens, pool.token_s = 5, 0.2
    arrivals: list[float] = []
    headers = {"Authorization": "Bearer agent-key-1"}
    body = {"model": "t3-smart", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    async with through.session.post(f"{through.gateway.url}/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: {"):
                arrivals.append(time.monotonic())
    assert max(later - earlier for earlier, later in itertools.pairwise(arrivals)) < 0.5
    assert arrivals[-1] - arrivals[0] > 0.5, "it was buffered"


@pytest.mark.parametrize(("path", "alias", "body"), ENDPOINTS)
async def test_answers_name_the_card_and_the_request_and_nothing_of_litellm(
    through: Fleet, path: str, alias: str, body: dict[str, Any]
) -> None:
    answer = await through.ask(alias, path=path, **body)
    assert answer.status == 200
    assert answer.headers["x-gpu-fleet-lease"] == "lease-1"
    assert answer.headers["x-gpu-fleet-card"].startswith("GPU-")
    assert len(answer.headers["x-request-id"]) == 32
    assert not [name for name in answer.headers if "litellm" in name or name.startswith("llm_provider")]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/ui/",
        "/openapi.json",
        "/health",
        "/health/readiness",
        "/public/model_hub",
        "/sso/key/generate",
        "/.well-known/x",
        "/v1/models/../../ui/",
    ],
)
async def test_no_other_route_is_served(through: Fleet, path: str) -> None:
    answer = await through.send(path, b"", method="GET")
    assert answer.status == 404
    assert answer.json["error"]["code"] == "404"


async def test_the_digest_of_the_catalog_and_liveness_need_no_key(through: Fleet) -> None:
    assert (await through.send("/catalog.sha256", b"", method="GET", headers={"Authorization": ""})).text == "a" * 64 + "\n"
    assert (await through.send("/health/liveliness", b"", method="GET", headers={"Authorization": ""})).status == 200


async def test_a_wrong_method_and_too_large_a_body_are_told_in_json(through: Fleet) -> None:
    assert (await through.send("/v1/chat/completions", b"", method="GET")).json["error"]["code"] == "405"
    answer = await through.send("/v1/chat/completions", b"x" * (2**20 + 1))
    assert (answer.status, answer.json["error"]["code"]) == (413, "413")


async def test_nothing_hostile_leaves_through_nginx_either(through: Fleet) -> None:
    for case in hostile_requests(through.hosted.url):
        try:
            await through.send(case.path, case.body, key=case.key, method=case.method, headers=case.headers)
        except (OSError, ValueError):
            continue
    assert through.left_the_fleet() == []


@pytest.mark.parametrize("body", [{}, {"stream": True}])
async def test_a_client_that_leaves_nginx_gives_its_card_back(through: Fleet, body: dict[str, Any]) -> None:
    for pool in through.pools.values():
        pool.tokens, pool.token_s = 1000, 0.05
        pool.gate = None if body else asyncio.Event()
    request = asyncio.create_task(through.ask("t3-smart", **body))
    async with asyncio.timeout(10):
        while sum(pool.open for pool in through.pools.values()) == 0:  # noqa: ASYNC110  # the sum of two doubles
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
    request.cancel()
    async with asyncio.timeout(2):
        for pool in through.pools.values():
            await pool.all_closed()
    await asyncio.gather(request, return_exceptions=True)

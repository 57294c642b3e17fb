"""Nothing restricted leaves the fleet: the hostile requests against the real LiteLLM, with all layers and with each of them missing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.support.gateway_hostile import Hostile, hostile_requests
from tests.support.gateway_rig import Fleet, start_fleet, stop_fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")
LAYERS = ("auth", "pre_call", "filter", "last_hop")
FAULTS: tuple[int | str, ...] = (500, 400, 429, "reset", 302, 307)  # redirects lead to the hosted model

LEAKS = {
    "t3-smart": "t1-smart",
    "t3-code": "hosted:far/far-model",
    "t4-rerank": "hosted:far-rank/rank-model",
    "t3-image": "hosted:far/far-image",
}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
FAILING: list[tuple[str, dict[str, Any]]] = [
    *(
        ("/v1/chat/completions", {"model": model, "stream": stream, **CHAT})
        for model in ("t3-smart", "t3-code")
        for stream in (False, True)
    ),
    ("/v1/rerank", {"model": "t4-rerank", "query": "x", "documents": ["x"]}),
    ("/v1/images/generations", {"model": "t3-image", "prompt": "x"}),
    ("/v1/embeddings", {"model": "t4-embedding", "input": "x"}),
    ("/v1/completions", {"model": "t3-smart", "prompt": "x"}),
    ("/v1/messages", {"model": "t3-smart", "max_tokens": 5, **CHAT}),
    *(("/v1/responses", {"model": "t3-smart", "input": "x", "stream": stream}) for stream in (False, True)),
]


def _poison(config: dict[str, Any], off: tuple[str, ...] = ()) -> None:
    """Add what a wrong catalog could render at worst: fallbacks from local groups to the hosted model, for every kind of error."""
    leaks = [{alias: [hosted]} for alias, hosted in LEAKS.items()]
    config["router_settings"]["fallbacks"] = [
        entry for entry in config["router_settings"]["fallbacks"] if set(entry).isdisjoint(LEAKS)
    ] + leaks
    config["router_settings"]["context_window_fallbacks"] = leaks
    config["router_settings"]["content_policy_fallbacks"] = leaks
    config["litellm_settings"]["callbacks"] = ["tests.support.gateway_layers.guard"]
    config["general_settings"]["custom_auth"] = "tests.support.gateway_layers.user_api_key_auth"
    if set(off) == set(LAYERS):
        config["router_settings"]["num_retries"] = 0  # without the guard LiteLLM sleeps between its tries; they change nothing here
    if "auth" in off:
        config["general_settings"]["custom_auth_run_common_checks"] = False
        config["litellm_settings"]["enable_post_custom_auth_checks"] = False


async def _start(folder: Path, off: tuple[str, ...]) -> Fleet:
    return await start_fleet(folder, extra={"GATEWAY_LAYERS_OFF": ",".join(off)}, change=lambda config: _poison(config, off))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def poisoned(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    fleet = await _start(tmp_path_factory.mktemp("poisoned"), ())
    yield fleet
    await stop_fleet(fleet)


async def _leaks(fleet: Fleet, failing: Sequence[tuple[str, dict[str, Any]]] = FAILING) -> tuple[dict[str, int], int]:
    """Send everything hostile, and `failing` while all pools fail; return what reached the hosted model by case, and how many cases there were."""
    leaked: dict[str, int] = {}
    cases = hostile_requests(fleet.hosted.url)
    for case in cases:
        await _send(fleet, case)
        _count(fleet, case.name, leaked)
    for fault in FAULTS:
        for path, body in failing:
            for pool in fleet.pools.values():
                pool.fault, pool.fault_headers = fault, {"Location": f"{fleet.hosted.url}{path}"}
            await _send(fleet, Hostile("failing", path=path, body=json.dumps(body).encode()))
            _count(fleet, f"all pools fail {path} of {body['model']} with {fault}, stream {body.get('stream', False)}", leaked)
    for pool in fleet.pools.values():
        pool.reset()
    return leaked, len(cases) + len(failing) * len(FAULTS)


async def _send(fleet: Fleet, case: Hostile) -> None:
    try:
        answer = await fleet.send(case.path, case.body, key=case.key, method=case.method, headers=case.headers)
    except (aiohttp.ClientError, ValueError):
        return  # refused below HTTP, or not a request that a client can send
    assert answer.status != 500 or "Traceback" not in answer.text, case.name


def _count(fleet: Fleet, name: str, leaked: dict[str, int]) -> None:
    if left := fleet.left_the_fleet():
        leaked[name] = len(left)
        fleet.hosted.requests.clear()


async def test_no_hostile_request_leaves_the_fleet_even_with_leaking_fallbacks_configured(poisoned: Fleet) -> None:
    leaked, cases = await _leaks(poisoned)
    assert leaked == {}
    assert cases >= 8 + 76 + 40
    print(f"{cases} hostile cases, 0 left the fleet")


async def _leaks_without(
    off: tuple[str, ...], folder: Path, failing: Sequence[tuple[str, dict[str, Any]]] = FAILING
) -> tuple[dict[str, int], int]:
    fleet = await _start(folder, off)
    try:
        return await _leaks(fleet, failing)
    finally:
        await stop_fleet(fleet)


@pytest.mark.timeout(180)
async def test_nothing_leaves_with_any_one_layer_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = await asyncio.gather(*(_leaks_without((layer,), tmp_path_factory.mktemp(layer)) for layer in LAYERS))  # four gateways at once
    assert {layer: leaked for layer, (leaked, _) in zip(LAYERS, found, strict=True)} == {layer: {} for layer in LAYERS}
    print(f"with one layer off at a time: {' + '.join(str(cases) for _, cases in found)} hostile cases, 0 left the fleet")


async def test_with_every_layer_off_the_same_requests_do_leave(tmp_path: Path) -> None:
    # Without the guard LiteLLM tries an image whose pool fails for half a minute.
    leaked, cases = await _leaks_without(LAYERS, tmp_path, [case for case in FAILING if case[0] == "/v1/chat/completions"])
    print(f"{len(leaked)} of {cases} hostile cases left the fleet without the guard")
    assert len(leaked) > 20

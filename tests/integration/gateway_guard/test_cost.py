"""What the guard adds to a request: the same LiteLLM with all of its layers and with none, side by side."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import litellm_venv
from tests.support.gateway_process import GatewayProcess
from tests.support.gateway_rig import Fleet, start_fleet, stop_fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")
OFF = "auth,pre_call,filter,last_hop"


@pytest.mark.long
@pytest.mark.timeout(200)
async def test_the_guard_costs_less_than_a_millisecond(tmp_path: Path) -> None:
    def layered(config: dict[str, Any]) -> None:
        config["litellm_settings"]["callbacks"] = ["tests.support.gateway_layers.guard"]
        config["general_settings"]["custom_auth"] = "tests.support.gateway_layers.user_api_key_auth"

    guarded = await start_fleet(tmp_path, change=layered)
    plain = GatewayProcess(litellm_venv.python(), tmp_path, {"GATEWAY_LAYERS_OFF": OFF})
    try:
        await plain.start()
        bare = Fleet(guarded.pools, guarded.hosted, tmp_path, guarded.session, plain)
        times: dict[str, list[float]] = {"without": [], "with": []}
        for number in range(320):
            for name, fleet in (("without", bare), ("with", guarded)):
                started = time.perf_counter()
                assert (await fleet.ask("t3-smart")).status == 200
                if number >= 20:
                    times[name].append((time.perf_counter() - started) * 1000)
    finally:
        await plain.stop()
        await stop_fleet(guarded)
    p50 = {name: statistics.median(values) for name, values in times.items()}
    print(f"p50 of a request: {p50['without']:.2f} ms without the guard, {p50['with']:.2f} ms with it")
    assert p50["with"] - p50["without"] < 1


@pytest.mark.long
@pytest.mark.timeout(200)
async def test_a_gateway_that_restarts_in_mid_stream_ends_the_stream_and_its_lease(tmp_path: Path) -> None:
    fleet = await start_fleet(tmp_path)
    try:
        for pool in fleet.pools.values():
            pool.tokens, pool.token_s = 1000, 0.05
        headers = {"Authorization": "Bearer agent-key-1"}
        body = {"model": "t3-smart", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        async with fleet.session.post(f"{fleet.gateway.url}/v1/chat/completions", json=body, headers=headers) as response:
            await response.content.readline()
            started = time.monotonic()
            await fleet.gateway.stop(kill=True)
            for pool in fleet.pools.values():
                await pool.all_closed()
            released = time.monotonic() - started
        await fleet.gateway.start()
        for pool in fleet.pools.values():
            pool.reset()
        answer = await fleet.ask("t3-smart")
        print(
            f"gateway killed in mid-stream: card back after {released:.2f} s, first answer {time.monotonic() - started:.1f} s after the kill"
        )
        assert answer.status == 200
        assert released < 2
    finally:
        await stop_fleet(fleet)

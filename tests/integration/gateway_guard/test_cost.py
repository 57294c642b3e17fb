"""What the gateway adds to a request, side by side in one run: LiteLLM alone, with the guard, and with nginx in front of both."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
import yaml

from tests.support import litellm_venv
from tests.support.gateway_front import MISSING, Front, is_installed
from tests.support.gateway_process import MASTER_KEY, GatewayProcess
from tests.support.gateway_rig import Answer, Fleet, start_fleet, stop_fleet

pytestmark = pytest.mark.asyncio(loop_scope="session")
REPEATS, REQUESTS, WARM_UP = 5, 150, 50
BARE, GUARD, FRONT = "LiteLLM", "LiteLLM + guard", "nginx + LiteLLM + guard"
TARGET_MS = 1.0


def _write_bare(folder: Path, source: Path) -> None:
    """The same LiteLLM without a trace of the guard: no callbacks, and LiteLLM's own authentication by its master key."""
    config = yaml.safe_load((source / "config.yaml").read_text())
    for section, names in {
        "litellm_settings": ("callbacks", "enable_post_custom_auth_checks"),
        "general_settings": ("custom_auth", "custom_auth_run_common_checks"),
    }.items():
        for name in names:
            del config[section][name]
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


async def _interleaved(columns: Mapping[str, Callable[[], Awaitable[Answer]]]) -> dict[str, float]:
    """Return the p50 (ms) of each column. Each request of one column is followed by one of every other, in changing order."""
    names = list(columns)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-WARM_UP, REQUESTS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            started = time.perf_counter()
            answer = await columns[name]()
            took = (time.perf_counter() - started) * 1000
            assert answer.status == 200, f"{name}: {answer.text}"
            if number >= 0:
                times[name].append(took)
    return {name: statistics.median(values) for name, values in times.items()}


async def _one_repeat(fleet: Fleet, bare: GatewayProcess, folder: Path) -> dict[str, float]:
    """Both gateways start anew: two starts of one and the same LiteLLM differ by some tenths of a millisecond for as long as they live."""
    front = Front(folder, fleet.gateway.port)
    try:
        await asyncio.gather(fleet.gateway.start(), bare.start(), front.start())
        return await _interleaved(
            {
                BARE: lambda: fleet.ask("t3-smart", key=MASTER_KEY, base=bare.url),
                GUARD: lambda: fleet.ask("t3-smart"),
                FRONT: lambda: fleet.ask("t3-smart", base=front.url),
            }
        )
    finally:
        await asyncio.gather(front.stop(), bare.stop(), fleet.gateway.stop())


def _row(name: str, p50: list[float], added: list[float]) -> str:
    return f"{name:<24}" + "".join(f"{statistics.median(v):9.2f} {f'{min(v):.2f} to {max(v):.2f}':>16}" for v in (p50, added))


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not is_installed(), reason=MISSING)
async def test_the_guard_and_nginx_together_add_at_most_a_millisecond(tmp_path: Path) -> None:
    fleet = await start_fleet(tmp_path)
    await fleet.gateway.stop()
    _write_bare(tmp_path / "bare", tmp_path)
    bare = GatewayProcess(litellm_venv.python(), tmp_path / "bare")
    repeats = []
    try:
        for number in range(REPEATS):
            folder = tmp_path / f"front-{number}"
            folder.mkdir()
            repeats.append(await _one_repeat(fleet, bare, folder))
    finally:
        await stop_fleet(fleet)
    added = {name: [repeat[name] - repeat[BARE] for repeat in repeats] for name in (BARE, GUARD, FRONT)}
    print(f"\n{f'{REPEATS} repeats of {REQUESTS}':<24}{'p50, ms':>26}{'added, ms':>26}   (median, least to most)")
    for name, more in added.items():
        print(_row(name, [repeat[name] for repeat in repeats], more))
    together = statistics.median(added[FRONT])
    verdict = "met" if together <= TARGET_MS else "MISSED"
    print(f"the guard and nginx together add {together:.2f} ms at p50; target <= {TARGET_MS:.0f} ms: {verdict}")
    assert together <= TARGET_MS

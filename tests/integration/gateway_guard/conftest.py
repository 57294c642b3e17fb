"""One fleet of doubles and one real LiteLLM for all of this folder's tests; a test that needs another gateway starts its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.gateway_rig import Fleet, start_fleet, stop_fleet


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    fleet = await start_fleet(tmp_path_factory.mktemp("gateway"))
    yield fleet
    await stop_fleet(fleet)


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    """The shared fleet, healthy and with nothing recorded."""
    for pool in shared_fleet.pools.values():
        pool.reset()
    shared_fleet.hosted.requests.clear()
    shared_fleet.hosted.status = 200
    return shared_fleet

"""Fixtures of the pool's integration tests: every test gets pools of its own and leaves no process behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from tests.support.pool_rig import Maker, PoolRig


@pytest_asyncio.fixture
async def rigs() -> AsyncIterator[Maker]:
    """Makes pools that are ended with the test, and then checks that nothing of theirs is left."""
    made: list[PoolRig] = []

    def make(*args: Any, **keys: Any) -> PoolRig:
        made.append(PoolRig(*args, **keys))
        return made[-1]

    yield make
    left = {}
    for rig in made:
        left[str(rig.folder)] = await rig.end()
    assert not any(left.values()), f"workers left behind: {left}"

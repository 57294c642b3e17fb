"""The one reconciler: at start (every owner settles its card), every minute, and on request; never two runs at a time."""

from __future__ import annotations

import asyncio
import logging

from lease_pool.core import PRESENCE_S, PoolCore

log = logging.getLogger(__name__)

EVERY_S = 60.0


class Reconciler:
    def __init__(self, core: PoolCore) -> None:
        self._core = core
        self._lock = asyncio.Lock()

    async def run(self) -> list[str]:
        """What was wrong; the cards' owners put it right."""
        async with self._lock:
            findings = await self._core.reconcile()
        for finding in findings:
            log.warning("reconcile: %s", finding)
        return findings

    async def forever(self) -> None:
        """Cards can fall off at any time: the driver is asked more often than the processes are looked at."""
        elapsed = 0.0
        pause = PRESENCE_S if self._core.nvml is not None else EVERY_S
        while True:
            await asyncio.sleep(pause)
            elapsed += pause
            if elapsed >= EVERY_S:
                elapsed = 0.0
                await self.run()
            else:
                async with self._lock:
                    await self._core.check_presence()

"""Waiting for the first of several things, with a bound, leaving nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first(timeout_s: float | None, *waits: Coroutine[Any, Any, Any]) -> int | None:
    """The index of the first wait to finish (the earliest listed of several), None at the timeout. Its exception is raised; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for index, task in enumerate(tasks):
            if task.done():
                task.result()
                return index
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

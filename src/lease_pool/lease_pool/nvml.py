"""What the driver says about cards: by UUID, off the event loop, one probe at a time.

A driver call can block for ever in C (gpu-monitoring-tools#46). Each card is therefore asked in one daemon thread of its own; a caller waits with a
bound, and while a call hangs every further caller is told so instead of piling up behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pynvml

from lease_pool.config import CardConfig, PoolConfig
from lease_pool.types import SupervisorError

log = logging.getLogger(__name__)

T = TypeVar("T")
PROBE_S = 5.0
POLL_S = 0.02
SLACK_MIB = 64  # driver bookkeeping that comes and goes between two loads


class NvmlError(Exception):
    """The driver cannot answer; the message says what was asked and what it said."""


class CardMissing(NvmlError):
    """The driver knows no such card, or has lost it."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One card as the driver sees it now. Memory in MiB; `pids` are its compute processes."""

    uuid: str
    pci: str
    total_mib: int
    free_mib: int
    pids: tuple[int, ...]


class _Lane:
    """One daemon thread and at most one call in the driver."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = asyncio.Lock()
        self._since: float | None = None  # when the call now in the driver began

    async def call(self, function: Callable[[], T], what: str) -> T:
        async with self._lock:
            if self._since is not None:
                raise NvmlError(f"NVML: a driver call hangs since {time.monotonic() - self._since:.0f} s; {what} not asked")
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            loop = asyncio.get_running_loop()
            future: asyncio.Future[T] = loop.create_future()
            self._since = time.monotonic()
            self._work.put((function, loop, future))
            return await future

    def close(self) -> None:
        self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            function, loop, future = item
            result: Any = None
            error: Exception | None = None
            try:
                result = function()
            except pynvml.NVMLError as caught:
                error = caught
            self._since = None
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(_settle, future, result, error)


class Nvml:
    """The driver, asked about one card at a time in that card's own lane: a call that hangs on one card leaves the others alone."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._init = threading.Lock()
        self._ready = False

    async def card(self, uuid: str, bound_s: float = PROBE_S) -> CardFacts:
        """Raises CardMissing or NvmlError."""
        return await self._call(uuid, lambda: _read_card(uuid), f"card {uuid}", bound_s)

    async def uuids(self, bound_s: float = PROBE_S) -> list[str]:
        """The UUIDs of every card that the driver lists and still reaches."""
        return await self._call("", _list_uuids, "the list of cards", bound_s)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    async def _call(self, key: str, function: Callable[[], T], what: str, bound_s: float) -> T:
        lane = self._lanes.setdefault(key, _Lane(f"nvml {key}".strip()))
        try:
            async with asyncio.timeout(bound_s):
                return await lane.call(lambda: self._initialised(function), what)
        except TimeoutError:
            raise NvmlError(f"NVML: no answer about {what} within {bound_s:g} s") from None
        except pynvml.NVMLError as error:
            missing = error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_INVALID_ARGUMENT)
            kind = CardMissing if missing else NvmlError
            raise kind(f"NVML: {what}: {error}") from None

    def _initialised(self, function: Callable[[], T]) -> T:
        """Runs in a lane's thread."""
        with self._init:
            if not self._ready:
                pynvml.nvmlInit()
                self._ready = True
        try:
            return function()
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
                self._ready = False
            raise


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _read_card(uuid: str) -> CardFacts:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    pci = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return CardFacts(
        uuid=uuid,
        pci=pci.decode() if isinstance(pci, bytes) else str(pci),
        total_mib=memory.total >> 20,
        free_mib=memory.free >> 20,
        pids=tuple(sorted(p.pid for p in processes)),
    )


def _list_uuids() -> list[str]:
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        # One lost card must not hide the others (open-gpu-kernel-modules#387).
        with contextlib.suppress(pynvml.NVMLError):
            uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
            found.append(uuid.decode() if isinstance(uuid, bytes) else uuid)
    return found


class Probe(Protocol):
    async def card(self, uuid: str, bound_s: float = PROBE_S) -> CardFacts: ...


class FreeCheck:
    """Whether a card is free: before a model server starts, and again before the idle workload returns. With `card_source: declared`, always."""

    def __init__(self, config: PoolConfig, nvml: Probe | None = None) -> None:
        self._nvml = nvml if config.card_source == "nvml" else None
        self._before: dict[str, int] = {}

    async def wait(self, card: CardConfig, need_mib: int, bound_s: float) -> None:
        """Return once no compute process is on the card and `need_mib` are free. Raises SupervisorError at the bound."""
        if self._nvml is None:
            return
        facts = await self._until(card, need_mib, bound_s)
        self._before[card.uuid] = facts.free_mib

    async def wait_back(self, card: CardConfig, bound_s: float) -> None:
        """Return once the card has the memory back that was free before the worker. Raises SupervisorError at the bound."""
        if self._nvml is None or card.uuid not in self._before:
            return
        await self._until(card, self._before[card.uuid] - SLACK_MIB, bound_s)

    async def _until(self, card: CardConfig, need_mib: int, bound_s: float) -> CardFacts:
        assert self._nvml is not None  # noqa: S101  for the type checker: the caller has seen to it
        deadline = time.monotonic() + bound_s
        found = ""
        while True:
            try:
                facts = await self._nvml.card(card.uuid, max(0.1, deadline - time.monotonic()))
                if not facts.pids and facts.free_mib >= need_mib:
                    return facts
                found = f"{facts.free_mib} MiB free of {need_mib} wanted" + (f", processes {list(facts.pids)}" if facts.pids else "")
            except CardMissing as error:
                raise SupervisorError(f"card {card.uuid} ({card.slot}): {error}") from None
            except NvmlError as error:
                found = str(error)
            if time.monotonic() + POLL_S >= deadline:
                raise SupervisorError(f"card {card.uuid} ({card.slot}) is not free after {bound_s:g} s: {found}")
            await asyncio.sleep(POLL_S)

"""What the driver says about cards: by UUID, off the event loop, one question a card at a time, each with a bound (`nvml_lane`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

from lease_pool.config import CardConfig, PoolConfig
from lease_pool.nvml_lane import CALL_S, Hangs, Lane
from lease_pool.types import SupervisorError

_ALL = ""  # the question for the list of cards
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


class Nvml:
    """The driver, asked about one card at a time in that card's own lane: a call that hangs on one card leaves the others alone."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    async def card(self, uuid: str, bound_s: float = CALL_S) -> CardFacts:
        """Raises CardMissing or NvmlError."""
        pci, total_mib, free_mib, pids = await self._ask(uuid, f"card {uuid}", bound_s)
        return CardFacts(uuid, pci, total_mib, free_mib, tuple(pids))

    async def uuids(self, bound_s: float = CALL_S) -> list[str]:
        """The UUIDs of every card that the driver lists and still reaches. Raises NvmlError."""
        found: list[str] = await self._ask(_ALL, "the list of cards", bound_s)
        return found

    async def list_rests(self) -> None:
        """The list's child ends: a pool whose cards are all there does not need it again."""
        await self._lanes[_ALL].rest()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    async def _ask(self, question: str, what: str, bound_s: float) -> Any:
        lane = self._lanes.setdefault(question, Lane(_answer))
        try:
            said = await lane.ask(question, bound_s)
        except Hangs as error:
            raise NvmlError(f"NVML: {what}: {error}") from None
        except EOFError:
            raise NvmlError(f"NVML: the process that asked about {what} died") from None
        if "refused" in said:
            raise (CardMissing if said["missing"] else NvmlError)(f"NVML: {what}: {said['refused']}")
        return said["answer"]


_MISSING = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_initialised = False


def _answer(question: str) -> dict[str, Any]:
    """Runs in a lane's child: `answer` with a UUID's facts, or all UUIDs; or `refused` with the driver's words, and whether the card is `missing`."""
    global _initialised  # noqa: PLW0603  as NVML's own state: one a process
    try:
        if not _initialised:
            pynvml.nvmlInit()
            _initialised = True
        return {"answer": _list_uuids() if question == _ALL else _read_card(question)}
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            _initialised = False
        return {"refused": str(error), "missing": error.value in _MISSING}


def _read_card(uuid: str) -> tuple[str, int, int, list[int]]:
    """PCI address, memory in all and free in MiB, compute processes."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    pci = pynvml.nvmlDeviceGetPciInfo(handle).busId
    address = pci.decode() if isinstance(pci, bytes) else str(pci)
    return address, memory.total >> 20, memory.free >> 20, sorted(p.pid for p in processes)


def _list_uuids() -> list[str]:
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        # One lost card must not hide the others (open-gpu-kernel-modules#387).
        with contextlib.suppress(pynvml.NVMLError):
            uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
            found.append(uuid.decode() if isinstance(uuid, bytes) else uuid)
    return found


class Probe(Protocol):
    async def card(self, uuid: str, bound_s: float = CALL_S) -> CardFacts: ...


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

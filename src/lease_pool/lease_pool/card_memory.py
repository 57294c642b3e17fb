"""Reads one card's free memory and compute processes, with nothing but the standard library: the worker starts through this.

`nvidia-ml-py` costs 40 ms of imports on the cold path of every request; four functions of NVML are enough here.
Layouts: NVIDIA's nvml.h (`nvmlMemory_t`, `nvmlProcessInfo_v2_t`, error codes).
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_INSUFFICIENT_SIZE = 7
_POLL_S = 0.02


class NvmlError(Exception):
    """NVML could not be loaded or refused a call; the message names the call and the card."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Usage(NamedTuple):
    """What is on a card at one moment."""

    free_mib: int
    pids: tuple[int, ...]

    def blocks(self, needed_mib: int) -> str:
        """Why a server that needs this much may not start; empty when it may."""
        if self.pids:
            return f"compute process {', '.join(map(str, self.pids))} is still on the card"
        if self.free_mib < needed_mib:
            return f"{self.free_mib} MiB free, {needed_mib} MiB needed"
        return ""


class Card:
    """One card, found by its UUID."""

    def __init__(self, uuid: str, library: str = "libnvidia-ml.so.1") -> None:
        self._uuid = uuid
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(f"NVML cannot be loaded: {error}") from None
        self._call("nvmlInit_v2")
        self._handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", ctypes.c_char_p(uuid.encode()), ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: object, accept: tuple[int, ...] = (0,)) -> int:
        code = int(getattr(self._nvml, name)(*arguments))
        if code not in accept:
            raise NvmlError(f"{name} for card {self._uuid} failed with NVML error {code}")
        return code

    def usage(self) -> Usage:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return Usage(free_mib=memory.free >> 20, pids=self._pids())

    def _pids(self) -> tuple[int, ...]:
        room = 16
        while True:
            count, table = ctypes.c_uint(room), (_Process * room)()
            code = self._call(
                "nvmlDeviceGetComputeRunningProcesses_v3", self._handle, ctypes.byref(count), table, accept=(0, _INSUFFICIENT_SIZE)
            )
            if code == 0:
                return tuple(table[i].pid for i in range(count.value))
            room = count.value + 8


def wait_free(uuid: str, needed_mib: int, bound_s: float, report: Callable[[str], None]) -> str:
    """Wait until nothing computes on the card and enough memory is free, looking at once and then every 20 ms.

    Returns an empty string, or after the bound the reason why the card is not free. `report` hears each new reason.
    """
    card = Card(uuid)
    deadline = time.monotonic() + bound_s
    last = ""
    while reason := card.usage().blocks(needed_mib):
        if reason != last:
            report(reason)
            last = reason
        if time.monotonic() >= deadline:
            return reason
        time.sleep(_POLL_S)
    return ""

"""One look at the driver, run as a child: prints raw facts as one JSON object. It may block in C; its parent kills it.

`{"init": null | {"code", "text"}, "driver": str, "rows": [{"index", "uuid", "pci", "mig", "na": [...]} | {"index", "code", "text"}],
"lookups": {uuid: null | {"code", "text"}}}`; codes are NVML's own (nvml.h, nvmlReturn_t).
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import pynvml


def _error(error: pynvml.NVMLError) -> dict[str, Any]:
    return {"code": int(error.value), "text": str(error)}


def _row(index: int) -> dict[str, Any]:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        return {"index": index, **_error(error)}
    row: dict[str, Any] = {"index": index, "uuid": uuid, "pci": None, "mig": False, "na": []}
    for name, read in (
        ("pci", lambda: _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)),
        ("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        ("mig", lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0])),
    ):
        try:
            value = read()
        except pynvml.NVMLError as error:
            if error.value in {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}:
                if name != "mig":
                    row["na"].append(name)
                continue
            return {"index": index, "uuid": uuid, "pci": row["pci"], **_error(error)}
        if name != "memory":
            row[name] = value
    return row


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def look(uuids: Sequence[str]) -> dict[str, Any]:
    """Everything the driver says about its cards, and about the declared UUIDs that it does not list."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"init": _error(error)}
    driver = ""
    with contextlib.suppress(pynvml.NVMLError):
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
    try:
        rows = [_row(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        return {"init": _error(error)}
    lookups: dict[str, Any] = {}
    for uuid in set(uuids) - {row.get("uuid") for row in rows}:
        try:
            pynvml.nvmlDeviceGetHandleByUUID(uuid)
            lookups[uuid] = None
        except pynvml.NVMLError as error:
            lookups[uuid] = _error(error)
    return {"init": None, "driver": driver, "rows": rows, "lookups": lookups}


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1:])))

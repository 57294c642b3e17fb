# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What the NVML child process runs: one question, one JSON line. It imports pynvml and the standard library only.

`system` → versions and the number of cards; `index N` or `uuid U` → one card. A driver call blocks in C, so each question is a
process of its own that its parent can kill. An NVML error is an answer too: {"error": {"code", "message"}}.
"""

from __future__ import annotations

import json
import sys
import typing as t

Json = t.Dict[str, t.Any]


def text(value: t.Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def system(nvml: t.Any) -> Json:
    return {
        "driver_version": text(nvml.nvmlSystemGetDriverVersion()),
        "nvml_version": text(nvml.nvmlSystemGetNVMLVersion()),
        "cuda_version": "{0}.{1}".format(*divmod(nvml.nvmlSystemGetCudaDriverVersion() // 10, 100)),
        "count": nvml.nvmlDeviceGetCount(),
    }


def optional(nvml: t.Any, call: t.Callable[..., t.Any], *arguments: t.Any) -> t.Any:
    """A reading that not every card has: None instead of an error, but a lost card is lost."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None


def card(nvml: t.Any, handle: t.Any) -> Json:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = optional(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    power = optional(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
    rates = optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    mig = optional(nvml, nvml.nvmlDeviceGetMigMode, handle) if hasattr(nvml, "nvmlDeviceGetMigMode") else None
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {
        "uuid": text(nvml.nvmlDeviceGetUUID(handle)),
        "index": optional(nvml, nvml.nvmlDeviceGetIndex, handle),
        "minor": optional(nvml, nvml.nvmlDeviceGetMinorNumber, handle),
        "name": text(nvml.nvmlDeviceGetName(handle)),
        "pci": text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "compute_capability": "{0}.{1}".format(*capability) if capability else None,
        "mig": bool(mig[0]) if mig else False,
        "memory_mib": memory.total >> 20,
        "memory_free_mib": memory.free >> 20,
        "memory_used_mib": memory.used >> 20,
        "temperature_c": optional(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        "power_w": round(power / 1000.0, 1) if power is not None else None,
        "utilization_percent": rates.gpu if rates else None,
        "processes": [{"pid": p.pid, "memory_mib": None if p.usedGpuMemory is None else p.usedGpuMemory >> 20} for p in processes],
    }


def main(question: t.Sequence[str]) -> Json:
    try:
        import pynvml
    except ImportError as error:
        return {"error": {"code": "import", "message": str(error)}}
    try:
        pynvml.nvmlInit()
        if question[0] == "system":
            return system(pynvml)
        find = pynvml.nvmlDeviceGetHandleByUUID if question[0] == "uuid" else pynvml.nvmlDeviceGetHandleByIndex
        return card(pynvml, find(int(question[1]) if question[0] == "index" else question[1]))
    except pynvml.NVMLError as error:
        return {"error": {"code": error.value, "message": str(error)}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])))

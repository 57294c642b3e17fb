# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Asks NVML through bounded child processes, so that a hung driver cannot hang a play. Nothing here knows Ansible.

The child is run by the interpreter of a virtual environment that has pynvml (the services' own), never by the system's.
Error numbers are those of NVML's nvmlReturn_t (NVIDIA's nvml.h).
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import typing as t
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.agentic.gpu_fleet.plugins.module_utils import _nvml_child

Json = t.Dict[str, t.Any]

NOT_FOUND = 6
GPU_IS_LOST = 15
# Why NVML as a whole cannot be used; anything else is `error`.
FAULTS = {"import": "not_loadable", 9: "not_loadable", 12: "not_loadable", 13: "not_loadable", 18: "driver_mismatch"}


class NvmlFault(Exception):
    """NVML cannot be asked at all. `fault` is not_loadable, driver_mismatch, hung or error."""

    def __init__(self, fault: str, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def find_interpreter(candidates: t.Sequence[str]) -> str:
    """The first candidate that can be executed; raises NvmlFault naming all of them."""
    for path in candidates:
        if os.access(path, os.X_OK):
            return path
    raise NvmlFault(
        "not_loadable",
        f"none of these interpreters exists: {', '.join(candidates)}; install a service with pynvml or name another interpreter",
    )


def ask(interpreter: str, bound_s: float, *question: str) -> Json:
    """One question to one child; {"error": {"code": "hung", …}} when it had to be killed."""
    child = subprocess.Popen(
        [interpreter, "-I", "-", *question],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(inspect.getsource(_nvml_child).encode(), timeout=bound_s)
    except subprocess.TimeoutExpired:
        child.kill()  # never waited for: a process that is stuck in the driver dies only when the driver lets it
        return {"error": {"code": "hung", "message": f"no answer within {bound_s:g} s"}}
    try:
        return t.cast(Json, json.loads(out))
    except ValueError:
        return {"error": {"code": child.returncode, "message": (err.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]}}


def survey(interpreter: str, bound_s: float, expected: t.Sequence[str]) -> Json:
    """Every card NVML lists, each with `state` ok, lost, hung or error, and what became of the expected ones. Raises NvmlFault.

    Cards are asked in parallel: one that hangs costs its own bound once and hides no other.
    """
    system = ask(interpreter, bound_s, "system")
    if "error" in system:
        error = system["error"]
        fault = "hung" if error["code"] == "hung" else FAULTS.get(error["code"], "error")
        raise NvmlFault(fault, f"NVML: {error['message']} (asked with {interpreter})")
    count = system.pop("count")
    with ThreadPoolExecutor(max_workers=max(count, 1)) as pool:
        answers = list(pool.map(lambda index: ask(interpreter, bound_s, "index", str(index)), range(count)))
    cards = [_card(index, answer) for index, answer in enumerate(answers)]
    seen = {card["uuid"] for card in cards if card["uuid"]}
    absent = [uuid for uuid in expected if uuid not in seen]
    return dict(
        system,
        cards=cards,
        missing=[dict(_absence(ask(interpreter, bound_s, "uuid", uuid)), uuid=uuid) for uuid in absent],
        unexpected=[uuid for uuid in sorted(seen) if expected and uuid not in expected],
    )


def _card(index: int, answer: Json) -> Json:
    if "error" not in answer:
        return dict(answer, state="ok", message=None)
    error = answer["error"]
    state = {"hung": "hung", GPU_IS_LOST: "lost"}.get(error["code"], "error")
    return {"index": index, "uuid": None, "state": state, "message": error["message"]}


def _absence(answer: Json) -> Json:
    """What NVML says of a UUID that no healthy card has."""
    if "error" not in answer:
        return {"state": "ok", "message": "listed again while asking"}
    error = answer["error"]
    state = {"hung": "hung", GPU_IS_LOST: "lost", NOT_FOUND: "not_found"}.get(error["code"], "error")
    return {"state": state, "message": error["message"]}

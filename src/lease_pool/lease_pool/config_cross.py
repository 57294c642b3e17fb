"""Faults between a configuration's keys: duplicates, clashes, what one key needs or forbids of another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from lease_pool.backends import BACKENDS, forbidden_argument
from lease_pool.config_shape import Fault, shown

SOCKET_PATH_MAX = 107  # sun_path of a unix socket, without its final zero byte


def faults(data: dict[Any, Any]) -> Iterable[Fault]:
    """Faults between keys. Works on the raw data, so that it reports beside shape faults; what has the wrong shape it skips."""
    cards = [c for c in _list(data.get("cards")) if isinstance(c, dict)]
    models = {str(n): m for n, m in _dict(data.get("models")).items() if isinstance(m, dict)}
    yield from _card_faults(data, cards)
    yield from _alias_faults(models)
    yield from _path_faults(data, models)
    yield from _idle_faults(data)
    port = _dict(data.get("listen")).get("port", 9100)
    for name, model in models.items():
        yield from _model_faults(name, model, port)


def _card_faults(data: dict[Any, Any], cards: list[dict[Any, Any]]) -> Iterable[Fault]:
    for field in ("slot", "uuid"):
        seen: dict[str, int] = {}
        for index, card in enumerate(cards):
            value = card.get(field)
            if not isinstance(value, str):
                continue
            # Slots become file and unit names, UUIDs are compared by NVML without regard to case.
            first = seen.setdefault(value.lower(), index)
            if first != index:
                yield f"cards[{index}].{field}", shown(value), f"duplicate of cards[{first}].{field}; each card needs its own"
    for index, card in enumerate(cards):
        if data.get("card_source") == "declared" and "memory_mib" not in card:
            yield f"cards[{index}].memory_mib", "(missing)", "is required with card_source: declared"
        if data.get("supervisor", "systemd") == "systemd" and str(card.get("uuid", "")).startswith("MIG-"):
            yield (
                f"cards[{index}].uuid",
                shown(card["uuid"]),
                "MIG instances need supervisor: process",
            )


def _alias_faults(models: dict[str, dict[Any, Any]]) -> Iterable[Fault]:
    owner: dict[str, str] = {name: name for name in models}
    listed: set[tuple[str, str]] = set()
    for name, model in models.items():
        for index, alias in enumerate(_list(model.get("aliases"))):
            if not isinstance(alias, str):
                continue
            key = f"models.{name}.aliases[{index}]"
            if owner.setdefault(alias, name) != name:
                yield key, shown(alias), f"duplicate: model {owner[alias]} already has this name"
            elif (name, alias) in listed:
                yield key, shown(alias), "duplicate: listed twice"
            listed.add((name, alias))


def _path_faults(data: dict[Any, Any], models: dict[str, dict[Any, Any]]) -> Iterable[Fault]:
    paths = {key: data.get(key) for key in ("admin_socket", "token_file", "state_dir", "runtime_dir", "locks_dir")}
    for name, model in models.items():
        paths |= {f"models.{name}.{key}": model.get(key) for key in ("file", "mmproj")}
    for key, value in paths.items():
        if isinstance(value, str) and not value.startswith("/"):
            yield key, shown(value), "must be an absolute path"
    runtime = data.get("runtime_dir", "/run/gpu-fleet")
    if not isinstance(runtime, str):
        return
    sockets = {"admin_socket": data.get("admin_socket", f"{runtime}/pool.sock")}
    if data.get("supervisor") == "process":
        slots = [str(c.get("slot", "")) for c in _list(data.get("cards")) if isinstance(c, dict)]
        sockets["runtime_dir"] = f"{runtime}/{max(slots, key=len, default='')}.sock"
        for index, slot in enumerate(slots):
            if f"{runtime}/{slot}.sock" == sockets["admin_socket"]:
                yield f"cards[{index}].slot", shown(slot), "its worker's socket would be admin_socket; name it otherwise"
    for key, value in sockets.items():
        if isinstance(value, str) and len(value.encode()) > SOCKET_PATH_MAX:
            yield key, shown(value), f"must be a shorter path: a unix socket's path has at most {SOCKET_PATH_MAX} bytes"


def _idle_faults(data: dict[Any, Any]) -> Iterable[Fault]:
    idle = _dict(data.get("idle_workload"))
    driver, supervisor = idle.get("driver"), data.get("supervisor", "systemd")
    if driver in ("per_card", "shared") and supervisor == "process":
        yield "idle_workload.driver", shown(driver), "needs supervisor: systemd; with supervisor: process use command or none"
    if driver == "command":
        if supervisor == "systemd":
            yield "idle_workload.driver", shown(driver), "needs supervisor: process; with supervisor: systemd use per_card, shared or none"
        for key in ("start", "stop", "alive"):
            if not idle.get(key):
                yield f"idle_workload.{key}", "(missing)", "is required with driver: command"
        if idle.get("unit") is not None:
            yield "idle_workload.unit", shown(idle["unit"]), "belongs to driver: per_card or shared"
    elif isinstance(driver, str):
        for key in ("start", "stop"):
            if idle.get(key):
                yield f"idle_workload.{key}", shown(idle[key]), "belongs to driver: command"
    if driver == "per_card" and isinstance(idle.get("unit"), str) and "{slot}" not in idle["unit"]:
        yield "idle_workload.unit", shown(idle["unit"]), "must contain {slot} with driver: per_card"


_OWN_ENV = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")


def _model_faults(name: str, model: dict[Any, Any], port: Any) -> Iterable[Fault]:
    key, backend = f"models.{name}", model.get("backend")
    argv = [a for a in _list(model.get("argv")) if isinstance(a, str)]
    if backend == "llama_cpp" and model.get("file") is None:
        yield f"{key}.file", "(missing)", "is required with backend: llama_cpp"
    if backend == "command" and not model.get("argv"):
        yield f"{key}.argv", "(missing)", "is required with backend: command"
    if backend in BACKENDS and backend != "llama_cpp" and model.get("mmproj") is not None:
        yield f"{key}.mmproj", shown(model["mmproj"]), "belongs to backend: llama_cpp"
    yield from _endpoint_faults(key, model)
    if isinstance(backend, str) and backend in BACKENDS:
        for index, argument in enumerate(argv):
            option = forbidden_argument(backend, argument)
            if option:
                yield f"{key}.argv[{index}]", shown(argument), f"{option} is set by the pool; leave it out"
    if isinstance(port, int):
        for index, argument in enumerate(argv):
            if _is_listen_port(argv, index, port):
                yield f"{key}.argv[{index}]", shown(argument), f"port clash: {port} is the pool's own (listen.port); use {{port}}"
    for variable, value in _dict(model.get("env")).items():
        if variable in _OWN_ENV:
            yield f"{key}.env.{variable}", shown(value), "is set by the pool; leave it out"
        elif isinstance(variable, str) and (not variable or "=" in variable or "\x00" in variable):
            yield f"{key}.env.{variable}", shown(value), "is not a variable's name"


def _endpoint_faults(key: str, model: dict[Any, Any]) -> Iterable[Fault]:
    """What would load and then refuse every request."""
    endpoints = model.get("endpoints", ["chat"])
    if not isinstance(endpoints, list):
        return
    if not endpoints:
        yield f"{key}.endpoints", "[]", "must have at least one entry"
    if model.get("dimensions") is not None and "embeddings" not in endpoints:
        yield f"{key}.dimensions", shown(model["dimensions"]), "belongs to endpoints: [embeddings]"
    for alone in ("embeddings", "rerank"):
        if model.get("backend") == "llama_cpp" and alone in endpoints and any(other != alone for other in endpoints):
            yield (
                f"{key}.endpoints",
                shown(endpoints),
                f"a llama.cpp server that answers {alone} answers nothing else; make it a model of its own",
            )


def _is_listen_port(argv: list[str], index: int, port: int) -> bool:
    argument = argv[index]
    if argument.endswith(f":{port}"):
        return True
    option = (
        argv[index - 1] if index and argument == str(port) else argument.removesuffix(f"={port}") if argument.endswith(f"={port}") else ""
    )
    return re.search(r"port|listen|bind", option.lower()) is not None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}

"""The launch spec on disk: what the pool hands to `exec-worker`, and the names that both sides use. Standard library only."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # every import here is on the cold path of every request: pathlib and dataclasses alone cost a worker's start 8 ms
    from collections.abc import Mapping
    from pathlib import Path

LOCK_HELD = 75  # EX_TEMPFAIL: what `flock -E 75` answers when someone else has the card
NOT_FREE = 76  # the card was ours, but not free within the bound
BAD_SPEC = 78  # EX_CONFIG
RELAY_HOST = "127.0.0.1"
RELAY_PORT = 8080  # inside the worker's own network: nothing else can listen there
API_KEY_CREDENTIAL = "api-key"


class Launch(NamedTuple):
    """Everything `exec-worker` needs. `check` is "nvml", or "none" where the cards are only declared."""

    uuid: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    memory_mib: int
    free_s: float
    needs_port: bool
    check: str


def folder(runtime_dir: Path) -> Path:
    return runtime_dir / "launch"


def spec_path(runtime_dir: Path, slot: str) -> Path:
    return folder(runtime_dir) / f"{slot}.json"


def key_path(runtime_dir: Path, slot: str) -> Path:
    return folder(runtime_dir) / f"{slot}.key"


def away_path(runtime_dir: Path, slot: str) -> Path:
    """Driver `shared`: exists while the idle workload must leave this slot out."""
    return folder(runtime_dir) / f"{slot}.away"


def lock_path(locks_dir: Path, slot: str) -> Path:
    return locks_dir / f"{slot}.use"


def hold_path(state_dir: Path, slot: str) -> Path:
    return state_dir / "hold" / slot


def socket_path(slot: str) -> str:
    """The worker's socket in the RuntimeDirectory of its unit."""
    return f"/run/gpu-worker/{slot}/worker.sock"


def write(path: Path, text: str, mode: int) -> None:
    """Replace a file in one step: a reader sees the whole of it or nothing."""
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    fresh.replace(path)


def publish(runtime_dir: Path, slot: str, launch: Launch, api_key: str) -> None:
    """Leave a worker's key (its owner's and PID 1's only) and then its spec, for the worker's unit to find."""
    write(key_path(runtime_dir, slot), api_key + "\n", 0o600)
    write(spec_path(runtime_dir, slot), json.dumps(launch._asdict()), 0o640)


def withdraw(runtime_dir: Path, slot: str) -> bool:
    """Take a spec back. True: it was not consumed and never will be; False: a worker has it (or none was there)."""
    try:
        spec_path(runtime_dir, slot).unlink()
    except FileNotFoundError:
        return False
    return True


def consume(runtime_dir: str, slot: str) -> Launch | None:
    """Take a spec for good: exactly one process gets it. None: there is none. Raises ValueError for a spec that cannot be used."""
    mine = f"{runtime_dir}/launch/.{slot}.{os.getpid()}.taken"
    try:
        os.rename(f"{runtime_dir}/launch/{slot}.json", mine)  # as atomic as unlink, and the text can still be read
    except FileNotFoundError:
        return None
    try:
        with open(mine, encoding="utf-8") as file:
            data = json.load(file)
    finally:
        os.unlink(mine)
    if not isinstance(data, dict):
        raise ValueError("must be an object")
    try:
        return Launch(**{**data, "argv": tuple(data["argv"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"misses or has unknown fields: {error}") from None

"""The state file: written atomically and durably, read strictly, one writer at a time.

Nothing is kept in memory between two steps: the service loads, decides and saves under the lock, and so do `ack` and `maintenance`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_watchdog.state import CorruptState, State, from_json, to_json


def write_durably(path: Path, text: str, mode: int = 0o640) -> None:
    """Replace `path` by `text`, and return once both the file and its folder entry are on disk."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            os.fchmod(out.fileno(), mode)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Store:
    """`watchdog.json` in `folder`, with the lock beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "watchdog.json"
        self._lock = folder / "watchdog.lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude every other writer; held for milliseconds, never while something is observed or done."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            with contextlib.suppress(PermissionError):  # made by another of its writers, with the same mode
                os.fchmod(descriptor, 0o660)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def load(self) -> State:
        """The state on disk; a fresh one on a host that never had a watchdog. Raises CorruptState, OSError."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return State()
        except UnicodeDecodeError as error:
            raise CorruptState(f"{self.path}: not text") from error
        try:
            raw: Any = json.loads(text)
        except ValueError as error:
            raise CorruptState(f"{self.path}: not JSON") from error
        if not isinstance(raw, dict) or set(raw) != {"sha256", "state"} or raw["sha256"] != _digest(raw["state"]):
            raise CorruptState(f"{self.path}: checksum does not match")
        try:
            return from_json(raw["state"])
        except CorruptState as error:
            raise CorruptState(f"{self.path}: {error}") from error

    def save(self, state: State) -> None:
        raw = to_json(state)
        write_durably(self.path, json.dumps({"sha256": _digest(raw), "state": raw}) + "\n")

    def set_aside(self) -> Path:
        """Keep a corrupt file for a person to look at, out of the way."""
        aside = self.path.with_name("watchdog.json.corrupt")
        self.path.replace(aside)
        sync_folder(aside.parent)
        return aside


def _digest(raw: object) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()

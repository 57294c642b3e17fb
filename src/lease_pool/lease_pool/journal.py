"""The journal: one JSON object a line, append-only (DESIGN.md 4.4). Entries are dicts until they are flushed, off the request's path.

Size is bounded: past `most_bytes` the file becomes `journal.jsonl.1` and a new one begins; older than that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

log = logging.getLogger(__name__)

SECONDS = ("queued", "freeing", "loading", "first_byte", "serving", "unloading", "returning", "idle_workload_off")
FIELDS = ("card", "slot", "lease", "alias", "model", "request", "principal", "class", "outcome")
FLUSH_S = 0.2
SLICE = 50  # entries written in one go: thousands at once would stall every request for milliseconds
MOST_BYTES = 16 << 20
MOST_PENDING = 10_000


def utc(timestamp: float | None = None) -> str:
    """RFC 3339 in UTC, milliseconds."""
    moment = datetime.now(UTC) if timestamp is None else datetime.fromtimestamp(timestamp, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_since(text: str) -> datetime | None:
    """`0` or empty: None (all kept). Raises ValueError for anything that is not RFC 3339."""
    if text in ("", "0"):
        return None
    moment = datetime.fromisoformat(text.replace("Z", "+00:00").replace(" ", "+"))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _line(entry: dict[str, Any]) -> bytes:
    try:
        return to_json(entry)
    except PydanticSerializationError:
        # Half a character (a reason typed in another encoding) must not cost the journal: it stays the escape that JSON has for it.
        return json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")


class Journal:
    """Owned by the core; `write` is synchronous and cheap."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = folder / "journal.jsonl"
        self._most = most_bytes
        self._pending: deque[dict[str, Any]] = deque()
        self._wake = asyncio.Event()
        self._followers: set[asyncio.Queue[dict[str, Any]]] = set()
        self._file: int | None = None
        self._torn = False  # the last line written is not whole
        self._task: asyncio.Task[None] | None = None
        self.lost = 0  # entries that could not be written (disk full, …)

    def open(self) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._end_torn_line()
        self._task = asyncio.create_task(self._flusher(), name="journal")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def write(self, event: str, seconds: dict[str, float] | None = None, **fields: Any) -> None:
        entry: dict[str, Any] = {"time": utc(), "event": event} | dict.fromkeys(FIELDS) | fields
        given = seconds or {}
        entry["seconds"] = {name: round(given[name], 6) if name in given else None for name in SECONDS}
        if len(self._pending) >= MOST_PENDING:
            self._pending.popleft()
            self.lost += 1
        self._pending.append(entry)
        self._wake.set()
        for follower in self._followers:
            if follower.full():
                follower.get_nowait()  # a follower that does not read loses the oldest, not the pool its memory
            follower.put_nowait(entry)

    def flush(self) -> None:
        """Write all that is pending."""
        while self._flush_slice():
            pass

    def _flush_slice(self) -> bool:
        """Write the oldest entries. False: nothing was left to write."""
        if not self._pending or self._file is None:
            return False
        count = min(SLICE, len(self._pending))
        lines = b"".join([_line(self._pending.popleft()) + b"\n" for _ in range(count)])
        try:
            if os.fstat(self._file).st_size + len(lines) > self._most:
                self._rotate()
            view = memoryview(b"\n" + lines if self._torn else lines)
            while view:
                view = view[os.write(self._file, view) :]
                self._torn = bool(view)
        except OSError as error:
            self.lost += count
            log.error("journal %s: %d entries lost: %s", self.path, count, error.strerror)
        return True

    def kept(self, since: datetime | None = None) -> Iterator[str]:
        """The kept lines, oldest first; a line torn by a crash is left out."""
        self.flush()
        for path in (self.path.with_suffix(".jsonl.1"), self.path):
            try:
                file = path.open(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                continue
            with file:
                for line in file:
                    try:
                        time = datetime.fromisoformat(json.loads(line)["time"].replace("Z", "+00:00"))
                    except (ValueError, KeyError, TypeError):
                        continue
                    if since is None or time >= since:
                        yield line.rstrip("\n")

    async def follow(self) -> AsyncGenerator[str, None]:
        """New entries as they are written, until the consumer stops."""
        follower: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1000)
        self._followers.add(follower)
        try:
            while True:
                yield _line(await follower.get()).decode()
        finally:
            self._followers.discard(follower)

    def _rotate(self) -> None:
        assert self._file is not None  # noqa: S101  for the type checker: the caller has seen to it
        os.replace(self.path, self.path.with_suffix(".jsonl.1"))
        fresh = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)  # where that fails the old one stays open
        os.close(self._file)
        self._file = fresh

    def _end_torn_line(self) -> None:
        """A crash may have cut the last line: the next entry must not be glued to it."""
        assert self._file is not None  # noqa: S101  for the type checker: the caller has seen to it
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    os.write(self._file, b"\n")

    async def _flusher(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(FLUSH_S)
            self._wake.clear()
            while self._flush_slice():  # noqa: ASYNC110  nothing is waited for: requests have their turn between two slices
                await asyncio.sleep(0)

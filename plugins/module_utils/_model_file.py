# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Keeps one large file present: resumes, verifies while it reads, replaces atomically. Nothing here knows Ansible.

Beside `<name>` lie `.<name>.verified` (checksum, size and modification time of the file that was verified: a file of 40 GB is read once, not at
every rollout) and, while it is being fetched, `.<name>.<start of the checksum>.part`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import typing as t

BLOCK = 1024 * 1024
MIB = 1024 * 1024

# (url, offset) -> (readable, status, total size or None): status 206 goes on at the offset, 200 begins again.
Opener = t.Callable[[str, int], t.Tuple[t.Any, int, t.Optional[int]]]


class ModelFileError(Exception):
    """The file could not be had; the message says what was found and expected."""


def _beside(path: str, suffix: str) -> str:
    return os.path.join(os.path.dirname(path), "." + os.path.basename(path) + suffix)


def _stamp(path: str, sha256: str) -> t.Dict[str, t.Any]:
    found = os.stat(path)
    return {"sha256": sha256, "bytes": found.st_size, "mtime_ns": found.st_mtime_ns}


def _digest_of(path: str) -> t.Any:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
    return digest


def is_current(path: str, sha256: str, read_again: bool) -> bool:
    """Whether the file at `path` has this checksum: by what was noted when it was verified, else by reading it."""
    if not os.path.isfile(path):
        return False
    try:
        with open(_beside(path, ".verified"), encoding="utf-8") as file:
            noted = json.load(file)
    except (OSError, ValueError):
        noted = None
    if noted == _stamp(path, sha256) and not read_again:
        return True
    return t.cast(bool, _digest_of(path).hexdigest() == sha256)


def note_verified(path: str, sha256: str) -> None:
    """Write down that the file at `path` was verified."""
    note = _beside(path, ".verified")
    text = json.dumps(_stamp(path, sha256), sort_keys=True)
    try:
        with open(note, encoding="utf-8") as file:
            if file.read() == text:
                return
    except OSError:
        pass
    with open(note + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(note + ".new", note)


def fetch(url: str, path: str, sha256: str, reserve_mib: int, open_url: Opener) -> t.Dict[str, int]:
    """Fetch `url` to `path`; return bytes `downloaded` and `resumed_at`. Raises ModelFileError; a part that has arrived stays for the next try."""
    part = _beside(path, f".{sha256[:12]}.part")
    offset = os.path.getsize(part) if os.path.exists(part) else 0
    source, status, total = open_url(url, offset)
    try:
        if offset and status == 200:  # the server does not resume: from the beginning
            offset = 0
        _check_space(path, total, offset, reserve_mib)
        digest = hashlib.sha256()
        if offset:
            digest = _digest_of(part)
        with open(part, "r+b" if offset else "wb") as file:
            file.seek(offset)
            for block in iter(lambda: source.read(BLOCK), b""):
                digest.update(block)
                file.write(block)
            size = file.tell()
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    finally:
        source.close()
    if total is not None and size < total:
        raise ModelFileError(f"the connection ended after {size} of {total} bytes; run again to go on from there")
    if digest.hexdigest() != sha256:
        os.unlink(part)
        raise ModelFileError(f"SHA-256: found {digest.hexdigest()}, expected {sha256}; what was fetched is removed")
    os.replace(part, path)
    return {"downloaded": size - offset, "resumed_at": offset}


def _check_space(path: str, total: t.Optional[int], offset: int, reserve_mib: int) -> None:
    if total is None:
        return
    folder = os.path.dirname(path)
    free, needed = shutil.disk_usage(folder).free // MIB, -(-(total - offset) // MIB) + reserve_mib
    if free < needed:
        raise ModelFileError(f"free space in {folder}: found {free} MiB, expected {needed} MiB ({reserve_mib} MiB of them stay free)")

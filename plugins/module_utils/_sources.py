# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""The sources below a folder, as one digest or one archive. The same sources give the same bytes everywhere."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import List

_BUILT = {"__pycache__", "build", "dist"}


def source_files(root: Path) -> List[Path]:
    """Return all source files below `root`, sorted; hidden folders, compiled files and build leftovers do not count.

    Raises FileNotFoundError when there are none.
    """
    found = []
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        folders = file.relative_to(root).parts[:-1]
        if file.suffix != ".pyc" and not any(part in _BUILT or part.startswith(".") or part.endswith(".egg-info") for part in folders):
            found.append(file)
    if not found:
        raise FileNotFoundError(f"no sources in {root}")
    return found


def sources_sha256(root: Path) -> str:
    """Return one hexadecimal digest over names and contents; `root` may be a single file. Raises OSError when something cannot be read."""
    digest = hashlib.sha256()
    for file in [root] if root.is_file() else source_files(root):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root.parent).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def sources_archive(root: Path) -> bytes:
    """Return a .tar.gz with one top folder, as pip takes it. Raises OSError when something cannot be read."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for file in source_files(root):
            content = file.read_bytes()
            entry = tarfile.TarInfo(file.relative_to(root.parent).as_posix())
            entry.size = len(content)
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()

"""The sources of our packages travel as one archive whose bytes depend on nothing but the sources."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._sources import sources_archive, sources_sha256


def _tree(root: Path) -> Path:
    for name in ("pkg/__init__.py", "pkg/core.py", "pyproject.toml"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    return root


def test_leftovers_of_builds_and_tools_do_not_count(tmp_path: Path) -> None:
    root = _tree(tmp_path / "a")
    before = sources_sha256(root), sources_archive(root)
    for name in (
        "pkg/__pycache__/core.cpython-311.pyc",
        ".mypy_cache/x.json",
        "build/lib/pkg/core.py",
        "pkg.egg-info/PKG-INFO",
        "pkg/stale.pyc",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("leftover")
    assert (sources_sha256(root), sources_archive(root)) == before


def test_the_archive_depends_on_the_sources_only(tmp_path: Path) -> None:
    one = _tree(tmp_path / "x" / "lease_pool")
    other = _tree(tmp_path / "y" / "lease_pool")
    os.utime(other / "pyproject.toml", (1, 1))
    assert sources_archive(one) == sources_archive(other)
    with tarfile.open(fileobj=io.BytesIO(sources_archive(one))) as archive:
        assert archive.getnames() == ["lease_pool/pkg/__init__.py", "lease_pool/pkg/core.py", "lease_pool/pyproject.toml"]


@pytest.mark.parametrize("change", ["content", "name", "new file"])
def test_every_change_of_the_sources_changes_the_digest(tmp_path: Path, change: str) -> None:
    root = _tree(tmp_path / "a")
    before = sources_sha256(root)
    if change == "content":
        (root / "pkg/core.py").write_text("# other\n")
    elif change == "name":
        (root / "pkg/core.py").rename(root / "pkg/kern.py")
    else:
        (root / "pkg/py.typed").write_text("")
    assert sources_sha256(root) != before


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sources_sha256(tmp_path / "nowhere")

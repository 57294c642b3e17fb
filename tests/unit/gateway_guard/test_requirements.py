"""The locked requirements and the look at an installed environment."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROLE = Path(__file__).parents[3] / "roles" / "litellm"
PYTHONS = ("3.11", "3.12", "3.13")
CHECK = ROLE / "files" / "check_environment.py"


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_pinned_and_hashed(python: str) -> None:
    text = (ROLE / "files" / f"requirements-{python}.txt").read_text()
    assert "--require-hashes" in text
    assert "--only-binary :all:" in text
    for block in re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]:
        assert re.match(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9,_-]+\])?==\S+ \\\n( +--hash=sha256:[0-9a-f]{64}( \\)?\n)+\Z", block), block[:80]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_tried_release_is_locked_and_no_denied_one(python: str) -> None:
    text = (ROLE / "files" / f"requirements-{python}.txt").read_text()
    locked = set(re.findall(r"(?m)^litellm(?:\[proxy\])?==(\S+)", text))
    denied = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())["litellm_denied_versions"]
    assert locked == {"1.108.7"}
    assert set(denied) == {"1.82.7", "1.82.8", "1.107.0"}


def look(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", str(CHECK), str(root), "1.82.7", "1.107.0"], capture_output=True, text=True, check=False
    )


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    (folder / "litellm-1.108.7.dist-info").mkdir(parents=True)
    return folder


def test_a_clean_environment_passes(site: Path) -> None:
    assert look(site.parents[2]).returncode == 0


@pytest.mark.parametrize("name", ["litellm_init.pth", "sitecustomize.py", "usercustomize.py", "cook.py", "distutils-precedence.pth"])
def test_a_file_that_runs_at_start_is_found(name: str, site: Path) -> None:
    (site / name).write_text("import os; os.system('true')\n")
    found = look(site.parents[2])
    assert found.returncode == 1
    assert name in found.stderr


def test_a_denied_release_is_found(site: Path) -> None:
    (site / "litellm-1.107.0.dist-info").mkdir()
    assert "1.107.0" in look(site.parents[2]).stderr


def test_an_empty_environment_is_a_fault(tmp_path: Path) -> None:
    assert look(tmp_path).returncode == 1

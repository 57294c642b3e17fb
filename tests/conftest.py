"""Makes the collection importable as `ansible_collections.agentic.gpu_fleet` in plain pytest."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COLLECTIONS = ROOT / "build" / "collections"
LINK = COLLECTIONS / "ansible_collections" / "agentic" / "gpu_fleet"

if not LINK.exists():
    LINK.parent.mkdir(parents=True, exist_ok=True)
    LINK.symlink_to(ROOT)
for path in (COLLECTIONS, ROOT / "src" / "lease_pool", ROOT / "src" / "gpu_watchdog", ROOT / "src" / "gateway_guard"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that cannot run here fails and says why: a skip is a hole that nobody looks at."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"this test may not be skipped: {report.longrepr}"
    return report

"""Makes the collection importable as `ansible_collections.agentic.gpu_fleet` in plain pytest."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLLECTIONS = ROOT / "build" / "collections"
LINK = COLLECTIONS / "ansible_collections" / "agentic" / "gpu_fleet"

if not LINK.exists():
    LINK.parent.mkdir(parents=True, exist_ok=True)
    LINK.symlink_to(ROOT)
for path in (COLLECTIONS, ROOT / "src" / "lease_pool", ROOT / "src" / "gpu_watchdog", ROOT / "src" / "gateway_guard"):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))

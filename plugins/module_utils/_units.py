# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Reads what `systemctl show` prints for several units."""

from __future__ import annotations

from typing import Any, Dict

PROPERTIES = ("Id", "ActiveState", "MainPID")


def parse_units(text: str) -> Dict[str, Dict[str, Any]]:
    """Return `{unit: {"active": ActiveState, "pid": MainPID}}` from `systemctl show --property=Id,ActiveState,MainPID UNIT…` (one block a unit)."""
    units: Dict[str, Dict[str, Any]] = {}
    for block in text.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in values:
            units[values["Id"]] = {"active": values.get("ActiveState", ""), "pid": int(values.get("MainPID") or 0)}
    return units

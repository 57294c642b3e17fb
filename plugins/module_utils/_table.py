# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Plain tables for terminals."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence


def table(rows: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return the lines of a left-aligned table; the columns are the first row's keys. No rows, no lines."""
    if not rows:
        return []
    columns = list(rows[0])
    cells = [[str(column) for column in columns]] + [[str(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]

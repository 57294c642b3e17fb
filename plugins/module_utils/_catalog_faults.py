"""Every fault at once: one line each, `variable's path: what was found: what is allowed`."""

from __future__ import annotations

import json
from typing import Any, List

MISSING = "(missing)"
HIDDEN = "(not shown)"
_SHOWN = 100


class CatalogError(Exception):
    """The variables make no catalog; `faults` has one line a fault."""

    def __init__(self, faults: List[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class Faults:
    """Collects faults; a fault found twice is one line."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._unread: set[str] = set()

    def add(self, path: str, found: str, allowed: str) -> None:
        """Add one fault; line breaks in values never break the line."""
        if any(path.startswith(unread) for unread in self._unread):
            return
        self._lines[" ".join(f"{path}: {found}: {allowed}".split())] = None

    def add_unreadable(self, path: str, why: str) -> None:
        """Report a variable whose template failed; nothing more is known about it, so nothing more is reported."""
        self.add(path, "cannot be templated", why)
        self._unread.add(path)

    def is_unreadable(self, path: str) -> bool:
        """Whether this variable could not be templated."""
        return path in self._unread

    def lines(self) -> List[str]:
        """All faults, sorted, so that the order of an inventory does not show."""
        return sorted(self._lines)


def shown(value: Any) -> str:
    """A value as an operator wrote it, on one line, cut at 100 characters."""
    if value is None:
        return "null"
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

"""The guarded watchdog: one reboot of a host that lost a card, only when safe, never a loop. Standard library and pynvml only."""

from __future__ import annotations

__version__ = "0.1.0"

"""systemd through `systemctl` in bounded children."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_watchdog import bounded


class Systemd:
    """`argv` is how systemctl is called; every call is killed after `bound_s`."""

    def __init__(self, argv: Sequence[str], bound_s: float) -> None:
        self._argv = (*argv, "--no-ask-password")
        self._bound_s = bound_s

    def states(self, units: Sequence[str]) -> dict[str, str] | None:
        """ActiveState of each unit; None if systemd could not be asked. A unit that is not installed is `none`."""
        wanted = list(dict.fromkeys(units))
        ended = bounded.run([*self._argv, "show", "--property=Id,LoadState,ActiveState", "--", *wanted], self._bound_s)
        if not ended.ok:
            return None
        blocks = [
            dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in ended.out.split("\n\n") if block.strip()
        ]
        if len(blocks) != len(wanted) or any("ActiveState" not in block for block in blocks):
            return None
        return {
            unit: "none" if block.get("LoadState") == "not-found" and block["ActiveState"] == "inactive" else block["ActiveState"]
            for unit, block in zip(wanted, blocks, strict=True)
        }

    def order(self, verb: str, unit: str) -> str | None:
        """Queue start, stop or restart; None when it was queued, else why not."""
        ended = bounded.run([*self._argv, "--no-block", verb, "--", unit], self._bound_s)
        return None if ended.ok else ended.why()

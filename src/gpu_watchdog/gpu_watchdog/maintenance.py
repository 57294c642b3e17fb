"""The maintenance flag: while it is set, nothing is rebooted and nothing is reconciled. It always expires."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from gpu_watchdog.state import Now
from gpu_watchdog.store import sync_folder, write_durably

_NAME = "watchdog-maintenance.json"
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_S = 7 * 86400


def duration(text: str) -> float:
    """`90`, `30m`, `2h`, `1d` in seconds. Raises ValueError outside 1 s to 7 days."""
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= MAX_S:
        raise ValueError(f"{text!r}: expected a number with s, m, h or d, from 1s to 7d")
    return float(seconds)


def put(folder: Path, seconds: float, reason: str, now: Now, boot_id: str) -> None:
    flag = {
        "reason": reason,
        "seconds": seconds,
        "boot_id": boot_id,
        "until_boot_s": now.boot_s + seconds,
        "until_wall": now.wall + seconds,
    }
    write_durably(folder / _NAME, json.dumps(flag) + "\n")


def clear(folder: Path) -> bool:
    """Remove the flag; False if there was none."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _NAME).unlink()
        sync_folder(folder)
        return True
    return False


def active(folder: Path, now: Now, boot_id: str) -> str | None:
    """Why maintenance is on, or None. Within its boot the monotonic clock ends it; after a reboot the first of both clocks does."""
    try:
        flag = json.loads((folder / _NAME).read_text(encoding="utf-8"))
        if flag["boot_id"] == boot_id:
            left = flag["until_boot_s"] - now.boot_s
        else:
            left = min(flag["until_wall"] - now.wall, flag["seconds"] - now.boot_s)
        return f"{flag['reason']} (for another {left:.0f} s)" if left > 0 else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"the flag cannot be read ({error!r}); `gpu-watchdog maintenance --clear` removes it"

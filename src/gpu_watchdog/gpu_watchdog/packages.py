"""Whether packages are being installed: who holds dpkg's locks. Reads only; the locks themselves need root to be tried."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
_LOCKS = ("var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/lib/apt/lists/lock", "var/cache/apt/archives/lock")
_COMMANDS = frozenset({"dpkg", "apt", "apt-get", "aptitude", "unattended-upgr", "dkms"})


def busy(root: Path | None = None) -> bool | None:
    """True while a package manager works, None when that cannot be found out (which counts as busy).

    One that works in a container of this host is seen too, by its name: it holds a reboot back just as well.
    """
    root = root or ROOT
    try:
        held = {int(line.split()[-3].rsplit(":", 1)[1]) for line in (root / "proc/locks").read_text().splitlines() if "->" not in line}
    except (OSError, ValueError, IndexError):
        return None
    for name in _LOCKS:
        try:
            if (root / name).stat().st_ino in held:
                return True
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return _running(root / "proc")


def _running(proc: Path) -> bool:
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text().strip() in _COMMANDS:
                    return True
            except OSError:  # it ended, or is hidden
                continue
    return False

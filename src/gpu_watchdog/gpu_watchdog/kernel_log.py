"""The kernel log as a second signal: which cards fell off the bus in this boot. Pure scanning; the reading child is in `observe`.

Drivers say it as `NVRM: Xid (PCI:0000:01:00): 79, … GPU has fallen off the bus.`, as `NVRM: GPU 0000:01:00.0: GPU has fallen off the
bus.` without an Xid, and both also broken over several log lines. The same event is often said both ways: a card counts once a boot.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

_TAIL = 600
_ADDRESS = r"(?:PCI:)?(?P<{name}>[0-9a-fA-F]{{4,8}}:[0-9a-fA-F]{{2}}:[0-9a-fA-F]{{2}})(?:\.[0-7])?"
_XID_79 = re.compile(r"NVRM:\s+Xid\s+\(" + _ADDRESS.format(name="pci") + r"\):\s*79\b")
_PLAIN = re.compile(
    r"NVRM:\s+(?:The\s+NVIDIA\s+)?GPU\s+(?:at\s+)?" + _ADDRESS.format(name="pci") + r"(?:(?!NVRM:\s+(?:Xid|GPU|The)).){0,200}?"
    r"fallen\s+off\s+the\s+bus",
    re.DOTALL,
)
_NAMED = re.compile(r"NVRM:\s+GPU\s+at\s+" + _ADDRESS.format(name="pci") + r":\s*(?P<uuid>GPU-[0-9a-fA-F-]{36})")


@dataclass(frozen=True)
class Heard:
    """What a stretch of the log said: PCI addresses that fell, addresses with the UUID the driver gave for them, and the text to keep."""

    fallen: tuple[str, ...]
    named: tuple[tuple[str, str], ...]
    tail: str


def address(text: str) -> str:
    """One spelling for an address, without function: the kernel writes `0000:01:00`, NVML `00000000:01:00.0`."""
    domain, bus, device = text.removeprefix("PCI:").partition(".")[0].split(":")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}"


def scan(tail: str, lines: list[str]) -> Heard:
    """Read on from `tail`, what an earlier scan kept. Text that matched is not kept, so nothing is heard twice."""
    text = "\n".join([tail, *lines]) if tail else "\n".join(lines)
    # A continued line repeats the module's prefix or the kernel's time stamp between the two halves of a sentence.
    text = re.sub(
        r"\n(?:\[\s*\d+\.\d+\]\s*)?(?:NVRM:\s+)?(?=(?:GPU\s+)?has\s+fallen|fallen\s+off|off\s+the\s+bus|the\s+bus|bus\b)", " ", text
    )
    fallen: list[str] = []
    end = 0
    for match in (*_XID_79.finditer(text), *_PLAIN.finditer(text)):
        end = max(end, match.end())
        pci = address(match["pci"])
        if pci not in fallen:
            fallen.append(pci)
    named = tuple((address(match["pci"]), match["uuid"]) for match in _NAMED.finditer(text))
    return Heard(tuple(fallen), named, text[end:][-_TAIL:])


def read_entries(out: str, boot_id: str) -> tuple[list[str], str]:
    """The messages of journalctl's JSON lines that belong to `boot_id`, and the last cursor (empty: nothing was read)."""
    lines: list[str] = []
    cursor = ""
    for raw in out.splitlines():
        try:
            entry = json.loads(raw)
        except ValueError:  # a line cut off by the bound
            continue
        if not isinstance(entry, dict):
            continue
        cursor = str(entry.get("__CURSOR", cursor))
        if str(entry.get("_BOOT_ID", boot_id)).replace("-", "") != boot_id.replace("-", ""):
            continue
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # journalctl writes bytes that are not text as numbers
            message = bytes(item for item in message if isinstance(item, int) and 0 <= item < 256).decode(errors="replace")
        if isinstance(message, str):
            lines.append(message)
    return lines, cursor

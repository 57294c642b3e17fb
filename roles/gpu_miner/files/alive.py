#!/usr/bin/python3 -I
"""Exit 0 while the miner of a slot really mines: a hashrate above zero, and an accepted share that is young enough.

Usage: alive SLOT. Reads alive.json beside itself: per slot the port of the miner's summary, and where in it to look.
"""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path


def number(summary: object, key: str) -> float | None:
    """The number at a dotted path of the summary; list positions are numbers. None when there is none."""
    found = summary
    for part in key.split("."):
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) else None


def why_not(summary: object, settings: dict[str, object]) -> str:
    """Why this summary is not one of a working miner; empty when it is."""
    hashrate = number(summary, str(settings["hashrate_key"]))
    if not hashrate or hashrate <= 0:
        return f"hashrate is {hashrate}"
    limit = float(str(settings["max_share_age_s"]))
    age = number(summary, str(settings["share_age_key"]))
    if age is None:
        # No share yet: a young miner gets as long as an old one may go without.
        uptime = number(summary, str(settings["uptime_key"]))
        return f"no accepted share in {uptime:g} s" if uptime is not None and uptime > limit else ""
    return f"last accepted share is {age:g} s old" if age > limit else ""


def main() -> int:
    settings = json.loads(Path(__file__).with_name("alive.json").read_text(encoding="utf-8"))
    slot = sys.argv[1]
    port = settings["ports"].get(slot, settings["ports"].get("all"))
    if port is None:
        print(f"slot {slot} has no miner", file=sys.stderr)
        return 2
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", settings["path"])
        summary = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"slot {slot}: no summary: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    reason = why_not(summary, settings)
    if reason:
        print(f"slot {slot}: {reason}", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())

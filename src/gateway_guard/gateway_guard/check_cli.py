"""`gateway-guard-check keys|guard FILE`: what the role runs before a file replaces the one in use."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from gateway_guard import grants, settings


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 2 or arguments[0] not in ("keys", "guard"):
        print("usage: gateway-guard-check keys|guard FILE", file=sys.stderr)
        return 2
    kind, path = arguments[0], Path(arguments[1])
    try:
        if kind == "keys":
            grants.load(path)
        else:
            for pattern in settings.load(path).patterns.values():
                re.compile(pattern)
    except (OSError, json.JSONDecodeError, grants.GrantsError, settings.SettingsError, re.error) as error:
        print(f"{kind}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

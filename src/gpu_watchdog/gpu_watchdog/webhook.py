"""Posts the alert on standard input to a webhook. Run as a child: resolving a name and TLS have no bound of their own.

The file named as argument holds the URL on its first line and, if wanted, one `Header: value` a line after it; it is a secret, and so
neither is ever printed.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from pathlib import Path


def main(file: Path, body: bytes) -> int:
    try:
        url, *headers = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        print(f"{file}: no URL: {type(error).__name__}", file=sys.stderr)
        return 1
    if not url.startswith(("https://", "http://")):
        print(f"{file}: the first line is no http(s) URL", file=sys.stderr)
        return 1
    request = urllib.request.Request(url, data=body, method="POST", headers={"Content-Type": "application/json"})  # noqa: S310  # checked above
    for header in headers:
        name, _, value = header.partition(":")
        request.add_header(name.strip(), value.strip())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  # checked above
            answer.read(1024)
    except urllib.error.HTTPError as error:
        print(f"the webhook answered {error.code}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"the webhook did not answer: {type(error).__name__}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.stdin.buffer.read()))

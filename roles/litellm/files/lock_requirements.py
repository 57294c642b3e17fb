#!/usr/bin/env python3
"""Locks requirements.in for each supported Python: `lock_requirements.py --newest YYYY-MM-DD` (a day at least 14 days ago); needs `uv`.

Every requirement gets the hashes of all its files. A package that is asked for with and without extras is listed both ways:
pip's hash mode wants each of the two names pinned.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13")
MIN_AGE_DAYS = 14


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--newest", type=datetime.date.fromisoformat, required=True, help="no release after this day is taken")
    newest = parser.parse_args().newest
    if (datetime.datetime.now(tz=datetime.UTC).date() - newest).days < MIN_AGE_DAYS:
        print(f"--newest must be at least {MIN_AGE_DAYS} days ago: stolen releases are found within days", file=sys.stderr)
        return 2
    for python in PYTHONS:
        target = HERE / f"requirements-{python}.txt"
        subprocess.run(
            ["uv", "pip", "compile", str(HERE / "requirements.in"), "--python-version", python, "--python-platform", "x86_64-manylinux_2_28",
             "--only-binary", ":all:", "--generate-hashes", "--no-strip-extras", "--no-annotate", "--no-header", "--quiet",
             "--exclude-newer", newest.isoformat(), "--output-file", str(target)],
            check=True,
        )  # fmt: skip
        text = (
            f"# Made by lock_requirements.py for Python {python}; do not edit.\n--require-hashes\n--only-binary :all:\n{target.read_text()}"
        )
        target.write_text("".join(_both_names(re.split(r"(?m)^(?=\S)", text))))
    return 0


def _both_names(blocks: list[str]) -> list[str]:
    result = []
    for block in blocks:
        plain = re.sub(r"^([A-Za-z0-9._-]+)\[[^\]]+\]==", r"\1==", block)
        result += [plain, block] if plain != block else [block]
    return result


if __name__ == "__main__":
    sys.exit(main())

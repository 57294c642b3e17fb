"""The tests of tests/hosts on hosts that are up and rolled out: one pytest a host, all hosts at once, then what each of them said.

`--report FILE` also writes what ran as a table (docs/test-long.md). A host's output and its junit file are kept in build/host-tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.tools.host_report import report
from tests.tools.twice import pytest_twice

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("gpu-a", "gpu-b")
KEPT = ROOT / "build" / "host-tests"


def run(host: str, arguments: list[str]) -> int:
    """One host's tests with their output in a file; the hosts share nothing, so that each has a cache of failed tests of its own."""
    own = [f"--host={host}", "-o", f"cache_dir={KEPT / host}.cache"]
    with (KEPT / f"{host}.log").open("w", encoding="utf-8") as out:
        return pytest_twice(host, ["tests/hosts", "--durations=10", *own, *arguments], os.environ, out, KEPT / f"{host}.xml")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="write what ran as a table")
    parser.add_argument("-m", "--marks", default="hosts and not long", help="which tests (default: %(default)s)")
    parser.add_argument("-k", "--keyword", default="", help="only those that match, as pytest's -k")
    args = parser.parse_args()
    KEPT.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ThreadPoolExecutor(len(HOSTS)) as pool:
        statuses = list(pool.map(lambda host: run(host, ["-m", args.marks, "-k", args.keyword]), HOSTS))
    for host in HOSTS:
        print(f"=== {host} ===\n{(KEPT / f'{host}.log').read_text(encoding='utf-8')}", flush=True)
    print(f"=== host tests: {time.monotonic() - began:.0f} s on {len(HOSTS)} hosts at once ===")
    if args.report:
        args.report.write_text(report([KEPT / f"{host}.xml" for host in HOSTS]), encoding="utf-8")
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())

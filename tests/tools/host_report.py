"""What ran on the hosts, as a table for people: a test, its runs on each host, how many passed, and how long one took."""

from __future__ import annotations

import re
import statistics
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

HEAD = """# Long tests on simulated hosts

Written by `tests/tools/host_tests.py --report`, from the junit files of one run. The hosts ran at the same time on one machine; seconds are of
one whole run of a test (median, longest), its setting up and its clearing away included.
"""


def report(files: list[Path]) -> str:
    """Markdown from one junit file a host. Raises ValueError for a file of which no host is known."""
    suites = [next(ET.parse(file).getroot().iter("testsuite")) for file in files]  # noqa: S314  written by pytest a moment ago
    hosts = [_properties(suite) for suite in suites]
    lines = [HEAD, f"Begun {suites[0].get('timestamp', '')[:16].replace('T', ' ')} UTC.\n"]
    for suite, host in zip(suites, hosts, strict=True):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        lines.append(
            f"* {host['host']}: systemd {host['systemd']}, {host['cards']} cards: {suite.get('tests')} tests, {bad} failed, "
            f"{suite.get('skipped')} skipped, {float(suite.get('time', 0)):.0f} s"
        )
    lines += ["", f"| test | {' | '.join(host['host'] for host in hosts)} |", f"|---|{'---|' * len(hosts)}"]
    rows = [_runs(suite, host["host"]) for suite, host in zip(suites, hosts, strict=True)]
    for name in dict.fromkeys(name for row in rows for name in row):
        lines.append(f"| {name} | {' | '.join(_cell(row.get(name, [])) for row in rows)} |")
    return "\n".join(lines) + "\n"


def _properties(suite: ET.Element) -> dict[str, str]:
    found = {p.get("name", ""): p.get("value", "") for p in suite.iter("property")}
    if not {"host", "systemd", "cards"} <= set(found):
        raise ValueError(f"no host in the junit file of {suite.get('name')}")
    return found


def _runs(suite: ET.Element, host: str) -> dict[str, list[tuple[bool, float]]]:
    """Test -> (passed, seconds) of each of its repeats; a parameter that is neither host nor repeat stays in the name."""
    runs: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for case in suite.iter("testcase"):
        name, _, parameters = case.get("name", "").rstrip("]").partition("[")
        kept = [word for word in parameters.removeprefix(host).split("-") if word and not re.fullmatch(r"\d+", word)]
        title = name.removeprefix("test_").replace("_", " ") + (f" ({', '.join(kept)})" if kept else "")
        passed = not any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        runs[title].append((passed, float(case.get("time", 0))))
    return runs


def _cell(runs: list[tuple[bool, float]]) -> str:
    if not runs:
        return "–"
    seconds = [s for _, s in runs]
    return f"{sum(passed for passed, _ in runs)} of {len(runs)}, {statistics.median(seconds):.1f} s ({max(seconds):.1f} s)"

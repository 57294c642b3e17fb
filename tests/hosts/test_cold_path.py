"""What a cold request costs on a real host beside what is not ours: the miner's stop, the model server's own start, its answer and its exit.

The moments are PID 1's and the server's own lines in the journal, and the client's clock on the same machine.
"""

from __future__ import annotations

import http.client
import json
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from testinfra.host import Host

from tests.hosts.support.pool_host import PoolHost

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(180)]

LEASES = 10
OURS_S = 2 * 0.150  # the target on a quiet machine; here another host's tests run on the same cores
MOMENTS = {
    "miner stopping": ("miner", r"Stopping "),
    "miner stopped": ("miner", r".*: Deactivated successfully"),
    "server began": ("worker", r"Started "),  # PID 1 says so in the instant before the server's exec
    "server ready": ("worker", r".*listening on "),
    "server stopping": ("worker", r"Stopping "),
    "server stopped": ("worker", r".*: Deactivated successfully"),
    "miner started": ("miner", r"Started "),
}


@dataclass(frozen=True)
class Answer:
    """One short answer: when it was asked for and complete (monotonic seconds), the model server's own share of that, and its card."""

    sent: float
    complete: float
    server_s: float
    card: str


@pytest.fixture
def pool(host: Host, slots: list[str]) -> Iterator[PoolHost]:
    """A host whose cards are all home, before and after."""
    found = PoolHost(host, slots)
    found.settled(60)
    yield found
    found.settled(60)


def ask(pool: PoolHost) -> Answer:
    connection = http.client.HTTPConnection(pool.address, pool.port, timeout=90)
    body = {"model": pool.alias, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    sent = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), pool.headers)
    response = connection.getresponse()
    content = response.read()
    complete = time.monotonic()
    connection.close()
    assert response.status == 200, content
    timings = json.loads(content)["timings"]
    return Answer(sent, complete, (timings["prompt_ms"] + timings["predicted_ms"]) / 1000, str(response.headers["x-gpu-fleet-card"]))


def moments(pool: PoolHost, slot: str, since: float) -> dict[str, float]:
    """The first line of each kind after a moment (monotonic seconds, as all that is returned)."""
    units = " ".join(f"-u gpu-{kind}@{slot}.service" for kind in ("miner", "worker"))
    fields = "MESSAGE,UNIT,_SYSTEMD_UNIT"
    lines = [json.loads(line) for line in pool.sh(f"journalctl --no-pager -b -n 300 -o json --output-fields={fields} {units}").splitlines()]
    found: dict[str, float] = {}
    for line in lines:
        at = int(line["__MONOTONIC_TIMESTAMP"]) / 1e6
        unit = line.get("UNIT", line.get("_SYSTEMD_UNIT", ""))
        for name, (kind, pattern) in MOMENTS.items():
            if at >= since and name not in found and unit.startswith(f"gpu-{kind}@") and re.match(pattern, str(line["MESSAGE"])):
                found[name] = at
    assert set(found) == set(MOMENTS), f"not in the journal: {set(MOMENTS) - set(found)}"
    return found


def test_a_cold_request_adds_little_to_what_miner_and_server_take(pool: PoolHost) -> None:
    rows: dict[str, list[float]] = {}
    for _ in range(LEASES):
        answer = ask(pool)
        pool.settled()
        at = moments(pool, pool.slot[answer.card], answer.sent)
        theirs = {
            "the miner's stop": at["miner stopped"] - at["miner stopping"],
            "the server's own time to ready": at["server ready"] - at["server began"],
            "the server's answer": answer.server_s,
        }
        left = at["server stopped"] - at["server stopping"]
        row = theirs | {
            "ours: request sent -> answer complete": answer.complete - answer.sent - sum(theirs.values()),
            "the server's exit": left,
            "ours: answer complete -> miner started": at["miner started"] - answer.complete - left,
        }
        for name, seconds in row.items():
            rows.setdefault(name, []).append(seconds)
    print(f"\n{LEASES} cold leases; ms{'':28}{'median':>8}{'least':>8}{'most':>8}")
    for name, values in rows.items():
        print(f"{name:48}{1000 * statistics.median(values):8.0f}{1000 * min(values):8.0f}{1000 * max(values):8.0f}")
    ours = {name: statistics.median(values) for name, values in rows.items() if name.startswith("ours")}
    assert all(seconds <= OURS_S for seconds in ours.values()), ours

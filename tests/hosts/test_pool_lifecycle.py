"""The pool under systemd on real hosts of both systemd versions: whatever is killed, the card goes home and is never used twice."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from testinfra.host import Host

from tests.hosts.support.pool_host import PoolHost

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]

# Each once in `make test`, ten times in `make test-long`.
REPEATS = [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(10)]
repeated = pytest.mark.parametrize("repeat", REPEATS)


@pytest.fixture
def pool(host: Host, slots: list[str]) -> Iterator[PoolHost]:
    """A host whose cards are all home, before and after."""
    host.run("systemctl start lease-pool.service")
    found = PoolHost(host, slots)
    found.settled(60)
    yield found
    host.run("systemctl start lease-pool.service")
    found.settled(60)


@pytest.fixture
def watched(pool: PoolHost) -> Iterator[PoolHost]:
    """The same, with a sampler that fails the test when a worker and a miner of one slot were ever alive together."""
    with pool.sampled():
        yield pool
        pool.sh("systemctl start lease-pool.service")
        pool.settled(60)


@repeated
@pytest.mark.parametrize("whom", ["main", "all"])
def test_a_killed_pool_leaves_no_worker_and_the_miner_comes_back_unaided(watched: PoolHost, whom: str, repeat: int) -> None:
    stream = watched.stream()
    slot = watched.slot[stream.card]
    others = {other: watched.miner_pid(other) for other in watched.slots if other != slot}
    watched.sh(f"systemctl kill --signal=KILL --kill-who={whom} lease-pool.service")
    assert stream.rest()[0] is False
    watched.until("miners back and worker gone", watched.mining, 15)
    watched.settled()
    assert {other: watched.miner_pid(other) for other in others} == others
    assert watched.answer()


@repeated
def test_a_killed_worker_is_an_error_event_and_the_card_goes_home(watched: PoolHost, repeat: int) -> None:
    stream = watched.stream()
    watched.sh(f"systemctl kill --signal=KILL gpu-worker@{watched.slot[stream.card]}.service")
    done, error = stream.rest()
    assert not done
    assert error is not None
    watched.settled()
    assert watched.answer()


@repeated
def test_a_killed_miner_comes_back(watched: PoolHost, repeat: int) -> None:
    slot = watched.slots[-1]
    before = watched.miner_pid(slot)
    watched.sh(f"systemctl kill --signal=KILL gpu-miner@{slot}.service")
    watched.until("a new miner", lambda: watched.miner_pid(slot) not in ("0", before), 20)
    watched.settled()


@repeated
def test_a_restart_of_the_pool_lets_the_stream_finish(watched: PoolHost, repeat: int) -> None:
    stream = watched.stream(tokens=60)
    watched.sh("systemctl restart --no-block lease-pool.service")
    assert stream.rest() == (True, None)
    watched.until("the pool is active again", lambda: watched.states("lease-pool.service") == ["active"])
    watched.settled()


@repeated
def test_a_stop_of_the_pool_lets_the_stream_finish_and_the_cards_mine_on(watched: PoolHost, repeat: int) -> None:
    stream = watched.stream(tokens=60)
    watched.sh("systemctl stop --no-block lease-pool.service")
    assert stream.rest() == (True, None)
    watched.until("the pool is down", lambda: watched.states("lease-pool.service") == ["inactive"])
    watched.until("miners back and worker gone", watched.mining, 15)


@repeated
def test_a_restart_of_the_worker_in_mid_request_ends_that_request_only(watched: PoolHost, repeat: int) -> None:
    stream = watched.stream()
    watched.sh(f"systemctl restart --no-block gpu-worker@{watched.slot[stream.card]}.service")
    assert stream.rest()[0] is False
    watched.settled()
    assert watched.answer()


LEASES = """
import pathlib, subprocess, sys, time
from lease_pool import launch
runtime, slot, uuid = pathlib.Path("/run/gpu-fleet"), sys.argv[1], sys.argv[2]
unit = f"gpu-worker@{slot}.service"

def start():
    # As the pool does: the last worker's OnSuccess= may come just now and cancel the start, or its miner still hold the lock (75).
    for _ in range(3):
        done = subprocess.run(["systemctl", "start", unit], capture_output=True, text=True)
        if done.returncode == 0:
            return
        status = subprocess.run(["systemctl", "show", "--property=ExecMainStatus", "--value", unit], capture_output=True, text=True).stdout.strip()
        if "canceled" not in done.stderr and status != "75":
            break
    sys.exit(f"{done.stderr} main process: {status}")

began = time.monotonic()
for n in range(20):
    spec = launch.Launch(uuid, ("/usr/bin/sleep", "60"), {}, 1000, 8.0, False, "nvml")
    launch.publish(runtime, slot, spec, "key")
    subprocess.run(["chown", "lease-pool:gpu-worker", str(launch.spec_path(runtime, slot))], check=True)
    start()
    subprocess.run(["systemctl", "stop", unit], check=True)
print(time.monotonic() - began)
"""


@repeated
def test_twenty_leases_in_ten_seconds_on_one_card_trip_no_limit(watched: PoolHost, repeat: int) -> None:
    watched.sh("systemctl stop lease-pool.service")
    slot = watched.slots[0]
    seconds = float(watched.sh(f"/opt/gpu-fleet/lease-pool/bin/python - {slot} {watched.uuid[slot]} <<'END'\n{LEASES}\nEND"))
    assert seconds < 10, f"20 leases took {seconds:.1f} s"
    watched.until("miner back", watched.mining, 15)


@repeated
def test_a_client_that_leaves_while_the_miner_is_stopping_starts_no_worker(watched: PoolHost, repeat: int) -> None:
    faults = [f"/run/gpu-sim/miner/{uuid}" for uuid in watched.uuid.values()]
    watched.sh("mkdir -p /run/gpu-sim/miner && for f in " + " ".join(faults) + "; do echo ignore-sigterm > $f; done")
    try:
        time.sleep(0.3)  # the stand-in miner reads its faults ten times a second
        began = watched.sh("date +%s.%N").strip()
        watched.ask_and_leave(after_s=1)
    finally:
        watched.sh("rm -f " + " ".join(faults))
    watched.settled()
    said = watched.sh(f"journalctl --no-pager -o cat --since @{began} -u 'gpu-worker@*'")
    assert said.count("start was cancelled") == 1, said


@repeated
def test_a_reboot_in_mid_stream_ends_with_no_worker_and_all_cards_mining(pool: PoolHost, host: Host, repeat: int) -> None:
    before = pool.sh("cat /proc/sys/kernel/random/boot_id")
    stream = pool.stream(tokens=60)
    with contextlib.suppress(RuntimeError):  # the connection may go down with the host
        host.run("systemctl reboot --no-block")
    stream.rest()

    def up() -> bool:
        try:
            found = host.run("cat /proc/sys/kernel/random/boot_id && systemctl is-system-running --wait")
        except RuntimeError:
            return False
        return before.strip() not in found.stdout

    pool.until("a new boot", up, 90)
    assert pool.worker_processes() == []
    assert pool.sh("journalctl --no-pager -b -o cat -u 'gpu-worker@*' | grep -c Started || true").strip() in ("", "0")
    pool.settled(60)
    assert pool.answer()

"""The watchdog on real systemd hosts: real reboots, the real unit under its own account and polkit rule, alerts to a real receiver.

Bounds are shortened in the deployed configuration, nothing else is changed; the deployed file is put back at the end.
"""

from __future__ import annotations

import http.server
import json
import re
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from tests.support.nvml_sim.cards import Cards

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.hosts, pytest.mark.timeout(400)]

CONFIG = "/etc/gpu-fleet/watchdog.toml"
STATE = "/var/lib/gpu-fleet"
INTERVAL_S = 1
QUICK = (
    f"interval_s = {INTERVAL_S}\nmisses = 3\nmin_uptime_s = 3\ncooldown_s = 3600\ndrain_s = 10\nverify_s = 15\nreboot_s = 60\n"
    "clock_settle_s = 1\nreconcile_s = 3\n"
)


class Receiver:
    """Takes alerts on every address of this machine."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_args: object) -> None:
                pass

            def do_POST(self) -> None:
                receiver.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self.server = Server(("0.0.0.0", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kinds(self) -> list[str]:
        return [alert["kind"] for alert in self.got]


class Watched:
    """A host with its watchdog made quick."""

    def __init__(self, host: Host, receiver: Receiver) -> None:
        self.host = host
        self.receiver = receiver
        self.boots = [self.boot()]
        self.deployed = host.check_output(f"cat {CONFIG}")
        self.uuid = re.findall(r'uuid = "([^"]+)"', self.deployed)[0]
        self.has_pool = host.run("systemctl cat lease-pool.service").rc == 0

    def make_quick(self) -> None:
        host = self.host
        gateway = host.check_output("ip route show default").split()[2]
        url = f"http://{gateway}:{self.receiver.server.server_address[1]}/"
        quick = self.deployed.replace("[bounds]\n", f"[bounds]\n{QUICK}", 1)
        quick = re.sub(r"\[\[peers\]\].*?(?=\n\[|\Z)", "", quick, flags=re.DOTALL)  # the other host may be away in another test
        quick = f'webhook_file = "{CONFIG}.test"\n' + re.sub(r"webhook_file = .*\n", "", quick)
        self.write(CONFIG, quick)
        self.write(f"{CONFIG}.test", url + "\n")
        host.check_output(f"chgrp gpu-watchdog {CONFIG}.test && chmod 640 {CONFIG}.test && gpu-watchdog check --config {CONFIG}")
        self.fresh()

    def write(self, path: str, text: str) -> None:
        """In place, so that owner and mode stay."""
        self.host.check_output("printf %%s %s > %s", text, path)

    def fresh(self) -> None:
        """A watchdog that knows nothing of what earlier tests did."""
        self.host.check_output(
            f"systemctl stop gpu-watchdog; rm -rf {STATE}/watchdog.json* {STATE}/watchdog-alerts; "
            "systemctl reset-failed gpu-watchdog; systemctl start gpu-watchdog"
        )
        self.rounds(2)

    def put_back(self) -> None:
        self.sim("restore", self.uuid)
        self.host.run("gpu-sim init 0")
        self.write(CONFIG, self.deployed)
        self.host.check_output(f"rm -f {CONFIG}.test")
        self.fresh()

    def sim(self, verb: str, uuid: str, lasting: bool = False) -> None:
        """Break or mend a card; `lasting` also where the next boot takes it from."""
        self.host.check_output(f"gpu-sim {verb} {uuid}")
        if lasting or verb == "restore":
            folders = [folder for folder in ROOT.glob("build/hosts/*/*/state") if uuid in Cards(folder).uuids()]
            assert folders, f"no simulated host of this machine declares {uuid}"
            for folder in folders:
                getattr(Cards(folder), verb)(uuid)

    def boot(self) -> str:
        return str(self.host.check_output("cat /proc/sys/kernel/random/boot_id"))

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.host.check_output("gpu-watchdog status --json")))

    def until(self, holds: Callable[[], Any], bound_s: float = 120) -> None:
        """Poll from outside; a host that is rebooting simply does not answer. Every boot that is seen is remembered."""
        end = time.monotonic() + bound_s
        while True:
            try:
                boot = self.boot()
                if boot != self.boots[-1]:
                    self.boots.append(boot)
                if holds():
                    return
            except (AssertionError, RuntimeError, ValueError, OSError, subprocess.SubprocessError):
                pass
            assert time.monotonic() < end, (
                f"not within {bound_s} s: {self.host.run('gpu-watchdog status; journalctl -n 30 -u gpu-watchdog').stdout}"
            )
            time.sleep(0.5)

    def rounds(self, number: int) -> None:
        for _ in range(number):
            seen = self.host.check_output("stat -c %y /run/gpu-watchdog/last.json 2>/dev/null || true")
            self.until(lambda seen=seen: self.host.check_output("stat -c %y /run/gpu-watchdog/last.json") != seen, 40)

    def phase_is(self, phase: str) -> None:
        self.until(lambda: self.status()["phase"] == phase)


@pytest.fixture(scope="module")
def watched(host: Host) -> Iterator[Watched]:
    receiver = Receiver()
    watched = Watched(host, receiver)
    try:
        watched.make_quick()
        yield watched
    finally:
        watched.put_back()
        receiver.server.shutdown()
        receiver.server.server_close()


def test_the_deployed_unit_is_hardened(host: Host) -> None:
    exposure = host.check_output("systemd-analyze security --no-pager gpu-watchdog.service | tail -n 1")
    assert float(re.findall(r"(\d+\.\d)", exposure)[0]) <= 2.5, exposure


def test_a_pulled_card_gives_exactly_one_reboot_and_then_it_is_healthy(watched: Watched) -> None:
    watched.fresh()
    watched.boots = [watched.boot()]
    watched.receiver.got.clear()
    watched.sim("pull", watched.uuid)
    watched.until(lambda: "recovered" in watched.receiver.kinds(), 180)
    watched.phase_is("healthy")
    watched.rounds(5)
    assert len(set(watched.boots)) == 2
    assert [kind for kind in watched.receiver.kinds() if kind in {"card_lost", "rebooting", "recovered"}] == [
        "card_lost",
        "rebooting",
        "recovered",
    ]
    if watched.has_pool:
        watched.until(lambda: json.loads(watched.host.check_output("lease-pool status --json"))["draining"] is False)


def test_a_card_that_stays_away_gives_one_reboot_and_a_lock_out_for_good(watched: Watched) -> None:
    watched.fresh()
    watched.boots = [watched.boot()]
    watched.receiver.got.clear()
    watched.sim("pull", watched.uuid, lasting=True)
    watched.phase_is("locked_out")
    watched.until(lambda: "locked_out" in watched.receiver.kinds())
    watched.rounds(10)
    watched.host.check_output("systemctl restart gpu-watchdog")
    watched.rounds(3)
    watched.until(lambda: True)
    assert len(set(watched.boots)) == 2
    assert watched.status()["phase"] == "locked_out"
    watched.sim("restore", watched.uuid)
    watched.rounds(2)
    assert watched.status()["phase"] == "locked_out", "only a person leads out"
    watched.host.check_output("gpu-watchdog ack --reason 'card reseated'")
    watched.phase_is("healthy")


HEALTH_TIMES = """
import json, sys, time, urllib.request
took = []
for _ in range(10):
    began = time.monotonic()
    urllib.request.urlopen(sys.argv[1], timeout=10).read()
    took.append(time.monotonic() - began)
print(json.dumps(took))
"""


def test_a_hung_driver_reboots_nothing_and_the_pool_stays_quick(watched: Watched) -> None:
    watched.fresh()
    boot = watched.boot()
    watched.sim("hang", watched.uuid)
    try:
        watched.until(lambda: watched.status()["probe"] == "hung")
        watched.rounds(2)
        if watched.has_pool:
            address = watched.host.check_output("ss -Hltn sport = :9100 | awk '{print $4}'")
            took = json.loads(watched.host.check_output("python3 -c %s %s", HEALTH_TIMES, f"http://{address}/health"))
            assert sorted(took)[-2] < 0.1, took
    finally:
        watched.sim("restore", watched.uuid)
    watched.phase_is("healthy")
    assert watched.boot() == boot


def test_a_driver_that_differs_from_its_library_reboots_nothing_and_is_told(watched: Watched) -> None:
    watched.fresh()
    boot = watched.boot()
    watched.receiver.got.clear()
    watched.host.check_output("gpu-sim init 18")
    try:
        watched.until(lambda: watched.status()["probe"] == "driver_mismatch")
        watched.until(lambda: watched.receiver.kinds() == ["planned_reboot_needed"])
        watched.rounds(5)
    finally:
        watched.host.check_output("gpu-sim init 0")
    assert watched.boot() == boot
    assert watched.receiver.kinds() == ["planned_reboot_needed"]


def test_a_corrupt_state_file_locks_the_host_out(watched: Watched) -> None:
    watched.fresh()
    boot = watched.boot()
    watched.host.check_output(f"systemctl stop gpu-watchdog; truncate -s 100 {STATE}/watchdog.json; systemctl start gpu-watchdog")
    watched.phase_is("locked_out")
    watched.sim("pull", watched.uuid)
    watched.rounds(6)
    watched.sim("restore", watched.uuid)
    assert watched.boot() == boot
    watched.host.check_output("gpu-watchdog ack --reason 'state file was truncated by a test'")
    watched.phase_is("healthy")


def test_a_lease_left_by_killing_everything_is_removed_and_the_miner_comes_back(watched: Watched) -> None:
    if not watched.has_pool:
        pytest.skip("no pool on this host")
    watched.fresh()
    host = watched.host
    # An earlier test took the card away: the pool has to have noticed that it is back before it is taken away itself.
    host.check_output("lease-pool reconcile")
    watched.until(lambda: json.loads(host.check_output("lease-pool status --json"))["cards"][0]["state"] == "mining")
    host.check_output("systemctl mask --runtime --now lease-pool.service")
    try:
        host.check_output(
            "systemctl kill --signal=KILL gpu-miner@c0.service gpu-worker@c0.service || true; systemctl stop gpu-miner@c0.service"
        )
        host.check_output("echo '{}' > /run/gpu-fleet/launch/c0.json")
        watched.until(lambda: host.run("test -e /run/gpu-fleet/launch/c0.json").rc == 1)
        watched.until(lambda: host.run("systemctl is-active gpu-miner@c0.service").stdout.strip() == "active")
    finally:
        host.check_output("systemctl unmask --runtime lease-pool.service; systemctl start lease-pool.service")

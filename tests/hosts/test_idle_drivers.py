"""Another idle workload rolled out on a real host: one miner for all idle cards, none at all, and one a card again."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testinfra.host import Host

from tests.hosts.conftest import INVENTORY, ROOT
from tests.hosts.support import second_pool
from tests.hosts.support.pool_host import PoolHost

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.timeout(600)]

SHARED = "gpu-miner.service"
# The demo's arguments, with the miner's own list of cards.
SHARED_ARGS = ["--coin", "pearl", "-o", "pool.invalid:5566", "-u", "{wallet}.{worker}", "-p", "{password}", "-d", "{devices}"]
PAUSE_S = 1.0


def roll_out(host: Host, variables: dict[str, object]) -> None:
    """The services of this host alone, as an operator changes them. Other hosts' services are not touched."""
    limit = f"{host.backend.host},localhost"
    command = ["ansible-playbook", "-i", str(INVENTORY), "--limit", limit, "--skip-tags", "build", "-e", json.dumps(variables)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run([*command, "playbooks/site.yml"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def restored(host: Host, slots: list[str]) -> Iterator[None]:
    """One miner a card again afterwards, and nothing left of what was tried."""
    yield
    roll_out(host, {})
    found = PoolHost(host, slots)
    found.settled(60)
    assert unit_files(host) == ["gpu-miner@.service"]
    assert found.states(SHARED) == ["inactive"]


@pytest.fixture(scope="module")
def shared(restored: None, host: Host, slots: list[str]) -> PoolHost:
    """A host with one miner for all its idle cards."""
    roll_out(host, {"fleet_pool": {"idle_workload": {"driver": "shared"}}, "gpu_miner_args": [*SHARED_ARGS, "--api-port", "{api_port}"]})
    return PoolHost(host, slots, [SHARED])


@pytest.fixture(scope="module")
def bare(restored: None, host: Host, slots: list[str]) -> PoolHost:
    """A host whose idle cards do nothing."""
    roll_out(host, {"fleet_pool": {"idle_workload": {"driver": "none"}}})
    return PoolHost(host, slots, [])


def unit_files(host: Host) -> list[str]:
    return sorted(host.check_output("cd /etc/systemd/system && ls | grep '^gpu-miner' || true").split())


def mined(pool: PoolHost) -> set[str]:
    """The cards that the one miner was given."""
    pid = pool.sh(f"systemctl show --property=MainPID --value {SHARED}").strip()
    listed = pool.sh(f"cat /proc/{pid}/environ 2>/dev/null | tr '\\0' '\\n' | sed -n 's/^CUDA_VISIBLE_DEVICES=//p'").strip()
    return set(listed.split(",")) if listed else set()


def all_mined(pool: PoolHost) -> bool:
    return pool.home() and mined(pool) == set(pool.slot)


@pytest.fixture
def watched(shared: PoolHost) -> Iterator[PoolHost]:
    """Every card in the one miner, before and after; a sampler looks that no card is used twice meanwhile."""
    shared.until("every card in the one miner", lambda: all_mined(shared), 60)
    with shared.sampled():
        yield shared
        shared.until("every card in the one miner again", lambda: all_mined(shared), 60)


def test_the_miners_of_single_cards_are_gone(watched: PoolHost, host: Host) -> None:
    assert unit_files(host) == ["gpu-miner-refresh.service", SHARED]
    assert host.check_output("systemctl list-units --no-legend 'gpu-miner@*'") == ""
    port = json.loads(watched.sh("cat /opt/gpu-fleet/miner/alive.json"))["ports"]["all"]
    read = f"import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:{port}/summary', timeout=5).read().decode())"
    summary = json.loads(watched.sh(f'python3 -c "{read}"'))
    assert {card["uuid"] for card in summary["gpus"]} == set(watched.slot)


def test_a_lease_takes_its_card_out_of_the_one_miner_and_gives_it_back(watched: PoolHost) -> None:
    stream = watched.stream(tokens=60)
    assert mined(watched) == set(watched.slot) - {stream.card}
    assert stream.rest() == (True, None)


def test_leases_on_all_cards_leave_no_miner(watched: PoolHost) -> None:
    streams = [watched.stream(tokens=3000) for _ in watched.slots]  # the first must outlive the last one's load
    assert len({stream.card for stream in streams}) == len(watched.slots)
    assert mined(watched) == set()
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("whom", ["main", "all"])
def test_a_killed_pool_leaves_no_worker_and_its_card_is_mined_again_unaided(watched: PoolHost, whom: str) -> None:
    stream = watched.stream()
    watched.sh(f"systemctl kill --signal=KILL --kill-who={whom} lease-pool.service")
    assert stream.rest()[0] is False
    watched.until("the miner back and the worker gone", lambda: watched.mining() and mined(watched) == set(watched.slot), 20)


def test_a_killed_worker_gives_its_card_back(watched: PoolHost) -> None:
    stream = watched.stream()
    watched.sh(f"systemctl kill --signal=KILL gpu-worker@{watched.slot[stream.card]}.service")
    assert stream.rest()[0] is False


def test_a_miner_killed_in_mid_stream_comes_back_without_the_leased_card(watched: PoolHost) -> None:
    stream = watched.stream(tokens=1500)
    rest = set(watched.slot) - {stream.card}
    watched.sh(f"systemctl kill --signal=KILL {SHARED}")
    watched.until("the miner on the other cards", lambda: mined(watched) == rest, 20)
    assert stream.event()
    stream.close()


def test_a_drained_card_is_left_out_until_it_is_resumed(watched: PoolHost) -> None:
    card = watched.uuid[watched.slots[0]]
    watched.sh(f"lease-pool drain --card {card} --wait 20")
    try:
        watched.until("the miner on the other cards", lambda: mined(watched) == set(watched.slot) - {card}, 20)
        assert card not in {watched.answer() for _ in range(2)}
    finally:
        watched.sh(f"lease-pool resume --card {card}")


def test_a_restart_of_the_pool_lets_the_stream_finish(watched: PoolHost) -> None:
    stream = watched.stream(tokens=60)
    watched.sh("systemctl restart --no-block lease-pool.service")
    assert stream.rest() == (True, None)


def test_without_an_idle_workload_nothing_of_a_miner_is_left_and_cards_serve(bare: PoolHost, host: Host) -> None:
    bare.settled(60)
    assert unit_files(host) == []
    assert host.check_output("systemctl list-units --no-legend 'gpu-miner*'") == ""
    assert bare.answer()
    bare.settled()


def ask(pool: PoolHost, port: int, model: str) -> str:
    """One short request: its status, and what was wrong where it is not 200."""
    connection = http.client.HTTPConnection(pool.address, port, timeout=120)
    with contextlib.closing(connection):
        body = {"model": model, "max_tokens": 1, "delay": 0.1, "messages": [{"role": "user", "content": "Hello"}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), pool.headers)
        response = connection.getresponse()
        content = response.read()
        return "200" if response.status == 200 else f"{response.status}: {content.decode()}"


def test_two_pools_and_run_compete_and_never_share_a_card(bare: PoolHost, host: Host) -> None:
    """Nobody mines here, so that every card is anybody's: each side has as many clients as there are cards, for half a minute."""
    outcomes: dict[str, Counter[str]] = {}
    until = time.monotonic() + 30

    def repeat(who: str, act: Callable[[], str]) -> threading.Thread:
        outcomes[who] = Counter()

        def loop() -> None:
            while time.monotonic() < until:
                outcomes[who][act()] += 1
                time.sleep(random.uniform(0, PAUSE_S))  # who asks again at once always finds the lock free first

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    def borrow() -> str:
        done = host.run("systemd-run --quiet --wait --collect --unit=borrower lease-pool run -- sleep 0.2")
        return "200" if done.rc == 0 else f"{done.rc}: {done.stderr}"

    bare.settled(60)
    with second_pool.second_pool(bare, host), bare.sampled():
        clients = [repeat("run", borrow)]
        for n in range(len(bare.slots)):
            clients.append(repeat(f"own {n}", lambda: ask(bare, bare.port, bare.alias)))
            clients.append(repeat(f"second {n}", lambda: ask(bare, second_pool.PORT, second_pool.MODEL)))
        for client in clients:
            client.join(180)
        bare.settled(60)
    print({who: dict(counted) for who, counted in outcomes.items()})
    assert all(set(counted) == {"200"} for counted in outcomes.values()), outcomes

"""`lease-pool run` on real hosts of both systemd versions: the borrowed card's miner stays away exactly as long as the command's tree lives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from testinfra.host import Host

from tests.hosts.support.pool_host import PoolHost

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(120)]

REPEATS = [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(10)]
UNIT = "borrower.service"


@pytest.fixture
def pool(host: Host, slots: list[str]) -> Iterator[PoolHost]:
    """A host whose cards are all home, before and after."""
    found = PoolHost(host, slots)
    found.settled(60)
    yield found
    host.run(f"systemctl kill --signal=KILL {UNIT}; systemctl reset-failed {UNIT}")
    found.settled(60)


def lent(pool: PoolHost) -> dict[str, Any] | None:
    """The card that is lent, as the pool shows it."""
    return next((card for card in pool.status()["cards"] if card["state"] == "serving"), None)


@pytest.mark.parametrize("code", [0, 7])
def test_run_passes_the_exit_status_on_and_the_miner_comes_back(pool: PoolHost, host: Host, code: int) -> None:
    done = host.run(f"lease-pool run -- sh -c 'echo $CUDA_VISIBLE_DEVICES; exit {code}'")
    assert done.rc == code, done.stderr
    assert done.stdout.strip() in pool.slot
    pool.settled()


def test_run_tells_a_command_killed_by_a_signal_by_128_and_its_number(pool: PoolHost, host: Host) -> None:
    assert host.run("lease-pool run -- sh -c 'kill -TERM $$'").rc == 128 + 15
    pool.settled()


@pytest.mark.parametrize("repeat", REPEATS)
def test_sigkill_of_run_kills_the_command_and_its_children_and_the_card_goes_home(pool: PoolHost, host: Host, repeat: int) -> None:
    # A child in a session of its own, which only a subreaper finds again. KillMode=process: PID 1 must not do the work that is ours.
    script = "setsid sleep 7001 & sleep 7002 & sleep 7003; true"
    pool.sh(f"systemd-run --quiet --unit={UNIT} --property=KillMode=process lease-pool run -- sh -c '{script}'")
    tree = "pgrep -f '^sleep 700[123]$'"
    pool.until("the command's three processes", lambda: len(host.run(tree).stdout.split()) == 3)
    pool.until("the pool shows the loan", lambda: lent(pool) is not None)
    card = lent(pool)
    assert card is not None
    assert (card["lease"]["alias"], card["lease"]["model"], card["lease"]["worker_pid"]) == (None, None, None), json.dumps(card)
    assert pool.states(f"gpu-miner@{card['slot']}.service") == ["inactive"]
    others = {slot: pool.miner_pid(slot) for slot in pool.slots if slot != card["slot"]}
    pool.sh(f"kill -KILL $(systemctl show --property=MainPID --value {UNIT})")
    pool.until("the command's tree is gone", lambda: host.run(tree).stdout == "", 10)
    pool.settled()
    assert {slot: pool.miner_pid(slot) for slot in others} == others

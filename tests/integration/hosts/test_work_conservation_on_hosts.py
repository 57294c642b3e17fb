"""Two hosts with six cards, rolled out as a fleet is: who starts without queueing, asked through one host's gateway, both hosts', and LiteLLM's own shuffle.

The rollout is the real one (site.yml) with stand-ins for model servers; the shuffle is a LiteLLM of this machine in front of the same pools.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from gateway_guard.capacity import BUSY_PERIOD_S

from tests.support.gateway_cases import rounds
from tests.support.gateway_fleet import Cards
from tests.support.gateway_pools import gateway_before, running
from tests.support.gateway_rig import Answer, GatewayClient
from tests.support.hosts import inventory

ROOT = Path(__file__).resolve().parents[3]
WORK = ROOT / "build" / "conservation"
SUBNET = "10.89.80."
HOSTS = [sys.executable, str(ROOT / "tests/support/hosts/hosts.py"), "--prefix=conserve", f"--subnet={SUBNET}0/24"]
ADDRESSES = {"gpu-a": f"{SUBNET}11", "gpu-b": f"{SUBNET}12"}
CARDS: Cards = {"gpu-a": [(12, [])] * 4, "gpu-b": [(24, []), (24, ["lone"])]}  # the label is for an alias that nobody asks for here
ROUNDS = 60
MINING = re.compile(r'^gpu_fleet_card_state\{[^}]*state="mining"[^}]*\} 1\.0$', re.MULTILINE)
AT_ONCE_MS = 150  # on two cores that also run the six workers
STANDIN = ROOT / "tests" / "support"
FILES = {"workers/gated.py": STANDIN / "workers" / "gated.py", "openai_answers.py": STANDIN / "openai_answers.py"}

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]


@dataclass
class Asked:
    """What is known of the fleet from outside: its pools' token, an agent's key, and the shares measured so far."""

    token: str
    key: str
    shares: dict[str, float]


def hosts(*arguments: str, stdin: str = "") -> None:
    done = subprocess.run([*HOSTS, *arguments], capture_output=True, text=True, check=False, input=stdin)
    assert done.returncode == 0, done.stdout + done.stderr


def roll_out() -> None:
    inventory.write(WORK / "inventory", f"{SUBNET}0/24")
    for host in ADDRESSES:
        hosts("exec", host, "--", "mkdir", "-p", "/opt/fleet-standin/workers", "/opt/fleet-standin/gates")
        hosts("exec", host, "--", "touch", *(f"/opt/fleet-standin/gates/{gate}" for gate in ("load", "answer", "stream")))
        for name, source in FILES.items():
            hosts("exec", host, "--", "sh", "-c", f"cat > /opt/fleet-standin/{name} <<'END'\n{source.read_text()}\nEND")
    environment = os.environ | {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    playbook = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [playbook, "-i", str(WORK / "inventory"), "playbooks/site.yml", "-e", f"@{Path(__file__).with_name('standin_fleet.yml')}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    began = time.monotonic()
    hosts("up")
    try:
        roll_out()
        print(f"two hosts rolled out in {time.monotonic() - began:.0f} s")
        secrets = WORK / "secrets"
        found = Asked((secrets / "pool_token").read_text().strip(), (secrets / "agent_key").read_text().strip(), {})
        yield found
        for name, share in found.shares.items():
            print(f"{name:<16} {share:6.1%} started without queueing")
    finally:
        hosts("down")


@pytest_asyncio.fixture(loop_scope="session")
async def clients(asked: Asked) -> AsyncIterator[dict[str, GatewayClient]]:
    async with aiohttp.ClientSession() as session:
        yield {host: GatewayClient(session, _door(f"http://{address}:4000")) for host, address in ADDRESSES.items()}


def _door(url: str) -> Any:
    return SimpleNamespace(url=url)


async def idle(asked: Asked, session: aiohttp.ClientSession) -> None:
    """Wait until all six cards are home with their miners, and the gateways have had time to read it."""
    headers = {"Authorization": f"Bearer {asked.token}"}
    async with asyncio.timeout(60):
        while True:
            mining = 0
            for address in ADDRESSES.values():
                async with session.get(f"http://{address}:9100/metrics", headers=headers) as response:
                    mining += len(MINING.findall(await response.text()))
            if mining == sum(map(len, CARDS.values())):
                break
            await asyncio.sleep(0.05)
    await asyncio.sleep(2 * BUSY_PERIOD_S)


async def share_at_once(asked: Asked, clients: list[GatewayClient], key: str, count: int) -> float:
    """Return the share of the requests of so many rounds that waited for no card, by what the pool that served each says of it."""
    waits: list[tuple[float, str]] = []
    for number, wanted in enumerate([*rounds(2, 0), *rounds(count, seed=len(clients))]):  # in the first two the gateways wake up
        await idle(asked, clients[0].session)
        answers = await asyncio.gather(*(clients[(i + number) % len(clients)].ask(alias, key=key) for i, alias in enumerate(wanted)))
        assert {answer.status for answer in answers} == {200}, [answer.text for answer in answers if answer.status != 200]
        if number >= 2:
            waits += [
                (float(_told(answer, "queued-ms")), f"round {number}: {alias} on {_told(answer, 'card')} of {wanted}")
                for alias, answer in zip(wanted, answers, strict=True)
            ]
    late = [wait for wait in waits if wait[0] >= AT_ONCE_MS]
    for queued_ms, what in late:
        print(f"{queued_ms:.0f} ms, {what}")
    print(f"{len(waits) - len(late)} of {len(waits)} at once, longest wait {max(waits)[0]:.0f} ms")
    return 1 - len(late) / len(waits)


def _told(answer: Answer, name: str) -> str:
    """Return what the pool says, which nginx passes on and LiteLLM alone prefixes."""
    return answer.headers.get(f"x-gpu-fleet-{name}") or answer.headers[f"llm_provider-x-gpu-fleet-{name}"]


async def test_one_hosts_gateway_uses_free_cards_of_both_before_anyone_queues(asked: Asked, clients: dict[str, GatewayClient]) -> None:
    share = asked.shares["one gateway"] = await share_at_once(asked, [clients["gpu-a"]], asked.key, ROUNDS)
    assert share >= 0.99


async def test_two_hosts_gateways_use_free_cards_before_anyone_queues(asked: Asked, clients: dict[str, GatewayClient]) -> None:
    share = asked.shares["two gateways"] = await share_at_once(asked, list(clients.values()), asked.key, ROUNDS)
    assert share >= 0.95


async def test_litellms_own_shuffle_is_what_they_are_compared_with(asked: Asked, tmp_path: Path) -> None:
    pools = {host: f"http://{address}:9100" for host, address in ADDRESSES.items()}
    gateway = gateway_before(pools, asked.token, tmp_path / "shuffle", CARDS, shuffle=True)
    async with running(gateway) as session:
        share = asked.shares["simple-shuffle"] = await share_at_once(asked, [GatewayClient(session, gateway)], "agent", ROUNDS)
    assert share < asked.shares.get("two gateways", 1.0)

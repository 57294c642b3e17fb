"""A simulated host seen by the pool's tests: its cards, units and processes, and requests to its pool from outside."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testinfra.host import Host

SAMPLER = Path(__file__).with_name("sampler.py")


class Stream:
    """A streamed chat completion, read from this machine."""

    def __init__(self, host: PoolHost, tokens: int) -> None:
        self._connection = http.client.HTTPConnection(host.address, host.port, timeout=90)
        body = {"model": host.alias, "stream": True, "max_tokens": tokens, "ignore_eos": True}
        self._connection.request(
            "POST", "/v1/chat/completions", json.dumps({**body, "messages": [{"role": "user", "content": "Count."}]}), host.headers
        )
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self.card = self._response.headers["x-gpu-fleet-card"]

    def event(self) -> dict[str, Any] | None:
        """The next event: its JSON, `{}` for [DONE], None at the end of the stream, however that came."""
        try:
            while line := self._response.readline():
                if line.startswith(b"data: [DONE]"):
                    return {}
                if line.startswith(b"data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    return event
        except (OSError, http.client.HTTPException):
            pass
        return None

    def rest(self) -> tuple[bool, dict[str, Any] | None]:
        """Read to the end: whether it was complete, and the error event if there was one."""
        done, error = False, None
        while (event := self.event()) is not None:
            done = done or event == {}
            error = event.get("error", error)
        return done, error

    def close(self) -> None:
        self._connection.close()


class PoolHost:
    """What the tests ask of one host. Every wait is bounded and names what it waited for."""

    def __init__(self, host: Host, slots: list[str], miners: list[str] | None = None) -> None:
        """miners: the units of the idle workload; without it one a slot."""
        self._host = host
        self.slots = slots
        self.miners = [f"gpu-miner@{slot}.service" for slot in slots] if miners is None else miners
        status = self.status()
        self.uuid = {card["slot"]: card["uuid"] for card in status["cards"]}
        self.slot = {uuid: slot for slot, uuid in self.uuid.items()}
        chat = next(model for model in status["models"] if "chat" in model["endpoints"])
        self.alias = (chat["aliases"] or [chat["name"]])[0]
        token = self.sh("head -1 /etc/gpu-fleet/pool.token").strip()
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        listen = self.sh(
            '/opt/gpu-fleet/lease-pool/bin/python -c \'import yaml; l = yaml.safe_load(open("/etc/gpu-fleet/pool.yml"))["listen"]; print(l["host"], l["port"])\''
        )
        self.address, self.port = listen.split()[0], int(listen.split()[1])

    def sh(self, command: str) -> str:
        done = self._host.run(command)
        assert done.rc == 0, f"{command}: {done.rc}: {done.stderr}"
        return str(done.stdout)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.sh("lease-pool status --json"))
        return found

    def states(self, *units: str) -> list[str]:
        shown = self.sh(f"systemctl show --property=ActiveState --value {' '.join(units)}")
        return shown.split()

    def worker_processes(self) -> list[str]:
        return self.sh("cat /sys/fs/cgroup/system.slice/system-gpu*worker.slice/*/cgroup.procs 2>/dev/null || true").split()

    def miner_pid(self, slot: str) -> str:
        return self.sh(f"systemctl show --property=MainPID --value gpu-miner@{slot}.service").strip()

    def until(self, what: str, condition: Callable[[], bool], bound_s: float = 20) -> float:
        """Seconds until the condition held; fails after the bound."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < bound_s, f"after {bound_s:g} s still not: {what}\n{self.diagnosis()}"
            time.sleep(0.1)
        return time.monotonic() - began

    def mining(self) -> bool:
        """Every miner runs and no worker does: what PID 1 alone promises."""
        states = self.states(*self.miners) if self.miners else []
        return states == ["active"] * len(self.miners) and not self.worker_processes()

    def home(self) -> bool:
        """Every card is home in the pool's own words too, with nothing left over."""
        answered = self._host.run("lease-pool status --json")
        if answered.rc != 0:
            return False
        cards = json.loads(answered.stdout)["cards"]
        return all(card["state"] == "mining" and card["lease"] is None for card in cards) and self.mining() and not self.specs()

    def specs(self) -> list[str]:
        return self.sh("ls /run/gpu-fleet/launch | grep -v '[.]key$' || true").split()

    def settled(self, bound_s: float = 30) -> float:
        return self.until("every card mining", self.home, bound_s)

    def answer(self) -> str:
        """The card that answered one short request."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=90)
        with contextlib.closing(connection):
            body = {"model": self.alias, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), self.headers)
            response = connection.getresponse()
            content = response.read()
            assert response.status == 200, content
            return str(response.headers["x-gpu-fleet-card"])

    def ask_and_leave(self, after_s: float) -> None:
        """Send a request and close the connection before any answer came."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=after_s)
        with contextlib.closing(connection):
            body = {"model": self.alias, "messages": [{"role": "user", "content": "Hello"}]}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), self.headers)
            try:
                connection.getresponse()
            except TimeoutError:
                return
        raise AssertionError(f"an answer came within {after_s:g} s")

    def stream(self, tokens: int = 400) -> Stream:
        stream = Stream(self, tokens)
        assert stream.event() is not None
        return stream

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        """Fails when processes of two units used one card together inside the block."""
        self._host.run("systemctl reset-failed pool-sampler.service")
        self.sh(f"cat > /run/pool-sampler.py <<'END'\n{SAMPLER.read_text()}\nEND")
        self.sh(f"systemd-run --quiet --unit=pool-sampler python3 /run/pool-sampler.py /run/pool-sampler.log {' '.join(self.slot)}")
        try:
            yield
        finally:
            self._host.run("systemctl stop pool-sampler.service")
        lines = self.sh("cat /run/pool-sampler.log").splitlines()
        assert lines, "the sampler wrote nothing"
        assert lines[-1].startswith("samples ")
        assert int(lines[-1].split()[1]) > 10
        assert int(lines[-1].split()[3]) > 0, "the sampler saw nobody use a card"
        assert lines[:-1] == []

    def diagnosis(self) -> str:
        return str(
            self._host.run(
                "lease-pool status; systemctl --no-pager list-units 'gpu-*' lease-pool.service; journalctl --no-pager -n 60 -u lease-pool -u 'gpu-*'"
            ).stdout
        )

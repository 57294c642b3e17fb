"""`lease-pool exec-worker` as the unit runs it: real processes, a real flock, a real notify socket; only PID 1 and NVML are left out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lease_pool.lock_holder import holder

from lease_pool import launch

SOURCE = Path(launch.__file__).parents[1]
DUMP = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]), flush=True); sys.stdin.read()"


class Slot:
    """One slot's folders, as the role makes them."""

    def __init__(self, root: Path) -> None:
        self.runtime = root / "run"
        self.launch = self.runtime / "launch"
        self.launch.mkdir(parents=True)
        self.lock = root / "c0.use"
        self.lock.touch()
        self.private = root / "private"
        self.private.mkdir()
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(root / "notify"))
        self.notify.settimeout(10)
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SOURCE),
            "GPU_FLEET_RUNTIME_DIR": str(self.runtime),
            "NOTIFY_SOCKET": str(root / "notify"),
            "RUNTIME_DIRECTORY": str(self.private),
            "CREDENTIALS_DIRECTORY": str(self.private),
        }

    def publish(self, **fields: Any) -> None:
        spec = {"uuid": "GPU-1", "argv": (sys.executable, "-c", DUMP), "env": {}, "memory_mib": 1, "free_s": 1.0}
        launch.publish(self.runtime, "c0", launch.Launch(**{**spec, "needs_port": False, "check": "none", **fields}), "key")

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["/usr/bin/flock", "--no-fork", "-n", "-E", "75", str(self.lock), sys.executable, "-m", "lease_pool.cli", "exec-worker", "c0"],
            env={**self.environment, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def notified(self, word: str) -> str:
        """The next notification that has this word."""
        while word not in (message := self.notify.recv(4096).decode()):
            pass
        return message


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    made = Slot(tmp_path)
    yield made
    made.notify.close()


def test_without_a_spec_it_ends_well_and_tells_pid_1_that_it_is_ready(slot: Slot) -> None:
    process = slot.start()
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "slot c0: the start was cancelled\n", "")
    assert slot.notified("READY=1")


def test_its_imports_are_the_standard_librarys_cheap_ones() -> None:
    code = "import sys; from lease_pool import card_memory, cli, exec_worker; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", code]
    found = set(
        subprocess.run(command, env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    )
    assert "lease_pool.exec_worker" in found
    tops = {name.partition(".")[0] for name in found}
    assert tops - {"lease_pool", "__main__"} <= sys.stdlib_module_names | set(sys.builtin_module_names)
    assert not tops & {"pathlib", "dataclasses", "inspect", "argparse", "asyncio", "logging"}, "each costs every cold request milliseconds"


def test_a_withdrawn_spec_is_a_cancelled_start(slot: Slot) -> None:
    slot.publish()
    assert launch.withdraw(slot.runtime, "c0")
    process = slot.start()
    process.communicate(timeout=10)
    assert process.returncode == 0


def test_a_consumed_spec_cannot_be_withdrawn_or_used_again(slot: Slot) -> None:
    slot.publish()
    process = slot.start()
    slot.notified("READY=1")
    assert not launch.withdraw(slot.runtime, "c0")
    assert [entry.name for entry in slot.launch.iterdir()] == ["c0.key"]
    process.kill()
    process.communicate(timeout=10)


def test_the_server_keeps_the_process_and_the_lock(slot: Slot) -> None:
    slot.publish()
    process = slot.start()
    slot.notified("READY=1")
    assert holder(slot.lock) == process.pid
    argv, _ = json.loads(process.stdout.readline())  # type: ignore[union-attr]
    assert argv == []
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert holder(slot.lock) is None


def test_a_held_lock_leaves_the_spec_alone(slot: Slot) -> None:
    slot.publish()
    with subprocess.Popen(["/usr/bin/flock", "--no-fork", str(slot.lock), "sleep", "60"]) as other:
        while holder(slot.lock) is None:
            time.sleep(0.01)
        process = slot.start()
        process.communicate(timeout=10)
        assert process.returncode == launch.LOCK_HELD
        assert launch.withdraw(slot.runtime, "c0")
        other.kill()


def test_nothing_of_ours_and_no_card_setting_is_inherited(slot: Slot) -> None:
    slot.publish(env={"MY": "own", "WHERE": "{socket}"})
    process = slot.start(CUDA_VISIBLE_DEVICES="9", CUDA_FOO="1", NVIDIA_X="1", LLAMA_ARG_HOST="h", INVOCATION_ID="i", LC_ALL="C")
    slot.notified("READY=1")
    _, environment = json.loads(process.stdout.readline())  # type: ignore[union-attr]
    process.communicate(timeout=10)
    environment.pop("LC_CTYPE", None)  # Python's own
    assert environment == {
        "PATH": os.environ["PATH"], "LC_ALL": "C", "MY": "own", "WHERE": str(slot.private / "worker.sock"),
        "CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }  # fmt: skip


def test_placeholders_are_filled_anywhere_in_an_argument(slot: Slot) -> None:
    slot.publish(argv=(sys.executable, "-c", DUMP, "--listen=unix:{socket}", "{host}:{port}", "--key-file={api_key_file}"))
    process = slot.start()
    slot.notified("READY=1")
    argv, _ = json.loads(process.stdout.readline())  # type: ignore[union-attr]
    process.communicate(timeout=10)
    assert argv == [f"--listen=unix:{slot.private}/worker.sock", "127.0.0.1:8080", f"--key-file={slot.private}/api-key"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"uuid": "GPU-1"}', '{"argv": 1}'])
def test_a_spec_that_cannot_be_used_is_gone_and_named(slot: Slot, text: str) -> None:
    launch.write(launch.spec_path(slot.runtime, "c0"), text, 0o640)
    process = slot.start()
    _, err = process.communicate(timeout=10)
    assert process.returncode == launch.BAD_SPEC
    assert "slot c0: launch spec" in err
    assert list(slot.launch.iterdir()) == []


def test_a_server_that_does_not_exist_is_named(slot: Slot) -> None:
    slot.publish(argv=("/nonexistent/server",))
    process = slot.start()
    _, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "/nonexistent/server" in err


def test_without_nvml_the_reason_reaches_pid_1_within_the_bound(slot: Slot) -> None:
    slot.publish(check="nvml", free_s=0.3)
    process = slot.start(LD_LIBRARY_PATH="/nonexistent")
    _, err = process.communicate(timeout=10)
    assert process.returncode == launch.NOT_FREE
    assert "not free after 0.3 s" in err
    assert "GPU-1" in slot.notified("not free")


def test_the_key_is_its_owners_only(slot: Slot) -> None:
    slot.publish()
    assert launch.key_path(slot.runtime, "c0").stat().st_mode & 0o777 == 0o600
    assert launch.spec_path(slot.runtime, "c0").stat().st_mode & 0o777 == 0o640
    assert "key" not in launch.spec_path(slot.runtime, "c0").read_text().replace("api_key", "")


ECHO = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("listening", flush=True)
    while True:
        peer, _ = server.accept()
        data = peer.recv(100)
        if data == b"slow":
            peer.sendall(b"1"); time.sleep(0.2); peer.sendall(b"2"); peer.close()
        else:
            peer.sendall(data.upper()); print("saw end", peer.recv(1) == b"", flush=True); peer.close()
"""


@pytest.fixture
def relayed(slot: Slot) -> Iterator[subprocess.Popen[str]]:
    """A server that listens on a port only, in a network of its own, behind the worker's socket."""
    slot.publish(argv=(sys.executable, "-c", ECHO, "{port}"), needs_port=True)
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up 2>/dev/null || true; exec "$0" "$@"']
    inner = ["/usr/bin/flock", "--no-fork", "-n", str(slot.lock), sys.executable, "-m", "lease_pool.cli", "exec-worker", "c0"]
    process = subprocess.Popen([*command, *inner], env=slot.environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    yield process
    process.kill()
    process.communicate(timeout=10)


def connect(slot: Slot) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(10)
    peer.connect(str(slot.private / "worker.sock"))
    return peer


def test_a_server_with_only_a_port_answers_on_the_socket(slot: Slot, relayed: subprocess.Popen[str]) -> None:
    with connect(slot) as peer:
        peer.sendall(b"hello")
        assert peer.recv(100) == b"HELLO"


def test_a_client_that_leaves_is_seen_by_the_server_behind_the_relay(slot: Slot, relayed: subprocess.Popen[str]) -> None:
    with connect(slot) as peer:
        peer.sendall(b"hello")
        peer.recv(100)
    assert relayed.stdout is not None
    assert relayed.stdout.readline() == "saw end True\n"


def test_the_relay_passes_each_piece_at_once_and_ends_with_the_server(slot: Slot, relayed: subprocess.Popen[str]) -> None:
    with connect(slot) as peer:
        peer.sendall(b"slow")
        assert peer.recv(100) == b"1"
        assert peer.recv(100) == b"2"
        assert peer.recv(100) == b""
    relayed.kill()
    relayed.wait(10)
    assert holder(slot.lock) is None, "the relay does not hold the card"
    assert refused(slot)


def refused(slot: Slot) -> bool:
    """Whether nobody listens on the socket any more; the relay learns of the server's end by a moment later."""
    for _ in range(200):
        try:
            connect(slot).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.02)
    return False

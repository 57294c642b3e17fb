"""Only a process that is verified to be ours is killed: by mark (boot id, pool, slot) and by start time, whatever its PID."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lease_pool.strays import MARK, clear, kill_if_marked, marked, start_time

from lease_pool import strays

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
OURS = f"{BOOT}/00112233aabbccdd"
Started = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def started() -> Iterator[Started]:
    """Starts processes with a mark of their own, and ends them with the test."""
    made: list[subprocess.Popen[bytes]] = []

    def start(mark: str | None, *argv: str) -> subprocess.Popen[bytes]:
        env = dict(os.environ) | ({MARK: mark} if mark is not None else {})
        made.append(subprocess.Popen([*(argv or ("/bin/sleep", "60"))], env=env))
        deadline = time.monotonic() + 5
        while mark is not None and made[-1].pid not in marked(mark):  # between fork and exec it still is this process
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


async def test_only_this_pool_s_marked_processes_of_this_boot_are_killed(started: Started) -> None:
    others = [
        started(None),
        started("another-boot-id/00112233aabbccdd/c0/x"),
        started(f"{BOOT}/ffffffffffffffff/c0/x"),  # another pool on the same cards
        started(f"x{OURS}/c0/x"),
    ]
    named = started(None, "/bin/sh", "-c", f"sleep 60; : {MARK}={OURS}/c0/x")  # on its command line only
    mine = [
        started(f"{OURS}/c0/aa"),
        started(f"{OURS}/c1/bb", sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"),
    ]
    assert await clear(f"{OURS}/c1/", 5) == [mine[1].pid]
    assert mine[0].poll() is None
    assert await clear(OURS, 5) == [mine[0].pid]
    assert [process.wait(5) for process in mine] == [-signal.SIGKILL] * 2
    assert [process.poll() for process in (*others, named)] == [None] * 5


def test_a_pid_that_was_given_to_another_process_meanwhile_is_left_alone(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    process = started(f"{OURS}/c0/x")
    real = start_time(process.pid)
    assert real
    answers = iter([real - 5, real])  # whom we looked at began earlier than who is there once it is pinned
    monkeypatch.setattr(strays, "start_time", lambda pid: next(answers))
    assert not kill_if_marked(process.pid, OURS)
    monkeypatch.undo()
    assert process.poll() is None
    assert not kill_if_marked(process.pid, f"{BOOT}/other")
    assert kill_if_marked(process.pid, OURS)
    process.wait(5)
    assert not kill_if_marked(process.pid, OURS)


async def test_what_cannot_be_killed_is_waited_for_no_longer_than_the_bound(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    process = started(f"{OURS}/c0/x")
    monkeypatch.setattr(strays, "kill_if_marked", lambda pid, prefix: False)  # stuck in the kernel
    began = time.monotonic()
    assert await clear(OURS, 0.3) == []
    assert 0.3 <= time.monotonic() - began < 2
    assert process.poll() is None

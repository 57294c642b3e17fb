"""A lane's child may hang, die or be slow: the pool goes on, and asks again once the driver is well."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lease_pool.nvml_lane import Hangs, Lane

from lease_pool import nvml_lane


def driver(question: Any) -> Any:
    """What a driver does, as the question says."""
    match question:
        case ["hang while", path]:
            while Path(path).exists():
                time.sleep(0.01)
        case ["hang", _]:
            signal.pause()
        case ["slow", seconds]:
            time.sleep(seconds)
        case ["die", _]:
            os._exit(3)
        case ["descriptors", _]:
            return [fd for fd in range(3, 1024) if Path(f"/proc/self/fd/{fd}").exists()]
    return question, os.getpid()


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lane]:
    monkeypatch.setattr(nvml_lane, "CALL_S", 0.3)
    monkeypatch.setattr(nvml_lane, "REST_S", 0.2)
    lane = Lane(driver)
    yield lane
    lane.close()


def gone(pid: int, bound_s: float = 5) -> bool:
    """Whether the process ended (a zombie has) within the bound."""
    end = time.monotonic() + bound_s
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


async def test_one_child_answers_question_after_question(lane: Lane) -> None:
    answers = [await lane.ask(number, 5) for number in range(3)]
    assert [answer[0] for answer in answers] == [0, 1, 2]
    assert len({answer[1] for answer in answers}) == 1
    assert answers[0][1] != os.getpid()


async def test_a_call_that_hangs_ends_at_its_bound_with_its_child_and_other_lanes_go_on(lane: Lane) -> None:
    _, pid = await lane.ask("who", 5)
    other = Lane(driver)
    hung = asyncio.create_task(lane.ask(("hang", None), 5))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await other.ask("well", 5)
    assert time.monotonic() - began < 0.2
    with pytest.raises(Hangs):
        await hung
    assert time.monotonic() - began < 1
    assert gone(pid)
    other.close()


async def test_while_a_hung_call_is_let_rest_further_askers_are_told_at_once(lane: Lane) -> None:
    with pytest.raises(Hangs):
        await lane.ask(("hang", None), 5)
    began = time.monotonic()
    for _ in range(20):
        with pytest.raises(Hangs, match="a driver call hangs since"):
            await lane.ask("anything", 5)
    assert time.monotonic() - began < 0.1


async def test_a_driver_that_is_well_again_is_asked_again(lane: Lane, tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    stuck.touch()
    for _ in range(2):
        with pytest.raises(Hangs):
            await lane.ask(("hang while", str(stuck)), 5)
        await asyncio.sleep(0.25)  # its rest
    stuck.unlink()
    assert (await lane.ask(("hang while", str(stuck)), 5))[0] == ["hang while", str(stuck)]
    assert (await lane.ask("and", 5))[0] == "and"


async def test_an_asker_that_gives_up_early_leaves_no_answer_for_the_next_one(lane: Lane) -> None:
    with pytest.raises(Hangs):
        await lane.ask(("slow", 0.2), 0.05)
    assert (await lane.ask("mine", 5))[0] == "mine"


async def test_a_hung_call_whose_asker_gave_up_is_ended_all_the_same(lane: Lane) -> None:
    _, pid = await lane.ask("who", 5)
    with pytest.raises(Hangs):
        await lane.ask(("hang", None), 0.05)
    await asyncio.sleep(0.3)  # the call's bound
    assert gone(pid)


def children() -> set[int]:
    """This process's children, zombies included."""
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


async def test_a_child_that_dies_is_replaced_and_leaves_no_zombie(lane: Lane) -> None:
    before = children()
    for _ in range(3):
        with pytest.raises(EOFError):
            await lane.ask(("die", None), 5)
    _, pid = await lane.ask("next", 5)
    assert children() - before == {pid}


async def test_a_lane_that_rests_has_no_child_and_makes_one_when_asked_again(lane: Lane) -> None:
    before = children()
    _, pid = await lane.ask("first", 5)
    await lane.rest()
    assert children() == before
    question, later = await lane.ask("again", 5)
    assert question == "again"
    assert later != pid


async def test_an_error_says_whether_the_card_was_asked(lane: Lane) -> None:
    with pytest.raises(Hangs) as asked:
        await lane.ask(("hang", None), 5)
    with pytest.raises(Hangs) as not_asked:
        await lane.ask("anything", 5)
    assert "not asked" not in str(asked.value)
    assert "not asked" in str(not_asked.value)


async def test_a_child_that_cannot_be_made_is_told_as_one_that_died(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", full)
        with pytest.raises(EOFError):
            await lane.ask("who", 5)
    assert (await lane.ask("well", 5))[0] == "well"


async def test_a_child_keeps_nothing_open_but_its_pipe(lane: Lane, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w"):
        assert len(await lane.ask(("descriptors", None), 5)) == 1


PARENT = """
import asyncio, os, sys
from lease_pool.nvml_lane import Lane

async def main():
    lane = Lane(lambda question: os.getpid())
    print(await lane.ask(0, 5), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_a_child_ends_with_a_pool_that_was_killed() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid, 0.1)
        parent.kill()
        assert gone(pid)

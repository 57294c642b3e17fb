"""Jobs of PID 1, against a bus that answers late, early, twice, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from dbus_fast import Message, MessageType, Variant
from lease_pool.dbus_jobs import Systemd, unit_path
from lease_pool.types import SupervisorError

from lease_pool import dbus_jobs

UNIT = "gpu-worker@c0.service"
JOB = "/org/freedesktop/systemd1/job/{}"


class Bus:
    """What dbus-fast's MessageBus is to us. `answer` says what PID 1 replies to a call of the manager; None: never."""

    made: list[Bus] = []  # noqa: RUF012  emptied by the fixture

    def __init__(self, **_: Any) -> None:
        self.connected = False
        self.handlers: list[Callable[[Message], None]] = []
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.answer: Callable[[str, tuple[str, ...]], Message | None] = lambda member, body: reply(JOB.format(1))
        self.broken: asyncio.Event = asyncio.Event()
        Bus.made.append(self)

    async def connect(self) -> Bus:
        self.connected = True
        return self

    def add_message_handler(self, handler: Callable[[Message], None]) -> None:
        self.handlers.append(handler)

    async def call(self, message: Message) -> Message:
        assert message.member
        self.calls.append((message.member, tuple(message.body)))
        if message.member in ("AddMatch", "Subscribe"):
            return reply()
        if message.member == "GetAll":
            return reply({"ActiveState": Variant("s", "inactive"), "Nonsense": Variant("s", "x")})
        answer = self.answer(message.member, tuple(message.body))
        if answer is None:
            await asyncio.Event().wait()
        assert answer is not None
        return answer

    def disconnect(self) -> None:
        self.connected = False
        self.broken.set()

    async def wait_for_disconnect(self) -> None:
        await self.broken.wait()

    def say(self, member: str, body: list[Any], path: str = "/org/freedesktop/systemd1") -> None:
        signal = Message(path=path, interface="org.freedesktop.DBus.Properties", member=member, body=body, message_type=MessageType.SIGNAL)
        for handler in self.handlers:
            handler(signal)

    def job_removed(self, number: int, result: str) -> None:
        self.say("JobRemoved", [number, JOB.format(number), UNIT, result])


def reply(*body: Any) -> Message:
    return Message(message_type=MessageType.METHOD_RETURN, reply_serial=1, body=list(body))


def failure(name: str, text: str) -> Message:
    return Message(message_type=MessageType.ERROR, reply_serial=1, error_name=name, body=[text])


@pytest_asyncio.fixture
async def systemd(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Systemd]:
    Bus.made.clear()
    monkeypatch.setattr(dbus_jobs, "MessageBus", Bus)
    pid1 = Systemd()
    await pid1.watch([UNIT])
    yield pid1
    await pid1.close()


def bus() -> Bus:
    return Bus.made[-1]


async def begun(count: int = 1) -> None:
    """The calls are out and their replies are in."""
    while sum(member in ("StartUnit", "StopUnit", "RestartUnit") for member, _ in bus().calls) < count:  # noqa: ASYNC110  the event loop itself is what is waited for
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("result", ["done", "canceled", "failed", "timeout", "dependency"])
async def test_a_job_is_awaited_to_its_own_result(systemd: Systemd, result: str) -> None:
    starting = asyncio.create_task(systemd.start(UNIT))
    await begun()
    assert ("StartUnit", (UNIT, "replace")) in bus().calls
    bus().job_removed(2, "done")  # somebody else's
    await asyncio.sleep(0)
    assert not starting.done()
    bus().job_removed(1, result)
    assert await starting == result


async def test_a_result_that_comes_before_the_reply_is_not_waited_for_again(systemd: Systemd) -> None:
    def at_once(member: str, body: tuple[str, ...]) -> Message:
        bus().job_removed(7, "done")
        return reply(JOB.format(7))

    bus().answer = at_once
    async with asyncio.timeout(1):
        assert await systemd.stop(UNIT) == "done"


async def test_all_who_wait_for_a_merged_job_hear_its_result_and_one_who_gives_up_takes_nothing_from_the_others(systemd: Systemd) -> None:
    waiting = [asyncio.create_task(systemd.start(UNIT)) for _ in range(3)]
    await begun(3)
    waiting[0].cancel()
    await asyncio.sleep(0)
    bus().job_removed(1, "done")
    assert await asyncio.gather(*waiting[1:]) == ["done", "done"]
    assert not systemd._waiters


async def test_the_modes_are_replace_and_for_a_pool_that_stops_ignore_dependencies_only(systemd: Systemd) -> None:
    for number, call in enumerate(
        (systemd.start(UNIT), systemd.stop(UNIT), systemd.stop(UNIT, mode=dbus_jobs.NOW), systemd.restart(UNIT)), 1
    ):
        bus().answer = lambda member, body, n=number: reply(JOB.format(n))  # type: ignore[misc]
        task = asyncio.create_task(call)
        await begun(number)
        bus().job_removed(number, "done")
        assert await task == "done"
    asked = [(member, body[1]) for member, body in bus().calls if member.endswith("Unit")]
    assert asked == [("StartUnit", "replace"), ("StopUnit", "replace"), ("StopUnit", "ignore-dependencies"), ("RestartUnit", "replace")]


async def test_a_call_that_pid_1_does_not_answer_ends_at_its_deadline_and_says_which(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dbus_jobs, "CALL_S", 0.05)
    bus().answer = lambda member, body: None
    with pytest.raises(SupervisorError, match=rf"StartUnit {UNIT}: PID 1 did not answer in 0.05 s"):
        await systemd.start(UNIT)


async def test_a_refusal_is_told_in_pid_1_s_words_and_a_unit_that_is_not_loaded_is_stopped(systemd: Systemd) -> None:
    bus().answer = lambda member, body: failure("org.freedesktop.systemd1.NoSuchUnit", "not loaded")
    assert await systemd.stop(UNIT) == "done"
    with pytest.raises(SupervisorError, match=r"StartUnit.*not loaded"):
        await systemd.start(UNIT)
    await systemd.reset_failed(UNIT)


async def test_who_waits_for_a_job_when_the_bus_breaks_is_told_and_the_next_call_connects_again(systemd: Systemd) -> None:
    first = bus()
    starting = asyncio.create_task(systemd.start(UNIT))
    await begun()
    first.disconnect()
    async with asyncio.timeout(1):
        assert await starting == "lost"
    stopping = asyncio.create_task(systemd.stop(UNIT))
    while len(Bus.made) < 2:  # noqa: ASYNC110  as above
        await asyncio.sleep(0)
    await begun()
    assert {member for member, _ in bus().calls} >= {"AddMatch", "Subscribe", "GetAll", "StopUnit"}
    bus().job_removed(1, "done")
    assert await stopping == "done"


async def test_a_unit_s_state_follows_the_signals_and_wakes_who_waits_for_it(systemd: Systemd) -> None:
    state = systemd.state(UNIT)
    assert (state.active, state.down, state.busy, state.main_pid) == ("inactive", True, False, None)
    assert "Nonsense" not in state.properties
    waiting = asyncio.create_task(systemd.until(UNIT, lambda unit: unit.active == "active"))
    await asyncio.sleep(0)
    bus().say(
        "PropertiesChanged", ["x", {"ActiveState": Variant("s", "activating"), "Job": Variant("(uo)", [4, "/j"])}, []], unit_path(UNIT)
    )
    await asyncio.sleep(0)
    assert (state.busy, state.down, waiting.done()) == (True, False, False)
    bus().say(
        "PropertiesChanged",
        ["x", {"ActiveState": Variant("s", "active"), "MainPID": Variant("u", 42), "Job": Variant("(uo)", [0, "/"])}, []],
        unit_path(UNIT),
    )
    assert (await waiting).main_pid == 42
    ended = {"ActiveState": Variant("s", "failed"), "ExecMainCode": Variant("i", 2), "ExecMainStatus": Variant("i", 9)}
    bus().say("PropertiesChanged", ["x", ended, []], unit_path(UNIT))
    assert (state.ending, state.exit_status, state.down) == ("signal 9", None, True)


async def test_a_signal_that_was_lost_is_made_up_for_by_asking(systemd: Systemd) -> None:
    systemd.state(UNIT).properties["ActiveState"] = "active"  # PID 1 says inactive; nobody told us
    async with asyncio.timeout(2):
        assert (await systemd.until(UNIT, lambda unit: unit.down, recheck_s=0.05)).active == "inactive"


def test_a_unit_s_path_is_escaped_as_sd_bus_does() -> None:
    assert unit_path("gpu-worker@c0.service") == "/org/freedesktop/systemd1/unit/gpu_2dworker_40c0_2eservice"
    assert unit_path("0a.service") == "/org/freedesktop/systemd1/unit/_30a_2eservice"

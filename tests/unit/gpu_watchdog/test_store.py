from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from gpu_watchdog.state import CorruptState, Idle, Phase, State, Track, from_json, to_json
from gpu_watchdog.store import Store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FULL = State(
    phase=Phase.DRAINING,
    since=3.5,
    boot_id="b",
    elapsed_s=10.25,
    boot_s=9.0,
    wall=1e9,
    jump_at=2.0,
    tracks=(Track("GPU-1", 3, True, "0000:01:00.0", 0), Track("GPU-2")),
    reboots=(1.0, 2.0),
    last_reboot=2.0,
    intent="intending",
    intent_since=9.5,
    notices=("probe_hung",),
    idles=(Idle("c0", 1.0, 2.0, True, False),),
    kernel_cursor="s=1;i=2",
    kernel_tail="NVRM: GPU\n\x00é",
)
times = st.floats(0, 1e9)
tracks = st.builds(
    Track, st.text(max_size=8), st.integers(0, 9), st.booleans(), st.none() | st.text(max_size=4), st.none() | st.integers(0, 9)
)
states = st.builds(
    State, phase=st.sampled_from(Phase), since=times, elapsed_s=times, wall=times, jump_at=st.none() | times, tracks=st.tuples(tracks)
)


@given(states)
def test_what_is_written_is_read_back(state: State) -> None:
    assert from_json(json.loads(json.dumps(to_json(state)))) == state


def test_a_state_survives_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load() == State()
    store.save(FULL)
    assert store.load() == FULL
    assert os.stat(store.path).st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["watchdog.json"]


@given(st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_the_file_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    store = Store(tmp_path)
    store.save(FULL)
    raw = bytearray(store.path.read_bytes())
    match data.draw(st.sampled_from(("cut", "flip", "empty"))):
        case "cut":
            damaged = bytes(raw[: data.draw(st.integers(0, len(raw) - 2))])
        case "flip":
            raw[data.draw(st.integers(0, len(raw) - 2))] ^= data.draw(st.integers(1, 255))
            damaged = bytes(raw)
        case _:
            damaged = b""
    store.path.write_bytes(damaged)
    with contextlib.suppress(CorruptState):
        assert store.load() == FULL, "a change that JSON does not see, such as another kind of white space"


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"phase": "fine"}, {"extra": 1}, {"elapsed_s": "1"}, {"misses": 1.5}, {"tracks": 1}, {"wall": True}]
)
def test_a_state_of_another_shape_is_refused(change: dict[str, object]) -> None:
    raw = json.loads(json.dumps(to_json(FULL)))
    if "misses" in change:
        raw["tracks"][0].update(change)
    else:
        raw.update(change)
    with pytest.raises(CorruptState):
        from_json(raw)


def _add_reboots(folder: str, number: int) -> None:
    store = Store(Path(folder))
    for _ in range(number):
        with store.locked():
            state = store.load()
            store.save(State(reboots=(*state.reboots, 1.0)))


def test_two_writers_never_lose_each_others_work(tmp_path: Path) -> None:
    workers = [multiprocessing.get_context("fork").Process(target=_add_reboots, args=(str(tmp_path), 20)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert len(Store(tmp_path).load().reboots) == 60

"""The journal: append-only, bounded, whole lines."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path

import pytest
from lease_pool.holds import Holds
from lease_pool.journal import FIELDS, SECONDS, Journal, parse_since


async def opened(folder: Path, most: int = 1 << 20) -> Journal:
    journal = Journal(folder, most)
    journal.open()
    return journal


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


async def test_an_entry_has_every_field_and_all_timings(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    journal.write("lease", seconds={"freeing": 0.1234567}, card="GPU-0", **{"class": "public"})
    await journal.close()
    (entry,) = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert set(entry) == {"time", "event", "seconds", *FIELDS}
    assert list(entry["seconds"]) == list(SECONDS)
    assert entry["seconds"]["freeing"] == 0.123457
    assert entry["seconds"]["loading"] is None
    assert entry["time"].endswith("Z")
    assert entry["class"] == "public"


async def test_it_is_flushed_by_itself_and_survives_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(b'{"time": "2026-01-01T00:00:00Z", "event": "a"}\n{"time": "2026-')
    journal = await opened(tmp_path)
    journal.write("b")
    async with asyncio.timeout(5):
        while b'"b"' not in journal.path.read_bytes():  # noqa: ASYNC110  a file has no event
            await asyncio.sleep(0.02)
    assert [json.loads(line)["event"] for line in journal.kept()] == ["a", "b"]
    await journal.close()


async def test_its_size_is_bounded_and_the_newest_is_kept(tmp_path: Path) -> None:
    journal = await opened(tmp_path, 5000)
    for number in range(200):
        journal.write("e", request=str(number))
        journal.flush()
    kept = [json.loads(line)["request"] for line in journal.kept()]
    await journal.close()
    assert size_of(tmp_path) <= 10_000
    assert kept == [str(n) for n in range(200 - len(kept), 200)]
    assert len(kept) > 10


async def test_since_and_follow(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    journal.write("old")
    follow = journal.follow()
    nxt = asyncio.ensure_future(anext(follow))
    await asyncio.sleep(0)
    journal.write("new")
    assert json.loads(await nxt)["event"] == "new"
    await follow.aclose()
    assert list(journal.kept(parse_since("2999-01-01T00:00:00Z"))) == []
    assert len(list(journal.kept(parse_since("2000-01-01T00:00:00+02:00")))) == 2
    await journal.close()


@pytest.mark.parametrize("text", ["yesterday", "12", "2026-13-01"])
def test_a_wrong_since_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_since(text)


def test_holds_survive_and_a_broken_file_drains(tmp_path: Path) -> None:
    holds = Holds(tmp_path)
    holds.load()
    holds.hold_card("GPU-0", "quarantined", "hot")
    holds.drain_pool("rollout")
    again = Holds(tmp_path)
    again.load()
    assert again.draining
    assert again.drain_reason == "rollout"
    assert again.cards["GPU-0"].reason == "hot"
    again.resume_card("GPU-0")
    again.resume_pool()
    third = Holds(tmp_path)
    third.load()
    assert not third.draining
    assert not third.cards
    (tmp_path / "drain.json").write_text("{")
    broken = Holds(tmp_path)
    broken.load()
    assert broken.draining


async def test_others_have_their_turn_while_a_long_backlog_is_written(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    for number in range(1000):
        journal.write("e", request=str(number))
    written = set()
    async with asyncio.timeout(5):
        while 1000 not in written:
            await asyncio.sleep(0)
            written.add(journal.path.read_bytes().count(b"\n"))
    await journal.close()
    assert len(written - {0, 1000}) > 5


async def test_an_entry_after_a_full_disk_is_not_glued_to_the_torn_one(tmp_path: Path) -> None:
    journal = await opened(tmp_path)
    journal.write("before")
    journal.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_of(tmp_path) + 30, hard))  # the kernel writes 30 bytes and refuses the rest
    try:
        journal.write("torn")
        journal.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.write("after")
    assert [json.loads(line)["event"] for line in journal.kept()] == ["before", "after"]
    assert journal.lost == 1
    await journal.close()

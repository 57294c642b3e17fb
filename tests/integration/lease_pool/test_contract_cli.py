"""The command line, word for word: exit statuses, `run`, and a second instance."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.support.pool_rig import Maker


async def test_run_passes_every_word_on(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    result = await asyncio.to_thread(rig.cli, "run", "--", "/bin/echo", "a", "--", "--cards", "-x")
    assert (result.returncode, result.stdout) == (0, "a -- --cards -x\n")


async def test_what_the_caller_wrote_wrongly_is_exit_2_with_the_value_and_what_is_allowed(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    for words, value in (
        (("events", "--since", "yesterday"), "yesterday"),
        (("drain", "--wait", "-1"), "-1"),
        (("drain", "--wait", "soon"), "soon"),
        (("run", "--cards", "0", "--", "true"), "0"),
        (("run", "--memory-mib", "x", "--", "true"), "x"),
        (("run",), ""),
    ):
        result = await asyncio.to_thread(rig.cli, *words)
        assert (result.returncode, value in result.stderr) == (2, True), (words, result)


async def test_a_second_instance_leaves_no_trace_whatever_it_shares(rigs: Maker) -> None:
    one = rigs(1)
    await one.start()
    for shared in ("listen", "admin_socket", "state_dir"):
        two = rigs(1)
        two.config[shared] = one.config.get(shared, str(one.folder / "run" / "pool.sock"))
        two.write()
        before = sorted(str(p) for p in two.folder.rglob("*"))
        result = await asyncio.to_thread(two.cli, "serve")
        assert result.returncode == 1, result
        assert sorted(str(p) for p in two.folder.rglob("*")) == before, shared
        assert len(result.stderr.splitlines()) == 1, result.stderr
    assert (await one.ask())[0] == 200


async def test_a_reboot_that_is_only_intended_leaves_the_pool_ready(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    await rig.admin("POST", "/intent", {"reboot": "intending", "until": "2100-01-01T00:00:00Z"})
    assert await rig.get("/ready") == (200, {"ready": True, "draining": False, "rebooting": "intending"})


async def test_an_intent_beyond_all_time_and_a_reason_in_another_encoding_cost_nothing(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    for until in (1e300, -1e300, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", True, None, "soon"):
        with pytest.raises(AssertionError, match=r"400: .*until"):
            await rig.admin("POST", "/intent", {"reboot": "intending", "until": until})
    result = await asyncio.to_thread(rig.cli, "drain", "--reason", os.fsdecode(b"caf\xe9"))
    assert result.returncode == 0, result.stderr
    assert (await rig.events())[-1]["reason"] == "caf\udce9"
    assert (await asyncio.to_thread(rig.cli, "resume")).returncode == 0
    assert (await rig.ask())[0] == 200
    assert [e["event"] for e in await rig.events()][-1] in ("request", "state", "lease")
    await rig.until_state("mining")

"""What an operator can see: metrics of every card at every scrape, phases, outcomes, the journal's timings, intents that expire."""

from __future__ import annotations

import asyncio
import re
import time

from tests.support.pool_rig import Maker, PoolRig, model

STATES = {"mining", "freeing", "loading", "serving", "unloading", "returning", "drained", "quarantined", "missing"}
PHASES = {"queued", "freeing", "loading", "first_byte", "serving", "unloading", "returning", "idle_workload_off"}


async def samples(rig: PoolRig, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """One metric at one scrape: its labels and values."""
    text = (await rig.get("/metrics"))[1]
    found = re.findall(rf"^{name}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE)
    return {frozenset(re.findall(r'(\w+)="([^"]*)"', labels)): float(value) for labels, value in found}


async def states(rig: PoolRig) -> dict[str, str]:
    """UUID -> state; each card has exactly one, and a sample for every other."""
    by_uuid: dict[str, dict[str, float]] = {}
    for labels, value in (await samples(rig, "gpu_fleet_card_state")).items():
        named = dict(labels)
        by_uuid.setdefault(named["uuid"], {})[named["state"]] = value
    for each in by_uuid.values():
        assert set(each) == STATES
        assert sorted(each.values()) == [0.0] * (len(STATES) - 1) + [1.0]
    return {uuid: next(state for state, value in each.items() if value) for uuid, each in by_uuid.items()}


async def test_every_card_has_one_state_at_every_scrape_whatever_it_is_in(rigs: Maker) -> None:
    rig = rigs(4)
    await rig.start()
    await rig.admin("POST", "/drain", {"card": "GPU-1"})
    await rig.admin("POST", "/quarantine/GPU-2", {"reason": "x"})
    await rig.until_state("drained", "c1")
    await rig.until_state("quarantined", "c2")
    running = asyncio.create_task(rig.ask({"delay": 1.5}))
    await rig.until_state("serving", "c0")
    assert await states(rig) == {"GPU-0": "serving", "GPU-1": "drained", "GPU-2": "quarantined", "GPU-3": "mining"}
    assert await samples(rig, "gpu_fleet_leases_active") == {frozenset({("alias", "m")}): 1.0}
    off = {dict(labels)["slot"]: value for labels, value in (await samples(rig, "gpu_fleet_idle_workload_off_seconds_total")).items()}
    assert off["c3"] == 0
    assert all(off[slot] > 0 for slot in ("c0", "c1", "c2"))
    assert (await running)[0] == 200
    await rig.until_state("mining", "c0")
    first, second = [await samples(rig, "gpu_fleet_idle_workload_off_seconds_total") for _ in range(2)]
    grown = {dict(labels)["slot"] for labels in first if second[labels] > first[labels]}
    assert grown == {"c1", "c2"}  # a card that mines again counts no further
    assert set((await states(rig)).values()) == {"mining", "drained", "quarantined"}
    assert await samples(rig, "gpu_fleet_leases_active") == {}


async def test_each_phase_has_a_histogram_and_each_ended_lease_its_alias_and_outcome(rigs: Maker) -> None:
    rig = rigs(1, {"m": model(aliases=["t4-m"]), "bad": model("--mode", "die-start"), "dies": model("--mode", "die-request")})
    await rig.start()
    async with rig.post({"model": "t4-m", "stream": True}) as response:
        await response.read()
    await rig.until_state("mining")
    counts = {dict(labels)["phase"]: value for labels, value in (await samples(rig, "gpu_fleet_phase_seconds_count")).items()}
    assert counts == dict.fromkeys(PHASES, 1.0)
    sums = {dict(labels)["phase"]: value for labels, value in (await samples(rig, "gpu_fleet_phase_seconds_sum")).items()}
    (lease,) = await rig.events("lease")
    (request,) = await rig.events("request")
    for phase in PHASES:
        expected = (request if phase in ("queued", "first_byte") else lease)["seconds"][phase]
        assert abs(sums[phase] - expected) < 0.001, phase
    for name in ("bad", "dies"):
        assert (await rig.ask({"model": name}))[0] == 502
        await rig.until_state("mining")
    running = asyncio.create_task(rig.ask({"model": "m", "delay": 60}))
    await rig.until_state("serving")
    await rig.admin("POST", "/release/GPU-0")
    await running
    await rig.until_state("mining")
    ended = {(dict(k)["alias"], dict(k)["outcome"]): v for k, v in (await samples(rig, "gpu_fleet_leases_total")).items()}
    assert ended == {("t4-m", "ok"): 1, ("bad", "failed_to_start"): 1, ("dies", "worker_failed"): 1, ("m", "released"): 1}
    asked = {dict(k)["alias"] for k in await samples(rig, "gpu_fleet_requests_total")}
    assert asked == {"t4-m", "bad", "dies", "m"}


async def test_a_request_s_entry_says_whose_it_was_and_what_each_phase_took(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--load", "0.6", aliases=["t4-m"])})
    await rig.start()
    notes = {"x_request_id": "req-7", "x_gpu_fleet_principal": "alice", "x_gpu_fleet_class": "internal"}
    async with rig.post({"model": "t4-m", "stream": True, "chunks": 3, "gap": 0.1}, **notes) as response:
        await response.read()
        lease = response.headers["x-gpu-fleet-lease"]
    await rig.until_state("mining")
    (entry,) = await rig.events("request")
    wanted = {
        "card": "GPU-0",
        "slot": "c0",
        "lease": lease,
        "alias": "t4-m",
        "model": "m",
        "request": "req-7",
        "principal": "alice",
        "class": "internal",
    }
    assert {key: entry[key] for key in wanted} == wanted
    assert entry["outcome"] == "ok"
    seconds = entry["seconds"]
    assert 0.5 < seconds["loading"] < 5
    assert 0.25 < seconds["serving"] < 5
    assert 0 < seconds["first_byte"] < seconds["serving"]
    assert all(seconds[phase] is not None for phase in ("queued", "freeing"))


async def test_an_intent_to_reboot_ends_by_itself(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    await rig.admin("POST", "/intent", {"reboot": "rebooting", "until": time.time() + 1})
    assert (await rig.get("/ready"))[1]["rebooting"] == "rebooting"
    assert (await rig.status())["rebooting"] == "rebooting"
    await asyncio.sleep(1.1)
    assert (await rig.get("/ready"))[1]["rebooting"] is None


async def test_status_and_events_can_be_read_by_people(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 1.5}))
    await rig.until_state("serving")
    shown = (await asyncio.to_thread(rig.cli, "status")).stdout
    assert re.search(r"^c0 +serving +10000 MiB +GPU-0 +m \(1 requests, since 20\S+Z\)$", shown, re.MULTILINE), shown
    assert (await running)[0] == 200
    await rig.until_state("mining")
    lines = (await asyncio.to_thread(rig.cli, "events")).stdout.splitlines()
    assert any(re.match(r"20\S+Z  lease  c0  GPU-0  m  ok  freeing=\d", line) for line in lines), lines
    lease = (await rig.admin("GET", "/leases"))["leases"]
    assert lease == []

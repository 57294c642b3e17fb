"""What an operator does: drain, resume, quarantine, release, reload, stop, borrow, and the exit statuses of it all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import time

import aiohttp
import yaml

from tests.support.pool_rig import PYTHON, ROOT, Maker, PoolRig, alive, model


def borrow(rig: PoolRig, *command: str, options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    argv = [PYTHON, "-m", "lease_pool", "run", "--config", str(rig.path), *options, "--", *command]
    return subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool")}, stdout=subprocess.PIPE)


async def test_a_pool_drain_refuses_at_once_lets_running_requests_finish_and_survives_a_restart(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 1.5}))
    await rig.until_state("serving")
    queued = asyncio.create_task(rig.ask())
    await asyncio.sleep(0.1)
    await rig.admin("POST", "/drain", {"reason": "rollout"})
    began = time.monotonic()
    assert (await queued)[0] == 503
    async with rig.post() as response:
        assert response.status == 503
        assert "Retry-After" in response.headers
    assert time.monotonic() - began < 1
    assert (await running)[0] == 200
    await rig.until_state("mining")  # cards go on mining
    assert (await rig.get("/ready")) == (503, {"ready": False, "draining": True, "rebooting": None})
    rig.kill(signal.SIGTERM)
    assert await rig.ended() == 0
    await rig.start()
    status = await rig.status()
    assert status["draining"] is True
    assert status["drain_reason"] == "rollout"
    assert rig.cli("resume", "--wait", "5").returncode == 0
    assert (await rig.ask())[0] == 200


async def test_a_card_drain_waits_for_its_lease_then_keeps_the_idle_workload_down_over_a_restart(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 2.0}))
    await rig.until_state("serving")
    result = rig.cli("drain", "--card", "GPU-0", "--wait", "0.3", "--reason", "fan")
    assert result.returncode == 1
    assert "still serving" in result.stderr
    assert rig.cli("drain", "--card", "GPU-0", "--wait", "10", "--reason", "fan").returncode == 0
    assert (await running)[0] == 200
    card = await rig.card()
    assert (card["state"], card["reason"], rig.idle_pid()) == ("drained", "fan", None)
    assert (await rig.ask())[0] == 503
    rig.kill(signal.SIGTERM)
    await rig.ended()
    assert rig.idle_pid() is None
    await rig.start(settled=False)
    assert (await rig.until_state("drained"))["reason"] == "fan"
    assert rig.idle_pid() is None
    assert rig.cli("resume", "--card", "GPU-0", "--wait", "10").returncode == 0
    assert rig.idle_pid()


async def test_quarantine_release_and_their_errors(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 60}))
    await rig.until_state("serving")
    assert rig.cli("release", "GPU-0").returncode == 0
    status, answer = await running
    assert status == 502, answer
    await rig.until_state("mining")
    result = rig.cli("release", "GPU-0")
    assert result.returncode == 1
    assert "no lease" in result.stderr
    assert rig.cli("quarantine", "GPU-0", "--reason", "artefacts").returncode == 0
    assert (await rig.until_state("quarantined"))["reason"] == "artefacts"
    result = rig.cli("drain", "--card", "GPU-9")
    assert result.returncode == 1
    assert "GPU-9" in result.stderr
    assert "GPU-0" in result.stderr


async def test_sigterm_lets_a_stream_finish_and_brings_the_idle_workload_back_before_exit(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    async with rig.post({"stream": True, "chunks": 10, "gap": 0.15}) as response:
        await response.content.readany()
        queued = asyncio.create_task(rig.ask())
        await asyncio.sleep(0.1)
        rig.kill(signal.SIGTERM)
        assert (await queued)[0] == 503
        rest = await response.text()
        assert "[DONE]" in rest
        assert '"n": 9' in rest
    assert await rig.ended() == 0
    assert rig.idle_pid()
    assert not rig.workers()


async def test_drain_s_bounds_a_stop_and_a_second_signal_forces_it(rigs: Maker) -> None:
    rig = rigs(1, bounds={"drain_s": 0.7})
    for forced in (False, True):
        if forced:
            rig.config["bounds"]["drain_s"] = 60
            rig.write()
        await rig.start()
        running = asyncio.create_task(rig.ask({"delay": 60}))
        await rig.until_state("serving")
        began = time.monotonic()
        rig.kill(signal.SIGTERM)
        if forced:
            await rig.until(lambda: _refuses(rig), "new requests are refused")
            rig.kill(signal.SIGTERM)
        assert await rig.ended() == 0
        assert time.monotonic() - began < 6
        status, _ = await running
        assert status in (502, 503)
        assert rig.idle_pid()
        assert not rig.workers()


async def _refuses(rig: PoolRig) -> bool:
    try:
        return (await rig.ask())[0] == 503
    except aiohttp.ClientError:
        return False


async def test_a_reload_takes_new_models_and_tokens_keeps_running_leases_and_refuses_a_bad_file(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    running = asyncio.create_task(rig.ask({"delay": 2.0}))
    await rig.until_state("serving")
    rig.config["models"]["n"] = model()
    rig.write()
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: _serves(rig, "n"), "the new model is known")
    rig.path.write_text(yaml.safe_dump(rig.config | {"unknown_key": 1}))
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: "unknown_key" in rig.log.read_text(), "the fault is logged")
    rig.path.write_text(yaml.safe_dump(rig.config | {"state_dir": "/elsewhere"}))
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: "needs a restart" in rig.log.read_text(), "what cannot change is said")
    assert (await rig.status())["models"][1]["name"] == "n"
    assert (await running)[0] == 200
    rig.write()
    (rig.folder / "token").write_text("another\n")
    rig.kill(signal.SIGHUP)
    await rig.until(lambda: _unauthorized(rig), "the old token is no longer valid")


async def test_two_reloads_in_a_hundred_milliseconds_leave_one_worker_a_card(rigs: Maker) -> None:
    rig = rigs(1, window_s=30)
    await rig.start()
    assert (await rig.ask())[0] == 200
    for extra in ("x", "y"):
        rig.config["models"]["m"]["env"] = {"V": extra}
        rig.write()
        rig.kill(signal.SIGHUP)
        await asyncio.sleep(0.05)
    status, answer = await rig.ask()
    assert status == 200
    assert answer["env"]["V"] == "y"
    assert rig.workers() == [answer["pid"]]


async def _serves(rig: PoolRig, name: str) -> bool:
    return any(m["name"] == name for m in (await rig.status())["models"])


async def _unauthorized(rig: PoolRig) -> bool:
    return (await rig.ask())[0] == 401


async def test_the_admin_socket_is_not_for_everyone_and_says_what_was_wrong(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    path = rig.folder / "run" / "pool.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    connector = aiohttp.UnixConnector(path=str(path))
    async with aiohttp.ClientSession(connector=connector) as session:
        cases = [
            ("/drain", {"crad": "x"}), ("/drain", {"card": 3}), ("/intent", {"reboot": "maybe"}), ("/borrow", {"cards": 0}), ("/borrow", {"cards": 9})
        ]  # fmt: skip
        for where, body in cases:
            async with session.post(f"http://pool{where}", json=body) as response:
                assert response.status == 400, where
                assert (await response.json())["error"]
        async with session.get("http://pool/events?since=yesterday") as response:
            assert response.status == 400
            assert "RFC 3339" in (await response.json())["error"]
        async with session.get("http://pool/nothing") as response:
            assert response.status == 404
    until = time.time() + 60
    await rig.admin("POST", "/intent", {"reboot": "intending", "until": until})
    assert (await rig.get("/ready"))[1]["rebooting"] == "intending"
    await rig.admin("POST", "/intent", {"reboot": None, "until": None})
    assert (await rig.get("/ready"))[1] == {"ready": True, "draining": False, "rebooting": None}


async def test_events_can_be_followed(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    follower = await asyncio.create_subprocess_exec(
        PYTHON, "-m", "lease_pool", "events", "--config", str(rig.path), "--json", "--follow",
        env=os.environ | {"PYTHONPATH": str(ROOT / "src" / "lease_pool")}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert follower.stdout is not None
    assert (await rig.ask())[0] == 200
    async with asyncio.timeout(15):
        async for line in follower.stdout:
            event = json.loads(line)
            if event["event"] == "request":
                break
    assert event["outcome"] == "ok"
    assert event["model"] == "m"
    follower.terminate()
    await follower.wait()


async def test_run_gets_a_card_passes_its_status_on_and_gives_the_card_back(rigs: Maker) -> None:
    rig = rigs(2)
    await rig.start()
    script = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; cat; exit 3"
    result = rig.cli("run", "--", "/bin/sh", "-c", script, input="typed")
    assert (result.returncode, result.stdout) == (3, "GPU-0 PCI_BUS_ID\ntyped")
    result = rig.cli("run", "--cards", "2", "--", "/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES; kill -9 $$")
    assert (result.returncode, result.stdout) == (137, "GPU-0,GPU-1\n")
    assert rig.cli("run", "--", "/no/such/program").returncode == 127
    assert rig.cli("run", "--memory-mib", "99999", "--", "/bin/true").returncode == 1
    await rig.until_all("mining")


async def test_killing_run_kills_the_command_with_all_its_children_and_the_card_returns(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    for number in (signal.SIGKILL, signal.SIGTERM):
        script = "setsid sleep 600 & echo $! $$; exec sleep 600"
        run = borrow(rig, "/bin/sh", "-c", script)
        assert run.stdout is not None
        pids = [int(word) for word in (await asyncio.to_thread(run.stdout.readline)).split()]
        card = await rig.until_state("serving")
        assert card["lease"]["alias"] is None
        assert card["lease"]["model"] is None
        assert card["lease"]["id"]
        assert rig.idle_pid() is None
        run.send_signal(number)
        code = await asyncio.to_thread(run.wait, 10)
        if number == signal.SIGTERM:
            assert code == 128 + signal.SIGTERM
        run.stdout.close()
        await rig.until(lambda found=pids: not any(map(alive, found)), "the command's tree is gone", 10)
        await rig.until_state("mining")
        assert rig.idle_pid()


async def test_a_loan_ends_when_its_card_is_released_and_outlives_a_killed_pool(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    run = borrow(rig, "/bin/sh", "-c", "echo $$; exec sleep 600")
    assert run.stdout is not None
    await asyncio.to_thread(run.stdout.readline)
    await rig.until_state("serving")
    assert rig.cli("release", "GPU-0").returncode == 0
    assert await asyncio.to_thread(run.wait, 10) == 1
    run.stdout.close()
    await rig.until_state("mining")

    run = borrow(rig, "/bin/sh", "-c", "echo $$; exec sleep 600")
    assert run.stdout is not None
    pid = int(await asyncio.to_thread(run.stdout.readline))
    await rig.until_state("serving")
    rig.kill()
    await rig.ended()
    await rig.start(settled=False)
    card = await rig.until_state("serving")
    assert card["lease"]["id"] is None
    assert alive(pid)
    assert rig.idle_pid() is None
    os.kill(pid, signal.SIGTERM)
    assert await asyncio.to_thread(run.wait, 10) == 128 + signal.SIGTERM
    run.stdout.close()
    await rig.until_state("mining")
    assert rig.idle_pid()


async def test_a_booting_pool_starts_no_worker(rigs: Maker) -> None:
    record = "started"
    rig = rigs(1, {"m": model()})
    rig.config["models"]["m"]["argv"] += ["--record", str(rig.folder / record)]
    rig.write()
    await rig.start()
    rig.kill(signal.SIGTERM)
    await rig.ended()
    await rig.start()
    assert not (rig.folder / record).exists()


async def test_a_client_says_when_no_pool_answers_and_when_it_is_used_wrongly(rigs: Maker) -> None:
    rig = rigs(1)
    result = rig.cli("status")
    assert result.returncode == 1
    assert "does not answer" in result.stderr
    assert rig.cli("status", "--nonsense").returncode == 2
    assert rig.cli("no-such-verb").returncode == 2
    rig.path.write_text("cards: []\nmodels: {}\n")
    result = rig.cli("status")
    assert result.returncode == 2
    assert f"{rig.path}: cards: []: must have at least one entry" in result.stderr
    result = rig.cli("serve")
    assert result.returncode == 2

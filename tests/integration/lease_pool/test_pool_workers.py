"""Workers that misbehave: whatever they do, the client is told in time, nobody is left on the card, and the next request works."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.pool_rig import PYTHON, WORKERS, Maker, model


async def test_a_worker_that_ignores_sigterm_is_killed_at_its_bound_and_the_next_request_works(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "ignore-term")}, bounds={"stop_s": 0.5})
    await rig.start()
    for _ in range(2):
        assert (await rig.ask())[0] == 200
        began = time.monotonic()
        await rig.until_state("mining")
        assert time.monotonic() - began < 3
        assert not rig.workers()


@pytest.mark.parametrize("mode", ["grandchild", "keep-pipe", "close-fds"])
async def test_children_in_their_own_session_are_ended_before_the_idle_workload_returns(rigs: Maker, mode: str) -> None:
    rig = rigs(1, {"m": model("--mode", mode)}, bounds={"stop_s": 0.5})
    await rig.start()
    assert (await rig.ask())[0] == 200
    await rig.until(rig.idle_pid, "the idle workload is back")
    assert not rig.workers()
    await rig.until_state("mining")


async def test_a_chatty_worker_neither_blocks_nor_fills_the_disk(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--mode", "chatty")})
    await rig.start()
    for _ in range(2):
        assert (await rig.ask())[0] == 200
    await rig.until_state("mining")
    log = rig.folder / "run" / "worker-c0.log"
    assert 0 < log.stat().st_size <= 1 << 20
    assert log.stat().st_mode & 0o077 == 0


async def test_a_worker_that_dies_at_once_is_an_immediate_502_and_backs_off_from_the_second_failure(rigs: Maker) -> None:
    rig = rigs(1, {"bad": model("--mode", "die-start"), "good": model()})
    await rig.start()
    for _ in range(2):
        began = time.monotonic()
        status, answer = await rig.ask({"model": "bad"})
        assert status == 502
        assert "exit 3" in answer["error"]["message"]
        assert time.monotonic() - began < 4
        await rig.until_state("mining")
    assert (await rig.get("/capacity"))[1]["models"]["bad"]["failing"] is True
    assert (await rig.get("/capacity"))[1]["models"]["bad"]["free_cards"] == 0
    began = time.monotonic()
    status, answer = await rig.ask({"model": "bad"})
    assert status == 502
    assert "backs off" in answer["error"]["message"]
    assert time.monotonic() - began < 0.5
    assert (await rig.ask({"model": "good"}))[0] == 200  # the card is not to blame
    assert len([lease for lease in await rig.events("lease") if lease["outcome"] == "failed_to_start"]) == 2


async def test_two_models_that_fail_here_and_run_elsewhere_quarantine_the_card(rigs: Maker) -> None:
    fails_on_c0 = [PYTHON, "-I", "-S", "-c", "import os,sys; os.environ['S']=='c0' and sys.exit(3); os.execv(sys.argv[1], sys.argv[1:])"]
    argv = [*fails_on_c0, PYTHON, "-I", "-S", str(WORKERS / "worker.py"), "--socket", "{socket}"]
    models = {name: model(env={"S": "{slot}"}) | {"argv": argv} for name in ("a", "b")}
    rig = rigs(2, models)
    await rig.start()
    await rig.admin("POST", "/drain", {"card": "GPU-0"})
    for name in ("a", "b"):
        assert (await rig.ask({"model": name}))[0] == 200
        await rig.until_state("mining", "c1")
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.until_all("mining")
    for name in ("a", "b"):
        assert (await rig.ask({"model": name}))[0] == 502  # c0 is first among equals
        if name == "a":
            await rig.until_state("mining", "c0")
    card = await rig.until_state("quarantined", "c0")
    assert "a and b fail to start here" in card["reason"]
    await rig.until(lambda: rig.idle_pid("c0") is None, "its idle workload is down")
    assert (await rig.ask({"model": "a"}))[0] == 200
    await rig.admin("POST", "/resume", {"card": "GPU-0"})
    await rig.until_state("mining", "c0")


async def test_a_worker_that_is_never_ready_is_504_at_ready_s_and_the_next_request_works(rigs: Maker) -> None:
    rig = rigs(1, {"bad": model("--mode", "never-ready"), "good": model()}, bounds={"ready_s": 1})
    await rig.start()
    began = time.monotonic()
    status, answer = await rig.ask({"model": "bad"})
    assert status == 504
    assert "ready_s" in answer["error"]["message"]
    assert time.monotonic() - began < 4
    assert (await rig.ask({"model": "good"}))[0] == 200


async def test_a_model_list_that_answers_early_is_not_readiness(rigs: Maker) -> None:
    rig = rigs(1, {"m": model("--load", "1")})
    await rig.start()
    async with rig.post() as response:
        assert response.status == 200
        assert int(response.headers["x-gpu-fleet-load-ms"]) >= 900


@pytest.mark.parametrize(("mode", "code"), [("die-loading", 502), ("die-ready", 502), ("die-request", 502), ("error-500", 502)])
async def test_a_worker_that_fails_in_a_phase_is_502_and_a_fresh_start_next_time(rigs: Maker, mode: str, code: int) -> None:
    rig = rigs(1, {"bad": model("--mode", mode, "--load", "0.4" if mode == "die-loading" else "0"), "good": model()})
    await rig.start()
    status, answer = await rig.ask({"model": "bad", "delay": 0.1})
    assert status == code, answer
    await rig.until_state("mining")
    assert not rig.workers()
    assert (await rig.ask({"model": "good"}))[0] == 200


async def test_a_server_with_a_port_of_its_own_works_too(rigs: Maker) -> None:
    argv = [PYTHON, "-I", "-S", str(WORKERS / "worker.py"), "--port", "{port}", "--key-file", "{api_key_file}"]
    rig = rigs(1, {"m": model() | {"argv": argv}})
    await rig.start()
    assert (await rig.ask())[0] == 200


async def test_embeddings_of_another_size_are_refused_at_ready(rigs: Maker) -> None:
    models = {
        "right": model("--dimensions", "8", dimensions=8, endpoints=["embeddings"]),
        "wrong": model("--dimensions", "9", dimensions=8, endpoints=["embeddings"]),
    }
    rig = rigs(1, models)
    await rig.start()
    async with rig.post({"model": "right", "input": "x"}, path="/v1/embeddings") as response:
        assert response.status == 200
    async with rig.post({"model": "wrong", "input": "x"}, path="/v1/embeddings") as response:
        assert response.status == 502
        assert "9 dimensions, 8 are configured" in (await response.json())["error"]["message"]


async def test_the_worker_s_key_is_private_and_gone_with_it(rigs: Maker) -> None:
    rig = rigs(1)
    await rig.start()
    async with rig.post({"stream": True, "gap": 0.2}) as response:
        await response.content.readany()
        keys = list((rig.folder / "run" / "launch").glob("*.key"))
        assert len(keys) == 1
        assert keys[0].stat().st_mode & 0o077 == 0
        secret = keys[0].read_text()
        for pid in rig.workers():
            for name in ("cmdline", "environ"):
                assert secret not in text_of(Path(f"/proc/{pid}/{name}"))
    await rig.until_state("mining")
    assert not list((rig.folder / "run" / "launch").glob("*.key"))
    assert secret not in rig.log.read_text()
    assert secret not in (rig.folder / "state" / "journal.jsonl").read_text()


async def test_after_a_hundred_leases_descriptors_threads_zombies_and_files_are_flat(rigs: Maker) -> None:
    rig = rigs(2, bounds={"queue_s": 60}, idle_workload={"driver": "none"})
    await rig.start()

    async def some(count: int) -> None:
        for _ in range(count):
            assert (await rig.ask())[0] == 200

    def figures() -> tuple[int, int, int, int]:
        import os

        assert rig.process is not None
        proc = Path(f"/proc/{rig.process.pid}")
        children = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == rig.process.pid]
        files = sum(len(names) for _, _, names in os.walk(rig.folder))
        return len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir())), len(children), files

    await asyncio_gather(some(5), some(5))
    await rig.until_all("mining")
    before = figures()
    await asyncio_gather(some(50), some(50))
    await rig.until_all("mining")
    after = await rig.until(lambda: figures() if figures() <= before else None, f"figures are flat: {before} -> {figures()}", 6)
    assert after <= before


def text_of(path: Path) -> str:
    return path.read_text()


async def asyncio_gather(*tasks: object) -> None:
    import asyncio

    await asyncio.gather(*tasks)  # type: ignore[call-overload]


def _parent(proc: object) -> int:
    try:
        with open(f"{proc}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0

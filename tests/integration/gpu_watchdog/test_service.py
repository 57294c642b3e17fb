from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.gpu_watchdog.rig import UUIDS, FakePool, Receiver, Rig

FIRST, SECOND = UUIDS


def test_a_host_with_all_its_cards_is_healthy_and_says_so(rig: Rig, pool: FakePool) -> None:
    rig.start()
    rig.rounds(2)
    facts = rig.status()
    assert facts["phase"] == "healthy"
    assert [card["seen"] for card in facts["cards"]] == ["ok", "ok"]
    assert facts["holds"] == []
    assert "healthy" in rig.call("status").stdout
    assert rig.stop() == 0


def test_a_pulled_card_gives_exactly_one_reboot_and_coming_back_makes_it_healthy(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.phase_is("rebooting")
    rig.until(lambda: rig.reboots() == 1)
    assert "rebooting" in receiver.kinds(), "the alert leaves before the reboot"
    assert pool.cards[FIRST]["state"] == "quarantined"
    assert pool.draining
    assert pool.drain_reason == "gpu-watchdog"
    assert ("/intent", "rebooting") in [(path, (body or {}).get("reboot")) for path, body in pool.told if path == "/intent"]
    rig.kill()
    rig.cards.restore(FIRST)
    rig.boot("boot-2")
    rig.start()
    rig.phase_is("healthy")
    rig.until(lambda: not pool.draining and pool.cards[FIRST]["state"] == "mining")
    rig.until(lambda: receiver.kinds()[-1] == "recovered")
    rig.rounds(5)
    assert rig.reboots() == 1
    order = [path for path in pool.paths() if path != "/intent"]
    assert order.index(f"/quarantine/{FIRST}") < order.index("/drain")


def test_a_card_that_stays_away_locks_the_host_out_after_one_reboot(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.until(lambda: rig.reboots() == 1)
    rig.kill()
    rig.boot("boot-2")
    rig.start()
    rig.phase_is("locked_out")
    rig.until(lambda: receiver.kinds()[-1] == "locked_out")
    rig.rounds(10)
    rig.kill()
    rig.start()
    rig.rounds(3)
    assert rig.reboots() == 1
    assert not pool.draining, "the other card serves on"
    facts = rig.status()
    assert facts["holds"][0]["code"] == "locked_out"
    assert "c0 vanished" in facts["locked_reason"]
    acked = rig.call("ack", "--reason", "reseated the riser", "--json")
    assert json.loads(acked.stdout)["changed"] is True
    rig.phase_is("confirmed")
    rig.rounds(2)
    assert {hold["code"] for hold in rig.status()["holds"]} == {"cooldown"}
    assert "reseated the riser" in (rig.state_dir / "watchdog-acks.jsonl").read_text()
    assert json.loads(rig.call("ack", "--reason", "again", "--json").stdout)["changed"] is False


def test_a_running_lease_is_waited_for_and_one_past_its_bound_prevents_the_reboot(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    rig.start()
    rig.rounds(2)
    pool.lease(SECOND, True)
    rig.cards.pull(FIRST)
    rig.phase_is("draining")
    rig.until(lambda: "reboot_refused" in receiver.kinds())
    rig.until(lambda: not pool.draining)
    assert rig.state()["phase"] == "confirmed"
    assert rig.reboots() == 0
    assert "lease_past_bound" in rig.log()


def test_a_hung_driver_call_reboots_nothing_and_starts_no_second_probe(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(probe_s=0.4)
    pool = FakePool(rig.folder / "pool.sock")
    rig.start()
    rig.rounds(2)
    rig.cards.hang(FIRST)
    rig.until(lambda: rig.last()["seen"]["probe"] == "hung")
    begun = time.monotonic()
    rig.rounds(4)
    assert time.monotonic() - begun < 10
    assert rig.reboots() == 0
    assert rig.state()["phase"] in {"healthy", "suspect"}
    probes = subprocess.run(["pgrep", "-c", "-f", f"nvml_probe {FIRST}"], capture_output=True, text=True, check=False).stdout
    assert int(probes) <= 1
    pool.close()


@pytest.mark.parametrize(
    ("code", "name"),
    [("18", "driver_mismatch"), ("9", "driver_not_loaded"), ("4", "no_permission"), ("999", "error")],
)
def test_a_driver_that_cannot_be_asked_is_told_by_its_name_and_reboots_nothing(
    rig: Rig, pool: FakePool, receiver: Receiver, code: str, name: str
) -> None:
    rig.cards.set_init(code)
    rig.start()
    rig.rounds(6)
    assert rig.last()["seen"]["probe"] == name
    assert rig.reboots() == 0
    alert = "planned_reboot_needed" if name == "driver_mismatch" else f"probe_{name}"
    rig.until(lambda: receiver.kinds() == [alert])
    rig.rounds(2)
    assert receiver.kinds() == [alert], "told once, not every interval"


def test_a_library_that_is_not_there_is_not_a_missing_card(rig: Rig, pool: FakePool) -> None:
    rig.environment["LD_LIBRARY_PATH"] = "/nonexistent"
    rig.start()
    rig.rounds(5)
    assert rig.last()["seen"]["probe"] == "nvml_not_loadable"
    assert rig.reboots() == 0


def test_a_corrupt_state_file_locks_the_host_out_and_an_ack_leads_out(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    rig.start()
    rig.rounds(2)
    rig.kill()
    path = rig.state_dir / "watchdog.json"
    path.write_bytes(path.read_bytes()[:-20])
    rig.cards.pull(FIRST)
    rig.start()
    rig.rounds(6)
    assert rig.state()["phase"] == "locked_out"
    assert rig.reboots() == 0
    rig.until(lambda: "locked_out" in receiver.kinds())
    assert (rig.state_dir / "watchdog.json.corrupt").exists()
    assert rig.call("ack", "--reason", "disk was full").returncode == 0
    rig.phase_is("confirmed")


def test_while_the_pool_is_down_a_stray_worker_is_stopped_its_lease_removed_and_the_miner_started(rig: Rig) -> None:
    rig.units(
        {
            "lease-pool.service": "failed",
            "gpu-worker@c0.service": "active",
            "gpu-miner@c0.service": "inactive",
            "gpu-worker@c1.service": "none",
            "gpu-miner@c1.service": "inactive",
        }
    )
    (rig.folder / "launch/c0.json").write_text("{}")
    (rig.folder / "launch/c0.key").write_text("secret")
    (rig.folder / "hold/c1").touch()
    rig.start()
    rig.until(lambda: rig.unit_state("gpu-miner@c0.service") == "active")
    rig.rounds(3)
    assert rig.orders() == ["stop gpu-worker@c0.service", "start gpu-miner@c0.service"], "the held miner stays down"
    assert list((rig.folder / "launch").iterdir()) == []


def test_while_the_pool_runs_the_watchdog_reconciles_nothing(rig: Rig, pool: FakePool) -> None:
    rig.units({"lease-pool.service": "active", "gpu-worker@c0.service": "active", "gpu-miner@c1.service": "inactive"})
    (rig.folder / "launch/c0.json").write_text("{}")
    rig.start()
    rig.rounds(5)
    assert rig.orders() == []
    assert (rig.folder / "launch/c0.json").exists()


def test_a_miner_that_does_not_hash_is_restarted_once_and_then_reported(rig: Rig, receiver: Receiver) -> None:
    rig.units({"lease-pool.service": "inactive", "gpu-miner@c0.service": "active", "gpu-miner@c1.service": "active"})
    rig.options["idle_alive"] = ["/bin/sh", "-c", "test {slot} = c1"]
    rig.start()
    rig.until(lambda: "miner_not_hashing" in receiver.kinds())
    rig.rounds(8)
    assert rig.orders() == ["restart gpu-miner@c0.service"]
    assert receiver.kinds().count("miner_not_hashing") == 1


def test_maintenance_holds_everything_back_and_ends_by_itself(rig: Rig, pool: FakePool) -> None:
    assert rig.call("maintenance", "--for", "2s", "--reason", "rollout").returncode == 0
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.phase_is("confirmed")
    assert "maintenance" in {hold["code"] for hold in rig.status()["holds"]}
    rig.until(lambda: rig.reboots() == 1)
    assert rig.call("maintenance", "--for", "8d", "--reason", "x").returncode == 2
    assert rig.call("maintenance", "--for", "1h").returncode == 2


def test_a_package_installation_holds_the_reboot_until_it_is_over(rig: Rig, pool: FakePool) -> None:
    installing = rig.folder / "root/proc/77"
    installing.mkdir()
    (installing / "comm").write_text("dpkg\n")
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.phase_is("confirmed")
    rig.rounds(3)
    assert [hold["code"] for hold in rig.status()["holds"]] == ["packages"]
    (installing / "comm").unlink()
    rig.until(lambda: rig.reboots() == 1)


def test_maintenance_can_be_cleared(rig: Rig) -> None:
    rig.call("maintenance", "--for", "1h", "--reason", "rollout")
    assert rig.status()["maintenance"].startswith("rollout")
    assert rig.call("maintenance", "--clear").returncode == 0
    assert rig.status()["maintenance"] is None


def test_a_kernel_message_split_over_two_polls_shortens_the_wait_and_counts_once(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(misses=1000, misses_with_signal=2)
    pool = FakePool(rig.folder / "pool.sock")
    lines = [
        {"MESSAGE": "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>',", "__CURSOR": "1", "_BOOT_ID": "boot-1"},
        {"MESSAGE": "NVRM: GPU 0000:01:00.0: GPU has", "__CURSOR": "2", "_BOOT_ID": "boot-1"},
        {"MESSAGE": "NVRM: fallen off the bus.", "__CURSOR": "3", "_BOOT_ID": "boot-1"},
    ]
    rig.options["kernel_log"] = ["/bin/sh", "-c", f"cat {rig.folder}/kernel.jsonl; : > {rig.folder}/kernel.jsonl", "--"]
    rig.start()
    rig.rounds(2)
    (rig.folder / "kernel.jsonl").write_text(json.dumps(lines[1]) + "\n")
    rig.until(lambda: rig.state()["kernel_cursor"] == "2")
    (rig.folder / "kernel.jsonl").write_text(json.dumps(lines[2]) + "\n")
    rig.until(lambda: rig.state()["tracks"][0]["signal"])
    rig.rounds(2)
    assert rig.state()["phase"] == "healthy", "a card that is still listed is never a reason"
    rig.cards.lose(FIRST)
    rig.until(lambda: rig.last()["seen"]["cards"][FIRST]["card"] == "fallen_off_bus")
    rig.until(lambda: rig.reboots() == 1)
    pool.close()


def test_at_the_fleets_cap_it_waits_and_says_so_and_goes_when_the_other_host_is_back(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    rig.options["peers"] = [{"name": "gpu-a", "url": receiver.url}]
    receiver.ready = {"ready": True, "draining": False, "rebooting": "intending"}
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.until(lambda: "fleet_cap" in rig.log())
    assert rig.state()["phase"] == "confirmed"
    assert not pool.draining
    receiver.ready = {"ready": False, "draining": False, "rebooting": None}
    rig.rounds(2)
    assert "gpu-a is down" in str(rig.status()["holds"])
    assert rig.reboots() == 0
    receiver.ready = {"ready": True, "draining": False, "rebooting": None}
    rig.until(lambda: rig.reboots() == 1)


def test_an_unreachable_host_counts_as_down(rig: Rig, pool: FakePool) -> None:
    rig.options["peers"] = [{"name": "gpu-z", "url": "http://127.0.0.1:1"}]
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.until(lambda: "gpu-z is down" in rig.log())
    rig.rounds(2)
    assert rig.reboots() == 0


def test_a_reboot_command_that_fails_is_a_failed_attempt(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    rig.options["reboot"] = ["/bin/sh", "-c", "echo no such bus >&2; exit 1"]
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.phase_is("locked_out")
    assert "no such bus" in rig.state()["locked_reason"]
    rig.until(lambda: receiver.kinds()[-1] == "locked_out")


def test_an_alert_that_cannot_be_sent_blocks_nothing_and_arrives_later(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    receiver.status = 500
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.until(lambda: rig.reboots() == 1)
    assert receiver.got == []
    rig.kill()
    receiver.status = 200
    rig.start()
    rig.until(lambda: receiver.kinds()[:2] == ["card_lost", "rebooting"])


def test_an_alert_command_that_hangs_does_not_stop_the_rounds(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(alert_s=0.6)
    rig.options["alert_command"] = ["/bin/sh", "-c", f"echo '{{title}}: {{message}}' >> {rig.folder}/sent; exec sleep 600"]
    pool = FakePool(rig.folder / "pool.sock")
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.until(lambda: rig.reboots() == 1)
    assert "gpu-b: card_lost: confirmed gone: c0" in (rig.folder / "sent").read_text()
    pool.close()


def test_the_webhook_secret_is_in_no_argument_and_no_log(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    (rig.folder / "webhook").write_text(f"{receiver.url}/alert/s3cret\nAuthorization: Bearer t0ken\n")
    rig.start()
    rig.cards.set_init(18)
    rig.until(lambda: receiver.got)
    assert receiver.headers[0]["Authorization"] == "Bearer t0ken"
    assert "s3cret" not in rig.log() + rig.config.read_text()
    assert "t0ken" not in rig.log() + rig.config.read_text()


def test_a_pool_that_accepts_and_never_answers_makes_leases_unknown_and_holds_the_reboot(rig: Rig) -> None:
    import socket

    mute = socket.socket(socket.AF_UNIX)
    mute.bind(str(rig.folder / "pool.sock"))
    mute.listen(64)
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.until(lambda: "leases_unknown" in rig.log())
    rig.rounds(2)
    assert rig.reboots() == 0
    mute.close()


def test_a_systemctl_that_hangs_holds_the_reboot_and_nothing_else(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(command_s=0.15)
    rig.units({"hang": "yes"})
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.phase_is("confirmed")
    rig.rounds(3)
    assert rig.last()["seen"]["pool_unit"] is None
    assert rig.reboots() == 0


def test_a_second_watchdog_refuses_to_start(rig: Rig, pool: FakePool) -> None:
    rig.start()
    rig.rounds(1)
    second = rig.call("run")
    assert second.returncode == 1
    assert "another watchdog is running" in second.stderr


def test_dry_run_says_what_it_would_do_and_does_nothing(rig: Rig, pool: FakePool, receiver: Receiver) -> None:
    rig.options["dry_run"] = True
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    rig.until(lambda: receiver.kinds() == ["card_lost"])
    rig.rounds(4)
    assert rig.reboots() == 0
    assert pool.told == []
    assert [hold["code"] for hold in rig.status()["holds"]] == ["dry_run"]


def test_systemd_hears_ready_and_a_sign_of_life(rig: Rig, pool: FakePool) -> None:
    import socket

    path = rig.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(10)
        rig.environment["NOTIFY_SOCKET"] = str(path)
        rig.start()
        heard: list[str] = []
        while not any(line.startswith("STATUS=healthy") for line in heard):
            heard += sock.recv(4096).decode().split("\n")
    assert heard[0] == "READY=1"
    assert "WATCHDOG=1" in heard


def test_killed_between_saving_and_rebooting_it_never_tries_a_second_time(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(reboot_s=1)
    rig.options["reboot"] = ["/bin/sh", "-c", f"echo x >> {rig.folder}/reboots; kill -9 $PPID"]
    pool = FakePool(rig.folder / "pool.sock")
    rig.start()
    rig.rounds(2)
    rig.cards.pull(FIRST)
    assert rig.process
    rig.process.wait(20)
    rig.process = None
    assert rig.state()["phase"] == "rebooting"
    rig.start()
    rig.phase_is("locked_out")
    assert rig.reboots() == 1
    assert "did not happen" in rig.state()["locked_reason"]
    pool.close()


def test_a_bad_configuration_lists_every_fault_at_once(rig: Rig, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text('dry_run = "no"\nnonsense = 1\n[bounds]\ncooldown_s = 0\n[[cards]]\nslot = "c0"\nuuid = "0"\n')
    done = rig.call("check", str(bad))
    assert done.returncode == 2
    faults = done.stderr.splitlines()
    assert len(faults) == 5
    assert all(fault.startswith(str(bad)) for fault in faults)
    assert rig.call("check").returncode == 0


def test_while_the_state_cannot_be_kept_nothing_is_decided_and_the_watchdog_lives_on(rig: Rig, pool: FakePool) -> None:
    rig.start()
    rig.rounds(2)
    away = rig.state_dir.rename(rig.folder / "away")
    rig.cards.pull(FIRST)
    rig.until(lambda: rig.log().count("this round failed") >= 4)
    assert rig.reboots() == 0
    away.rename(rig.state_dir)
    rig.until(lambda: rig.reboots() == 1)

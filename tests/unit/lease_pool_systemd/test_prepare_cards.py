"""Which slot gets which device node, and what the operator is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from lease_pool.config import CardConfig, PoolConfig, parse
from lease_pool.prepare_cards import Present, plan

from lease_pool import prepare_cards, shared_devices

C0, C1 = CardConfig(slot="c0", uuid="GPU-aa"), CardConfig(slot="c1", uuid="GPU-bb")


def test_each_slot_may_open_the_node_its_card_has_today_whatever_the_order() -> None:
    found = plan([C0, C1], [Present("GPU-bb", 0), Present("GPU-aa", 1)])
    assert "DeviceAllow=/dev/nvidia1 rw\n" in found.drop_ins["c0"]
    assert "CUDA_VISIBLE_DEVICES=GPU-aa CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.drop_ins["c0"]
    assert "DeviceAllow=/dev/nvidia0 rw\n" in found.drop_ins["c1"]
    assert not found.errors
    assert not found.warnings


def test_a_lost_card_has_no_drop_in_and_does_not_fail_the_others() -> None:
    found = plan([C0, C1], [Present("GPU-bb", 0)])
    assert set(found.drop_ins) == {"c1"}
    assert found.warnings == ["slot c0: declared card GPU-aa is missing"]
    assert not found.errors


def test_a_swapped_card_is_an_error_that_names_the_slot_and_the_new_uuid() -> None:
    found = plan([C0, C1], [Present("GPU-new", 0), Present("GPU-bb", 1)])
    assert set(found.drop_ins) == {"c1"}
    (error,) = found.errors
    assert "c0" in error
    assert "GPU-aa" in error
    assert "GPU-new" in error


def test_no_card_at_all_is_loud() -> None:
    assert plan([C0, C1], []).errors == ["NVML lists no card at all, 2 declared: driver, power or cabling"]


@pytest.mark.parametrize(
    ("card", "present"), [(CardConfig(slot="c0", uuid="MIG-1"), Present("GPU-aa", 0)), (C0, Present("GPU-aa", 0, mig=True))]
)
def test_mig_is_refused_with_a_way_out(card: CardConfig, present: Present) -> None:
    found = plan([card], [present])
    assert not found.drop_ins
    assert "supervisor: process" in found.errors[0]


def test_a_card_that_nobody_declared_is_mentioned() -> None:
    assert plan([C0], [Present("GPU-aa", 0), Present("GPU-cc", 1)]).warnings == ["card GPU-cc is not declared in pool.yml and stays unused"]


def test_uuids_are_compared_without_case() -> None:
    assert set(plan([CardConfig(slot="c0", uuid="gpu-AA")], [Present("GPU-aa", 3)]).drop_ins) == {"c0"}


def config(root: Path, driver: str = "per_card") -> PoolConfig:
    return parse(
        f"""
        card_source: declared
        runtime_dir: {root}/run
        state_dir: {root}/state
        idle_workload: {{driver: {driver}}}
        cards: [{{slot: c0, uuid: GPU-aa, memory_mib: 1}}, {{slot: c1, uuid: GPU-bb, memory_mib: 1}}, {{slot: c2, uuid: GPU-cc, memory_mib: 1}}]
        models: {{m: {{backend: command, argv: [x], memory_mib: 1}}}}
        """,
        "test",
    )


def test_writing_twice_changes_nothing_and_a_slot_that_is_gone_loses_its_drop_ins(tmp_path: Path) -> None:
    both = prepare_cards._files(config(tmp_path), plan([C0, C1], [Present("GPU-aa", 0), Present("GPU-bb", 1)]).drop_ins)
    assert prepare_cards._write(both, tmp_path)
    assert not prepare_cards._write(both, tmp_path)
    one = prepare_cards._files(config(tmp_path), plan([C0, C1], [Present("GPU-aa", 0)]).drop_ins)
    assert prepare_cards._write(one, tmp_path)
    assert sorted(path.parent.name for path in tmp_path.glob("*/card.conf")) == ["gpu-miner@c0.service.d", "gpu-worker@c0.service.d"]


def test_one_miner_for_all_cards_may_open_every_card_that_is_there(tmp_path: Path) -> None:
    files = prepare_cards._files(config(tmp_path, "shared"), plan([C0, C1], [Present("GPU-aa", 0), Present("GPU-bb", 1)]).drop_ins)
    assert files["gpu-miner.service"] == "[Service]\nDeviceAllow=/dev/nvidia0 rw\nDeviceAllow=/dev/nvidia1 rw\n"


def test_one_miner_leaves_out_slots_that_are_held_down_wanted_or_absent(tmp_path: Path) -> None:
    made = config(tmp_path, "shared")
    for slot in ("c0", "c1", "c2"):
        folder = tmp_path / f"gpu-worker@{slot}.service.d"
        folder.mkdir()
        (folder / "card.conf").touch()
    (tmp_path / "run" / "launch").mkdir(parents=True)
    (tmp_path / "state" / "hold").mkdir(parents=True)

    def slots() -> list[str]:
        return [entry["slot"] for entry in shared_devices.selected(made, tmp_path)]

    assert slots() == ["c0", "c1", "c2"]
    (tmp_path / "state" / "hold" / "c0").touch()
    assert slots() == ["c1", "c2"]
    (tmp_path / "run" / "launch" / "c1.json").touch()
    assert slots() == ["c2"]
    (tmp_path / "run" / "launch" / "c2.away").touch()
    assert slots() == []

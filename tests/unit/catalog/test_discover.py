"""Cards that were found become host variables that expand as they stand, and say which aliases fit."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_discover import discovered_host_vars, generation, smi_cards
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import expand

from tests.support.fleets import fleet, fleet_variables, put, uuid

FOUND: list[dict[str, Any]] = [
    {
        "uuid": uuid(9, 1),
        "memory_mib": 24576,
        "name": "NVIDIA GeForce RTX 4090",
        "pci": "00000000:02:00.0",
        "compute_capability": "8.9",
        "mig": False,
    },
    {
        "uuid": uuid(9, 0),
        "memory_mib": 8192,
        "name": "NVIDIA GeForce RTX 3070",
        "pci": "00000000:01:00.0",
        "compute_capability": "8.6",
        "mig": False,
    },
]
SMI = f"""{uuid(9, 0)}, 8192, NVIDIA GeForce RTX 3070, 00000000:01:00.0, 8.6, [N/A]
{uuid(9, 1)}, 81920, NVIDIA A100-SXM4-80GB, 00000000:02:00.0, 8.0, Enabled
Unable to determine the device handle for GPU0000:03:00.0: Unknown Error
"""


def test_what_is_written_for_a_new_host_expands_as_it_stands() -> None:
    inventory = {**fleet(1), "gpu-new": fleet_variables()}
    written = yaml.safe_load(discovered_host_vars(FOUND, inventory, "gpu-new", "100.64.9.9"))
    inventory["gpu-new"].update(written)
    host = expand(inventory)["hosts"]["gpu-new"]
    assert host["address"] == "100.64.9.9"
    assert [(card["slot"], card["uuid"], card["labels"]) for card in host["cards"]] == [
        ("c0", uuid(9, 0), ["ampere"]),
        ("c1", uuid(9, 1), ["ada"]),
    ]


def test_each_card_says_what_fits_it_and_what_does_not_and_why() -> None:
    text = discovered_host_vars(FOUND, {"gpu-new": fleet_variables()}, "gpu-new", "100.64.9.9")
    assert (
        "  # NVIDIA GeForce RTX 3070, 00000000:01:00.0, compute capability 8.6\n  # Fits: t3-code, t3-smart, t4-embedding, t4-router\n"
        in text
    )
    assert "  # Does not fit: t3-vision (9000 MiB)\n" in text
    assert "  # Does not fit: t3-vision (labels ampere)\n" in text


def test_known_cards_keep_slot_and_labels_new_ones_get_free_slots_and_lost_ones_are_named() -> None:
    inventory = fleet(1)
    put(inventory["gpu-01"], "fleet_cards", 0, value={"slot": "c1", "uuid": uuid(9, 1), "memory_mib": 24576, "labels": ["quiet"]})
    put(inventory["gpu-01"], "fleet_cards", 1, "slot", value="c2")
    text = discovered_host_vars(FOUND, inventory, "gpu-01", "10.0.0.1")
    cards = {card["uuid"]: (card["slot"], card["labels"]) for card in yaml.safe_load(text)["fleet_cards"]}
    assert cards == {uuid(9, 1): ("c1", ["quiet"]), uuid(9, 0): ("c0", ["ampere"])}
    assert f"# c2 ({uuid(1, 1)}) is in the inventory and was not found." in text
    assert yaml.safe_load(text)["fleet_address"] == "100.64.0.2"


def test_cards_that_do_not_answer_are_said_and_never_listed() -> None:
    lost = [{"uuid": None, "state": "lost", "message": "GPU is lost\nreboot"}]
    text = discovered_host_vars([*FOUND, *lost], {"gpu-new": {}}, "gpu-new", "10.0.0.1")
    assert "# A card did not answer: lost: GPU is lost reboot" in text
    assert len(yaml.safe_load(text)["fleet_cards"]) == 2
    assert yaml.safe_load(discovered_host_vars(lost, {"gpu-new": {}}, "gpu-new", "10.0.0.1"))["fleet_cards"] == []


def test_nvidia_smi_lines_become_cards_and_its_errors_are_kept() -> None:
    first, second, broken = smi_cards(SMI)
    assert (first["uuid"], first["memory_mib"], first["compute_capability"], first["mig"]) == (uuid(9, 0), 8192, "8.6", False)
    assert second["mig"] is True
    assert (broken["uuid"], broken["message"][:16]) == (None, "Unable to determ")
    assert "MIG is enabled" in discovered_host_vars([second], {"gpu-new": {}}, "gpu-new", "10.0.0.1")


@pytest.mark.parametrize(
    ("capability", "label"), [("8.6", "ampere"), ("8.9", "ada"), ("9.0", "hopper"), ("12.0", "blackwell"), ("3.5", None), (None, None)]
)
def test_the_compute_capability_names_the_generation(capability: object, label: str | None) -> None:
    assert generation(capability) == label

from __future__ import annotations

import json

import pytest
from gpu_watchdog.kernel_log import address, read_entries, scan
from hypothesis import given
from hypothesis import strategies as st

XID = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
PLAIN = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."
AT = "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2206) installed in this system has fallen off the bus and is not responding to commands."


@pytest.mark.parametrize(
    "lines",
    [
        [XID],
        [PLAIN],
        [AT],
        ["NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."],
        ["NVRM: GPU 0000:01:00.0: GPU has", "fallen off the bus."],
        ["NVRM: GPU 0000:01:00.0:", "NVRM: GPU has fallen off", "NVRM: the bus."],
        ["[  123.456789] NVRM: GPU 0000:01:00.0: GPU has fallen off the", "[  123.456790] NVRM: bus."],
        ["NVRM: Xid (PCI:0000:01:00): 79, pid=1,", "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."],
        [XID, PLAIN, AT, XID],
    ],
)
def test_a_fallen_card_is_heard_in_every_wording_and_counted_once(lines: list[str]) -> None:
    assert scan("", lines).fallen == ("0000:01:00",)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["NVRM: Xid (PCI:0000:01:00): 31, pid=1234, MMU fault"],
        ["NVRM: Xid (PCI:0000:01:00): 179, what else"],
        ["usb 1-2: device has fallen off the bus."],
        ["NVRM: GPU 0000:01:00.0: RmInitAdapter failed!"],
        ["NVRM: loading NVIDIA UNIX x86_64 Kernel Module"],
    ],
)
def test_other_messages_are_not_a_fallen_card(lines: list[str]) -> None:
    assert scan("", lines).fallen == ()


def test_two_cards_are_told_apart() -> None:
    heard = scan("", ["NVRM: GPU 0000:01:00.0: RmInitAdapter failed!", PLAIN.replace("01:00", "41:00")])
    assert heard.fallen == ("0000:41:00",)


def test_the_uuid_that_the_driver_names_is_kept() -> None:
    uuid = "GPU-11111111-1111-4111-8111-111111111111"
    assert scan("", [f"NVRM: GPU at PCI:0000:01:00: {uuid}", XID]).named == (("0000:01:00", uuid),)


@given(cut=st.integers(0, len(XID) + 1 + len(PLAIN)))
def test_wherever_the_log_is_cut_between_two_reads_the_card_is_heard_at_least_once(cut: int) -> None:
    words = f"{XID}\n{PLAIN}"
    first = scan("", words[:cut].splitlines())
    second = scan(first.tail, words[cut:].splitlines())
    assert set(first.fallen) | set(second.fallen) == {"0000:01:00"}


def test_what_was_heard_is_not_heard_again_from_the_kept_tail() -> None:
    heard = scan("", [XID])
    assert scan(heard.tail, []).fallen == ()


def test_the_tail_stays_small() -> None:
    assert len(scan("", ["x" * 500] * 100).tail) <= 600


def test_an_address_has_one_spelling() -> None:
    assert address("00000000:0A:00.0") == address("PCI:0000:0a:00") == "0000:0a:00"


def test_entries_of_another_boot_and_cut_lines_are_left_out_and_the_cursor_is_kept() -> None:
    entries = [
        {"__CURSOR": "a", "_BOOT_ID": "11", "MESSAGE": "old"},
        {"__CURSOR": "b", "_BOOT_ID": "2-2", "MESSAGE": "new"},
        {"__CURSOR": "c", "_BOOT_ID": "22", "MESSAGE": [78, 86, 255]},
        {"__CURSOR": "d", "_BOOT_ID": "22", "MESSAGE": None},
    ]
    out = "\n".join(json.dumps(entry) for entry in entries) + '\n{"__CURSOR": "e", "MESS'
    assert read_entries(out, "22") == (["new", "NV�"], "d")
    assert read_entries("", "22") == ([], "")

"""The simulated hosts' description and what is passed into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hosts import hosts, image, machine

DEMO = Path(hosts.__file__).with_name("demo.yml")


def test_a_host_set_has_the_addresses_of_its_subnet() -> None:
    assert [host.address for host in hosts.load(DEMO, None, None).hosts] == ["10.89.77.11", "10.89.77.12"]
    moved = hosts.load(DEMO, "other", "10.89.78.0/24")
    assert [host.address for host in moved.hosts] == ["10.89.78.11", "10.89.78.12"]
    assert [moved.container(host) for host in moved.hosts] == ["other-gpu-a", "other-gpu-b"]
    assert moved.network == "gpu-fleet-other"


def test_no_card_of_the_demo_has_anothers_uuid() -> None:
    uuids = [card.uuid for host in hosts.load(DEMO, None, None).hosts for card in host.cards]
    assert len(uuids) == len(set(uuids)) == 6


def test_an_unknown_host_is_answered_with_those_there_are() -> None:
    with pytest.raises(SystemExit, match="gpu-a, gpu-b"):
        hosts.load(DEMO, None, None).named("gpu-c")


def test_an_image_gets_a_new_tag_when_its_recipe_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.tag("bookworm")
    assert before == image.tag("bookworm") != image.tag("trixie")
    monkeypatch.setattr(image, "PACKAGES", [*image.PACKAGES, "nano"])
    assert image.tag("bookworm") != before


def test_pip_settings_that_are_paths_of_this_machine_stay_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text("[global]\nindex-url = https://index.example/simple\nextra-index-url = file:///srv/a https://more.example/simple\n")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    text = machine.pip_conf("/var/cache/pip")
    assert "index-url = https://index.example/simple\n" in text
    assert "extra-index-url = https://more.example/simple\n" in text
    assert "/srv/a" not in text
    assert "cache-dir = /var/cache/pip\n" in text


def test_a_suite_gets_its_own_sources_from_this_machines_mirrors() -> None:
    text = machine.apt_sources("trixie")
    assert "Suites: trixie trixie-updates\n" in text
    assert "Suites: trixie-security\n" in text

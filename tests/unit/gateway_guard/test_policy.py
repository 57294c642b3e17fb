from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_guard.policy import Access, Refusal, claimed_class, decide

from gateway_guard import check_cli, grants


def document(**changes: Any) -> dict[str, Any]:
    local, hosted = ["t3-smart", "t4-router", "gpu-a/t3-smart"], ["t1-smart"]
    keys = {
        hashlib.sha256(name.encode()).hexdigest(): {
            "name": name,
            "role": "agent",
            "min_class": min_class,
            "models": {"local": local, "hosted": hosted},
        }
        for name, min_class in (("open", "public"), ("middle", "internal"), ("shut", "restricted"))
    }
    smart = {"group": "t3-smart", "fallbacks": [], "hosted": False}
    router = {"group": "t4-router", "fallbacks": ["model:small"], "hosted": False}
    far = {"group": "t1-smart", "fallbacks": [], "hosted": True}
    public = {"group": "t3-smart@public", "fallbacks": ["hosted:far/x"], "hosted": True}
    routes = {"public": {"t3-smart": public, "t1-smart": far, "t4-router": router}, "internal": {"t3-smart": public, "t1-smart": far}}
    routes["restricted"] = {"t3-smart": smart, "t4-router": router}
    return {"version": 1, "catalog_sha256": "x", "keys": keys, "routes": routes, "pools": {"gpu-a": "http://10.0.0.1:9100"}, **changes}


def access(name: str, data_class: str, approved: bool = False, **changes: Any) -> Access:
    parsed = grants.parse(document(**changes))
    key = parsed.find(name)
    assert key is not None
    return decide(key, parsed, data_class, approved, "request-1")


def test_an_absent_class_is_restricted() -> None:
    assert claimed_class([]) == "restricted"


@pytest.mark.parametrize("values", [["public", "public"], ["public, restricted"], [""], ["secret"], ["pub\u200blic"], ["ｐｕｂｌｉｃ"]])
def test_an_unclear_class_is_refused(values: list[str]) -> None:
    with pytest.raises(Refusal) as refusal:
        claimed_class(values)
    assert refusal.value.status == 400


def test_a_class_is_read_without_regard_to_case() -> None:
    assert claimed_class([" Public "]) == "public"


def test_a_public_request_takes_the_public_routes_and_may_cross() -> None:
    found = access("open", "public")
    assert found.may_cross
    assert found.aliases["t3-smart"].group == "t3-smart@public"
    assert found.groups >= {"t3-smart@public", "hosted:far/x", "t1-smart", "t4-router", "gpu-a/t3-smart"}


def test_a_restricted_request_has_no_hosted_group_at_all() -> None:
    found = access("open", "restricted")
    assert not found.may_cross
    assert found.groups == {"t3-smart", "t4-router", "model:small", "gpu-a/t3-smart"}


def test_an_internal_request_without_an_approval_takes_the_restricted_routes() -> None:
    found = access("middle", "internal")
    assert (found.data_class, found.crossing) == ("internal", "closed")
    assert found.groups == access("middle", "restricted").groups


def test_an_approved_internal_request_may_cross() -> None:
    found = access("middle", "internal", approved=True)
    assert found.may_cross
    assert "t1-smart" in found.aliases
    assert "t4-router" not in found.aliases  # it has no route in that class


@pytest.mark.parametrize("data_class", ["public", "restricted"])
def test_only_internal_can_be_approved(data_class: str) -> None:
    with pytest.raises(Refusal) as refusal:
        access("open", data_class, approved=True)
    assert refusal.value.status == 403


@pytest.mark.parametrize(("name", "data_class"), [("shut", "public"), ("shut", "internal"), ("middle", "public")])
def test_a_key_may_not_claim_less_than_its_lowest_class(name: str, data_class: str) -> None:
    with pytest.raises(Refusal) as refusal:
        access(name, data_class)
    assert refusal.value.status == 403


def test_no_models_is_a_refusal_because_an_empty_list_means_all_models_to_litellm() -> None:
    routes = {"public": {}, "internal": {}, "restricted": {}}
    keys = document()["keys"]
    for entry in keys.values():
        entry["models"] = {"local": ["t3-smart"], "hosted": []}
    with pytest.raises(Refusal):
        access("open", "public", routes=routes, keys=keys)


def test_an_unknown_or_empty_key_is_nobody() -> None:
    parsed = grants.parse(document())
    assert parsed.find("") is None
    assert parsed.find("other") is None
    assert parsed.find("\ud800") is None
    named = parsed.find("open")
    assert named is not None
    assert named.name == "open"


def test_grants_that_lead_restricted_requests_outside_are_refused() -> None:
    broken = document()
    broken["routes"]["restricted"]["t3-smart"]["hosted"] = True
    with pytest.raises(grants.GrantsError, match="t3-smart"):
        grants.parse(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"keys": {"sk-plain": {}}},
        {"routes": {}},
        {"pools": None},
        {"keys": {"A" * 64: document()["keys"]}},
        {"routes": {"public": {}}},
    ],
)
def test_grants_of_another_shape_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(grants.GrantsError):
        grants.parse(document(**change))


@pytest.mark.parametrize(
    ("kind", "text", "status"),
    [
        ("keys", json.dumps(document()), 0),
        ("keys", "{}", 1),
        ("keys", "not json", 1),
        ("guard", "{}", 0),
        ("guard", '{"patterns": {"X": "("}}', 1),
        ("guard", '{"withhold": ["secret"]}', 1),
        ("guard", '{"approvers": {"x": {"public_key": "AAAA"}}}', 1),
    ],
)
def test_a_broken_file_is_found_before_it_replaces_the_one_in_use(kind: str, text: str, status: int, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    assert check_cli.main([kind, str(path)]) == status


def test_wrong_use_of_the_check_is_status_2() -> None:
    assert check_cli.main(["keys"]) == 2

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from gateway_guard.approval import Approver

from gateway_guard import approval, approve_cli, settings

KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
BODY = b'{"model": "t1-smart"}'
NOW = 1_000_000.0
ANYBODY = {"anna": Approver(approval.public_bytes(KEY), None)}
ITSELF = {"anna": Approver(approval.public_bytes(KEY), frozenset({"nightly"}))}


def token(key: Ed25519PrivateKey = KEY, principal: str = "agent", body: bytes = BODY, lifetime_s: int = 600) -> str:
    return approval.mint(key, signer="anna", principal=principal, body=body, now=NOW, lifetime_s=lifetime_s)


def test_a_token_approves_its_body_and_principal_until_it_expires() -> None:
    assert approval.is_valid(token(), ANYBODY, "agent", BODY, NOW)
    assert approval.is_valid(token(), ANYBODY, "agent", BODY, NOW + 599)
    assert not approval.is_valid(token(), ANYBODY, "agent", BODY, NOW + 600)


@pytest.mark.parametrize(("principal", "body"), [("agent", BODY + b" "), ("agent", b""), ("agent2", BODY), ("", BODY), ("agent\n", BODY)])
def test_a_token_approves_nothing_else(principal: str, body: bytes) -> None:
    assert not approval.is_valid(token(), ANYBODY, principal, body, NOW)


def test_a_stranger_cannot_mint() -> None:
    assert not approval.is_valid(token(OTHER), ANYBODY, "agent", BODY, NOW)
    assert not approval.is_valid(token(), {}, "agent", BODY, NOW)


def test_a_workflow_approves_for_itself_only() -> None:
    assert approval.is_valid(token(principal="nightly"), ITSELF, "nightly", BODY, NOW)
    assert not approval.is_valid(token(), ITSELF, "agent", BODY, NOW)


def test_nothing_is_approved_for_longer_than_a_quarter_of_an_hour() -> None:
    with pytest.raises(ValueError, match="900"):
        token(lifetime_s=901)
    early = approval.mint(KEY, signer="anna", principal="agent", body=BODY, now=NOW + 5000, lifetime_s=900)
    assert not approval.is_valid(early, ANYBODY, "agent", BODY, NOW)


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "approved",
        "anna.1.x",
        "anna.99999999999999." + "A" * 86,
        "anna.1000600." + "A" * 86,
        "anna." + "٣" * 7 + "." + "A" * 86,
        "x" * 10_000,
    ],
)
def test_an_unreadable_token_is_no_approval(broken: str) -> None:
    assert not approval.is_valid(broken, ANYBODY, "agent", BODY, NOW)


def test_the_operators_command_makes_a_key_and_tokens_that_the_gateway_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, body = tmp_path / "anna.pem", tmp_path / "body.json"
    body.write_bytes(BODY)
    assert approve_cli.main(["new-key", "--out", str(key)]) == 0
    public = capsys.readouterr().out.strip()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert approve_cli.main(["mint", "--key", str(key), "--signer", "anna", "--principal", "agent", "--body", str(body)]) == 0
    minted = capsys.readouterr().out.strip()
    parsed = settings.parse({"approvers": {"anna": {"public_key": public}}})
    assert len(base64.b64decode(public)) == 32
    now = float(minted.split(".")[1]) - 1
    assert approval.is_valid(minted, parsed.approvers, "agent", BODY, now)


def test_the_command_never_overwrites_a_key(tmp_path: Path) -> None:
    key = tmp_path / "anna.pem"
    key.write_text("precious")
    assert approve_cli.main(["new-key", "--out", str(key)]) == 1
    assert key.read_text() == "precious"


def test_the_command_refuses_a_lifetime_over_the_bound(tmp_path: Path) -> None:
    key, body = tmp_path / "anna.pem", tmp_path / "body.json"
    body.write_bytes(BODY)
    approve_cli.main(["new-key", "--out", str(key)])
    assert (
        approve_cli.main(["mint", "--key", str(key), "--signer", "anna", "--principal", "agent", "--body", str(body), "--minutes", "16"])
        == 1
    )

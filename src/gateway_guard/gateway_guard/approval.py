"""Approvals: one signed permission for one body, of one principal, for a short time, to leave the fleet.

A token is `<signer>.<expires>.<signature>`; the signature is Ed25519 over principal, expiry and the SHA-256 of the body. The gateway
knows public keys only, so nothing on a host can mint one. An operator's key may approve for anybody, a workflow's key only for itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_LIFETIME_S = 900
TOKEN = re.compile(r"([A-Za-z0-9_-]{1,64})\.([0-9]{1,12})\.([A-Za-z0-9_-]{86})")


@dataclass(frozen=True, slots=True)
class Approver:
    """A signer's public key (32 raw bytes) and the principals it may approve for (None = anybody)."""

    public_key: bytes
    principals: frozenset[str] | None


def message(principal: str, expires: int, body: bytes) -> bytes:
    return b"\n".join((b"gpu-fleet-approval-v1", principal.encode(), str(expires).encode(), hashlib.sha256(body).hexdigest().encode()))


def mint(private_key: Ed25519PrivateKey, *, signer: str, principal: str, body: bytes, now: float, lifetime_s: int) -> str:
    if not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise ValueError(f"an approval lasts 1 to {MAX_LIFETIME_S} seconds, not {lifetime_s}")
    expires = int(now) + lifetime_s
    return f"{signer}.{expires}.{_encode(private_key.sign(message(principal, expires, body)))}"


def is_valid(token: str, approvers: Mapping[str, Approver], principal: str, body: bytes, now: float) -> bool:
    """Tell whether the token approves exactly this body of this principal now. Anything unreadable is no approval."""
    parts = TOKEN.fullmatch(token)
    if parts is None:
        return False
    signer, expires, signature = parts[1], int(parts[2]), parts[3]
    approver = approvers.get(signer)
    if approver is None or not now < expires <= now + MAX_LIFETIME_S:
        return False
    if approver.principals is not None and principal not in approver.principals:
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(approver.public_key)
        key.verify(base64.urlsafe_b64decode(signature + "=="), message(principal, expires, body))
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def new_key() -> tuple[bytes, str]:
    """Return a private key (PEM) and its public half (base64) for the inventory."""
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, base64.b64encode(public_bytes(private)).decode()


def public_bytes(private: Ed25519PrivateKey) -> bytes:
    return private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def read_key(pem: bytes) -> Ed25519PrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError("not an Ed25519 private key")
    return key


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

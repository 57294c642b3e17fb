"""`gateway-approve`: an operator (or a workflow, with its own key) lets one request leave the fleet.

gateway-approve new-key --out FILE                      a signing key; prints the public half for `litellm_approvers`
gateway-approve mint --key FILE --signer NAME --principal NAME --body FILE [--minutes 10]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from gateway_guard import approval


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gateway-approve", description="Approve one request to leave the fleet.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    new = verbs.add_parser("new-key", help="make a signing key; the public half is printed")
    new.add_argument("--out", type=Path, required=True, help="file for the private key (created, owner-only)")
    mint = verbs.add_parser("mint", help="print a token for the header x-boundary-approval")
    mint.add_argument("--key", type=Path, required=True, help="private key file")
    mint.add_argument("--signer", required=True, help="name of the key in litellm_approvers")
    mint.add_argument("--principal", required=True, help="name of the identity that sends the request")
    mint.add_argument("--body", type=Path, required=True, help="file with the exact bytes of the request body")
    mint.add_argument("--minutes", type=int, default=10, help="how long it is valid, 1 to 15")
    options = parser.parse_args(argv)
    try:
        return _new_key(options.out) if options.verb == "new-key" else _mint(options)
    except (OSError, ValueError) as error:
        print(f"gateway-approve: {error}", file=sys.stderr)
        return 1


def _new_key(out: Path) -> int:
    pem, public = approval.new_key()
    with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    print(public)
    return 0


def _mint(options: argparse.Namespace) -> int:
    key = approval.read_key(options.key.read_bytes())
    lifetime_s = options.minutes * 60
    body = options.body.read_bytes()
    print(approval.mint(key, signer=options.signer, principal=options.principal, body=body, now=time.time(), lifetime_s=lifetime_s))
    return 0


if __name__ == "__main__":
    sys.exit(main())

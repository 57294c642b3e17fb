"""Writes the demo's inventory for a second copy of its hosts: the same files, other addresses and secrets of its own.

inventory.py FOLDER SUBNET        inventory.py build/molecule/inventory 10.89.78.0/24
"""

from __future__ import annotations

import argparse
import ipaddress
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "inventories" / "demo"
DEMO_PREFIX = "10.89.77."
KEY = "build/hosts/id_ed25519"
DEMO_SECRETS = "inventory_dir ~ '/../../build/demo-secrets/"


def write(folder: Path, subnet: str) -> None:
    """Replace `folder` by a copy of the demo's inventory with its addresses moved to `subnet` (a /24) and its secrets to `folder`/../secrets."""
    prefix = str(ipaddress.ip_network(subnet).network_address).removesuffix("0")
    shutil.rmtree(folder, ignore_errors=True)
    for source in sorted(path for path in DEMO.rglob("*") if path.is_file()):
        target = folder / source.relative_to(DEMO)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace(DEMO_PREFIX, prefix).replace(f" {KEY}", f" {ROOT / KEY}")
        # Absolute: molecule runs elsewhere than in the tree, and puts an inventory of its own before this one.
        text = text.replace(DEMO_SECRETS, f"'{folder.resolve().parent}/secrets/")
        target.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("subnet")
    args = parser.parse_args()
    write(args.folder, args.subnet)


if __name__ == "__main__":
    main()

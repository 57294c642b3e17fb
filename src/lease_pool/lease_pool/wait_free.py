"""`lease-pool wait-free SLOT` (the miner's start-pre): waits until the card's memory is back before the miner starts.

Runs as the miner's account, which may not read pool.yml: the slot's drop-in names the card, the unit the bounds.
"""

from __future__ import annotations

import os
import sys

from lease_pool import card_memory


def main(config_path: str, slot: str) -> int:
    """0 once nothing computes on the card and enough memory is free, 1 with the reason after the bound."""
    del config_path
    uuid = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not uuid:
        print(f"slot {slot}: its card was not found at boot (gpu-cards.service)", file=sys.stderr)
        return 1
    if os.environ.get("GPU_FLEET_CARD_SOURCE") == "declared":
        return 0
    needed_mib = int(os.environ.get("GPU_FLEET_WAIT_MEMORY_MIB", "0"))
    bound_s = float(os.environ.get("GPU_FLEET_WAIT_FREE_S", "30"))
    try:
        reason = card_memory.wait_free(uuid, needed_mib, bound_s, lambda _: None)
    except card_memory.NvmlError as error:
        reason = str(error)
    if reason:
        print(f"slot {slot}, card {uuid}: not free after {bound_s:g} s: {reason}", file=sys.stderr)
        return 1
    return 0

# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Reads the HTTP summary of a miner, whoever made it. Nothing here knows Ansible.

No two miners agree on the shape. The names below are those of PeakMiner and T-Rex (`/summary`), SRBMiner-Multi, lolMiner, XMRig and WildRig;
a miner with other names is read by giving their dotted paths.
"""

from __future__ import annotations

import http.client
import json
import time
import typing as t
from urllib.parse import urlsplit

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._http import connection

Json = t.Dict[str, t.Any]

MAX_BODY = 1024 * 1024

# Dotted paths tried in this order; a number is an index of a list.
KNOWN: t.Dict[str, t.Tuple[str, ...]] = {
    "hashrate": (
        "hashrate",
        "hashrate_hs",
        "hashrate.total.0",
        "algorithms.0.hashrate.1min",
        "Algorithms.0.Total_Performance",
        "Session.Performance_Summary",
    ),
    "accepted": (
        "accepted",
        "accepted_count",
        "results.shares_good",
        "algorithms.0.shares.accepted",
        "Algorithms.0.Total_Accepted",
        "shares.accepted",
    ),
    "rejected": ("rejected", "rejected_count", "algorithms.0.shares.rejected", "Algorithms.0.Total_Rejected", "shares.rejected"),
    "share_age_s": ("share_age_s", "last_share_age_s", "last_accepted_share_age_s", "seconds_since_last_share"),
    "last_share": ("last_share", "last_share_time", "last_accepted_share", "active_pool.last_submit_ts"),
    "pid": ("pid",),
    "uptime_s": ("uptime_s", "uptime", "mining_time", "Session.Uptime"),
}


class MinerError(Exception):
    """The miner did not answer, or not with a JSON object; the message says what it did."""


def fetch(url: str, timeout: float) -> Json:
    """The miner's summary. Raises MinerError."""
    try:
        conn = connection(url, timeout)
    except ValueError as error:
        raise MinerError(str(error)) from None
    parts = urlsplit(url)
    try:
        conn.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers={"Accept": "application/json"})
        response = conn.getresponse()
        data = response.read(MAX_BODY)
    except TimeoutError:
        raise MinerError(f"no answer within {timeout:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise MinerError(str(error) or type(error).__name__) from None
    finally:
        conn.close()
    if response.status != 200:
        raise MinerError(f"expected status 200, got {response.status}")
    try:
        summary = json.loads(data)
    except ValueError:
        raise MinerError("the answer is not JSON") from None
    if not isinstance(summary, dict):
        raise MinerError("the answer is not a JSON object")
    return summary


def lookup(summary: t.Any, path: str) -> t.Any:
    """The value at a dotted path; None when it is not there."""
    for part in path.split("."):
        if isinstance(summary, dict):
            summary = summary.get(part)
        elif isinstance(summary, list) and part.isdigit() and int(part) < len(summary):
            summary = summary[int(part)]
        else:
            return None
    return summary


def facts(summary: Json, paths: t.Mapping[str, str], now: t.Optional[float] = None) -> Json:
    """hashrate, accepted, rejected, share_age_s, pid and uptime_s as numbers; None where the summary has none.

    `last_share` is a time in Unix seconds and becomes an age by the host's clock; an age that the miner gives itself wins.
    """
    found = {}
    for name, known in KNOWN.items():
        candidates = (paths[name],) if paths.get(name) else known
        found[name] = next((value for value in (_number(lookup(summary, path)) for path in candidates) if value is not None), None)
    last = found.pop("last_share")
    if found["share_age_s"] is None and last:
        found["share_age_s"] = round(max((time.time() if now is None else now) - last, 0.0), 1)
    for name in ("accepted", "rejected", "pid"):
        value = found[name]
        found[name] = None if value is None else int(value)
    return t.cast(Json, found)


def _number(value: t.Any) -> t.Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None

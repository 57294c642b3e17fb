# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Variables that the rollout needs and the catalog does not: set or not is all that is asked; their values are never shown."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Tuple

from ._catalog_faults import MISSING
from ._catalog_read import plain

_ALWAYS = {
    "fleet_litellm_master_key": "must be set (a secret of your vault); LiteLLM does not start without one",
    "fleet_models_files": "must list the model files to install, or be [] where they are installed by other means",
}
_MINER = {
    "gpu_miner_url": "must be the URL of the miner's release, or fleet_pool.idle_workload must be {driver: none}",
    "gpu_miner_sha256": "must be the SHA-256 of that release",
    "gpu_miner_version": "must name the version",
    "gpu_miner_command": "must name the program inside the release",
    "gpu_miner_args": "must be the miner's arguments",
}
_IF_SET = ("fleet_provider_keys", "fleet_acceptance_key", "fleet_probe_key", "gpu_miner_pool_password")


def rollout_faults(hostvars: Mapping[str, Mapping[str, Any]], hosts: Iterable[str]) -> List[str]:
    """Return one line a fault, sorted: variable, what was found, what is allowed. A fault of all hosts is one line."""
    names = [str(host) for host in hosts]
    where: Dict[Tuple[str, str, str], List[str]] = {}
    for host in names:
        for fault in _host_faults(hostvars[host]):
            where.setdefault(fault, []).append(host)
    lines = []
    for (variable, found, allowed), affected in where.items():
        for host in ["every host"] if len(affected) == len(names) > 1 else affected:
            lines.append(f"{host}: {variable}: {found}: {allowed}")
    return sorted(lines)


def _host_faults(variables: Mapping[str, Any]) -> Iterable[Tuple[str, str, str]]:
    needed = {**_ALWAYS, **(_MINER if _mines(variables) else {})}
    for variable in [*needed, *_IF_SET]:
        if variable not in variables:
            if variable in needed:
                yield variable, MISSING, needed[variable]
            continue
        try:
            value = plain(variables[variable])
        except Exception as error:  # whatever a template raises is the operator's fault line, beside all the others
            yield variable, "cannot be templated", str(error).split("\n", maxsplit=1)[0]
            continue
        if value in ("", None) and variable in needed:
            yield variable, "(empty)", needed[variable]


def _mines(variables: Mapping[str, Any]) -> bool:
    """Whether this host runs miners; a pool setting that cannot be read is reported elsewhere."""
    try:
        settings = plain(variables.get("fleet_pool") or {})
    except Exception:
        return True
    workload = settings.get("idle_workload") if isinstance(settings, dict) else None
    return not isinstance(workload, dict) or workload.get("driver", "per_card") in ("per_card", "shared")

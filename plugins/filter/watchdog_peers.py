# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter watchdog_peers: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: watchdog_peers
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: The pools that a host's watchdog asks before a reboot
description:
  - Every other host of the catalog.
positional: host
options:
  _input:
    description: The catalog, from P(agentic.gpu_fleet.fleet_catalog#filter).
    type: dict
    required: true
  host:
    description: The host's inventory name.
    type: str
    required: true
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ fleet_catalog | agentic.gpu_fleet.watchdog_peers(inventory_hostname) }}"
"""

RETURN = """
_value:
  description: Entries with C(name) and C(url).
  type: list
  elements: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_pool import watchdog_peers


def _watchdog_peers(catalog, host):
    """Return it for a host of the catalog."""
    if host not in catalog["hosts"]:
        raise AnsibleFilterError(f"watchdog_peers: {host!r} is not in the catalog, expected one of {', '.join(sorted(catalog['hosts']))}")
    return watchdog_peers(catalog, host)


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"watchdog_peers": _watchdog_peers}

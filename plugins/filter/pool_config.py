# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter pool_config: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: pool_config
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: The lease pool's configuration of one host
description:
  - The mapping for pool.yml. Models that no card of the host can hold are left out.
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
    msg: "{{ fleet_catalog | agentic.gpu_fleet.pool_config(inventory_hostname) }}"
"""

RETURN = """
_value:
  description: The mapping for pool.yml.
  type: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_pool import pool_config


def _pool_config(catalog, host):
    """Return it for a host of the catalog."""
    if host not in catalog["hosts"]:
        raise AnsibleFilterError(f"pool_config: {host!r} is not in the catalog, expected one of {', '.join(sorted(catalog['hosts']))}")
    return pool_config(catalog, host)


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"pool_config": _pool_config}

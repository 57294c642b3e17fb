# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter gateway_grants: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: gateway_grants
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Who may ask the gateway for what
description:
  - The mapping for keys.json of the gateway's guard (docs/catalog.md). Keys are there as SHA-256 digests only.
positional: local_only
options:
  _input:
    description: The catalog, from P(agentic.gpu_fleet.fleet_catalog#filter).
    type: dict
    required: true
  local_only:
    description: For a host with C(fleet_local_only), whose gateway gets no hosted entry at all.
    type: bool
    default: false
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ fleet_catalog | agentic.gpu_fleet.gateway_grants }}"
"""

RETURN = """
_value:
  description: The mapping for keys.json.
  type: dict
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_grants import gateway_grants


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"gateway_grants": gateway_grants}

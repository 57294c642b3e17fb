# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter discovered_host_vars: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: discovered_host_vars
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Commented host variables of a host's cards
description:
  - For cards that were found on a host; says for each which aliases fit it and which do not.
  - Cards that the inventory already has keep their slots and labels.
positional: inventory, host, address
options:
  _input:
    description: The list RV(agentic.gpu_fleet.gpu_info#module:cards).
    type: list
    elements: dict
    required: true
  inventory:
    description: The fleet's variables by host, from P(agentic.gpu_fleet.fleet_input#filter).
    type: dict
    required: true
  host:
    description: The host's inventory name.
    type: str
    required: true
  address:
    description: The address to suggest where the inventory has none.
    type: str
    required: true
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ gpus.cards | agentic.gpu_fleet.discovered_host_vars(fleet, inventory_hostname, ansible_host) }}"
  vars:
    fleet: "{{ hostvars | agentic.gpu_fleet.fleet_input(groups['gpu_hosts']) }}"
"""

RETURN = """
_value:
  description: YAML text.
  type: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_discover import discovered_host_vars


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"discovered_host_vars": discovered_host_vars}

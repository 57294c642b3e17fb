# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter fleet_input: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: fleet_input
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: The catalog's variables of all hosts
description:
  - Picks out of all variables those that make the catalog (docs/catalog.md), by host.
  - A variable whose template fails is kept as a mark, so that P(agentic.gpu_fleet.fleet_faults#filter) can report it beside all other faults.
positional: hosts
options:
  _input:
    description: All hosts' variables, C(hostvars).
    type: dict
    required: true
  hosts:
    description: Inventory names of the GPU hosts.
    type: list
    elements: str
    required: true
"""

EXAMPLES = """
- name: Expand the catalog
  ansible.builtin.set_fact:
    fleet_catalog: "{{ hostvars | agentic.gpu_fleet.fleet_input(groups['gpu_hosts']) | agentic.gpu_fleet.fleet_catalog }}"
"""

RETURN = """
_value:
  description: Host to variable to value.
  type: dict
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_input import pick


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"fleet_input": pick}

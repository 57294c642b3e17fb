# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter fleet_faults: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: fleet_faults
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Every fault of the fleet's variables
description:
  - One line a fault, sorted; C(variable's path, what was found, what is allowed).
  - Touches no host, raises nothing and never shows a secret.
options:
  _input:
    description: The fleet's variables by host, from P(agentic.gpu_fleet.fleet_input#filter).
    type: dict
    required: true
"""

EXAMPLES = """
- name: Show all faults
  ansible.builtin.debug:
    msg: "{{ hostvars | agentic.gpu_fleet.fleet_input(groups['gpu_hosts']) | agentic.gpu_fleet.fleet_faults }}"
"""

RETURN = """
_value:
  description: The faults, empty when there is none.
  type: list
  elements: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import faults_of


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"fleet_faults": faults_of}

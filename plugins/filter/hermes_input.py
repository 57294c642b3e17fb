# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter hermes_input: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: hermes_input
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: What the agent Hermes is configured from
description:
  - Aliases for each of its tasks with their contexts, and where it calls.
options:
  _input:
    description: The catalog, from P(agentic.gpu_fleet.fleet_catalog#filter).
    type: dict
    required: true
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ fleet_catalog | agentic.gpu_fleet.hermes_input }}"
"""

RETURN = """
_value:
  description: The mapping for the role C(hermes).
  type: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_hermes import hermes_input


def _hermes_input(catalog):
    """Return it, or say which variable is missing."""
    try:
        return hermes_input(catalog)
    except ValueError as error:
        raise AnsibleFilterError(f"hermes_input: {error}") from None


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"hermes_input": _hermes_input}

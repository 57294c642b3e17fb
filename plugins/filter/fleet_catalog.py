# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter fleet_catalog: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: fleet_catalog
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Expand the fleet's variables to the proven catalog
description:
  - Fails with every fault at once. The same variables give the same catalog on every host, in any order.
  - The catalog is plain data and holds no secret.
options:
  _input:
    description: The fleet's variables by host, from P(agentic.gpu_fleet.fleet_input#filter).
    type: dict
    required: true
"""

EXAMPLES = """
- name: Expand the catalog
  ansible.builtin.set_fact:
    fleet_catalog: "{{ hostvars | agentic.gpu_fleet.fleet_input(groups['gpu_hosts']) | agentic.gpu_fleet.fleet_catalog }}"
"""

RETURN = """
_value:
  description: The catalog.
  type: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import expand
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_faults import CatalogError


def fleet_catalog(inventory):
    """Return the catalog, or fail with one line a fault."""
    try:
        return expand(inventory)
    except CatalogError as error:
        count = len(error.faults)
        raise AnsibleFilterError(f"{count} fault{'s' if count > 1 else ''} in the fleet's variables:\n{error}") from None


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"fleet_catalog": fleet_catalog}

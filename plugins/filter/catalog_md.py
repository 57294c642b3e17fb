# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter catalog_md: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: catalog_md
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: The catalog for people
description:
  - The text of CATALOG.md, with aliases, chains per data class, models, cards, identities.
positional: public
options:
  _input:
    description: The catalog, from P(agentic.gpu_fleet.fleet_catalog#filter).
    type: dict
    required: true
  public:
    description: Leave out names of hosts and people, addresses and UUIDs.
    type: bool
    default: false
"""

EXAMPLES = """
- name: Write CATALOG.md
  ansible.builtin.copy:
    content: "{{ fleet_catalog | agentic.gpu_fleet.catalog_md }}"
    dest: CATALOG.md
    mode: "0644"
"""

RETURN = """
_value:
  description: The text of CATALOG.md.
  type: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_md import catalog_md


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"catalog_md": catalog_md}

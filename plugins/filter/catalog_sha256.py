# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter catalog_sha256: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: catalog_sha256
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: The catalog's digest
description:
  - What every gateway serves and acceptance compares.
options:
  _input:
    description: The catalog, from P(agentic.gpu_fleet.fleet_catalog#filter).
    type: dict
    required: true
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ fleet_catalog | agentic.gpu_fleet.catalog_sha256 }}"
"""

RETURN = """
_value:
  description: SHA-256, hexadecimal.
  type: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_expand import sha256


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"catalog_sha256": sha256}

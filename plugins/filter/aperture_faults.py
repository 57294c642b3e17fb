# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter aperture_faults: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: aperture_faults
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: What would make Aperture refuse a document
description:
  - Unknown keys, a path in an upstream address, grants without a role or for everyone, globs that match nothing, not exactly one admin.
options:
  _input:
    description: The document's text, from P(agentic.gpu_fleet.aperture_config#filter).
    type: str
    required: true
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ aperture_document | agentic.gpu_fleet.aperture_faults }}"
"""

RETURN = """
_value:
  description: The faults, empty when the document can be applied.
  type: list
  elements: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_aperture import aperture_faults


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"aperture_faults": aperture_faults}

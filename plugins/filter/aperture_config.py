# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter aperture_config: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: aperture_config
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Aperture's configuration document
description:
  - The text of the document; instead of the gateways' key it has the placeholder C(@@APERTURE_GATEWAY_KEY@@).
options:
  _input:
    description: The catalog, from P(agentic.gpu_fleet.fleet_catalog#filter).
    type: dict
    required: true
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ fleet_catalog | agentic.gpu_fleet.aperture_config }}"
"""

RETURN = """
_value:
  description: The document's text (JSON, which is HuJSON).
  type: str
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_aperture import aperture_config


def _aperture_config(catalog):
    """Return it, or say which variable is missing."""
    try:
        return aperture_config(catalog)
    except ValueError as error:
        raise AnsibleFilterError(f"aperture_config: {error}") from None


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"aperture_config": _aperture_config}

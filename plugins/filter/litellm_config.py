# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter litellm_config: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: litellm_config
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: LiteLLM's configuration for every gateway
description:
  - The text of config.yaml, the same bytes for every gateway; it holds no secret (C(os.environ/NAME)).
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
- name: Write the gateway's configuration
  ansible.builtin.copy:
    content: "{{ fleet_catalog | agentic.gpu_fleet.litellm_config(local_only=fleet_local_only | default(false)) }}"
    dest: /etc/gpu-fleet/litellm/config.yaml
    mode: "0640"
"""

RETURN = """
_value:
  description: The text of config.yaml.
  type: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_litellm import litellm_config


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"litellm_config": litellm_config}

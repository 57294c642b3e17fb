# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter rollout_faults: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: rollout_faults
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Variables that a rollout needs and does not have
description:
  - Looks at what P(agentic.gpu_fleet.fleet_faults#filter) does not, because the catalog does not need it - the gateway's master key, the miner's release,
    model files, provider keys.
  - Only whether a value is there and can be templated is looked at; no value is shown.
positional: hosts
options:
  _input:
    description: C(hostvars).
    type: dict
    required: true
  hosts:
    description: The names of the fleet's hosts.
    type: list
    elements: str
    required: true
"""

EXAMPLES = """
- name: Show what is missing
  ansible.builtin.debug:
    msg: "{{ hostvars | agentic.gpu_fleet.rollout_faults(groups['gpu_hosts']) }}"
"""

RETURN = """
_value:
  description: One line a fault - host, variable, what was found, what is allowed; empty when all is there.
  type: list
  elements: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._rollout import rollout_faults


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"rollout_faults": rollout_faults}

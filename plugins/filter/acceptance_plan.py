# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter acceptance_plan: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: acceptance_plan
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: The trips that an acceptance run makes
description:
  - Every gateway is asked for a chat answer, a stream, an embedding and a node alias; every other local alias is asked for once in the fleet.
options:
  _input:
    description: The catalog, as the filter P(agentic.gpu_fleet.fleet_catalog#filter) returns it.
    type: dict
    required: true
"""

EXAMPLES = """
- name: Show what acceptance would do
  ansible.builtin.debug:
    msg: "{{ fleet_catalog | agentic.gpu_fleet.acceptance_plan }}"
"""

RETURN = """
_value:
  description: Trips in order; each has C(host) (whose gateway is asked), C(alias), C(probe) (chat, stream, vision or embedding)
    and C(pinned) (the host that must serve, or null).
  type: list
  elements: dict
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._acceptance import plan_from_catalog


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"acceptance_plan": plan_from_catalog}

# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter catalog_explain: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: catalog_explain
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: What would happen to one request
description:
  - Served by which chain on which hosts and cards, or refused by which layer and why. Takes no lease and asks no service.
positional: identity, alias, data_class, public
options:
  _input:
    description: The catalog, from P(agentic.gpu_fleet.fleet_catalog#filter).
    type: dict
    required: true
  identity:
    description: Name of an identity.
    type: str
    required: true
  alias:
    description: Alias or node alias.
    type: str
    required: true
  data_class:
    description: V(public), V(internal) or V(restricted).
    type: str
    required: true
  public:
    description: Leave out names of hosts and people, addresses and UUIDs.
    type: bool
    default: false
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ fleet_catalog | agentic.gpu_fleet.catalog_explain('hermes-1', 't3-smart', 'public') }}"
"""

RETURN = """
_value:
  description: C(allowed), C(layer) and C(reason) of a refusal, C(tier), C(chain), C(needs_approval), C(hosts) with their cards.
  type: dict
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_explain import explain


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"catalog_explain": explain}

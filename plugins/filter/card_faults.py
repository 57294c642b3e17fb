# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter card_faults: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: card_faults
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Cards of a host that did not go home, or were disturbed
description:
  - Compares two snapshots of one host (C(playbooks/tasks/snapshot.yml)), before a drill and after it.
  - The card that served may have a new miner process; every other card must have kept its own.
positional: after, host, served
options:
  _input:
    description: The snapshot before.
    type: dict
    required: true
  after:
    description: The snapshot after.
    type: dict
    required: true
  host:
    description: Name of the host, for the sentences.
    type: str
    required: true
  served:
    description: UUID of the card that served.
    type: str
    required: true
"""

EXAMPLES = """
- name: Fail when a card is not at home
  ansible.builtin.assert:
    that: before | agentic.gpu_fleet.card_faults(after, inventory_hostname, card.uuid) | length == 0
"""

RETURN = """
_value:
  description: One sentence a fault; empty when all is well.
  type: list
  elements: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._acceptance import card_faults


def host_card_faults(before, after, host, served):
    """Judge one host; see DOCUMENTATION."""
    return card_faults({host: before}, {host: after}, (host, served))


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"card_faults": host_card_faults}

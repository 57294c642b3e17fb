# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter fleet_status: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: fleet_status
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Rows that show what every card and host does
description:
  - Turns the results of P(agentic.gpu_fleet.pool_info#module) and P(agentic.gpu_fleet.watchdog_info#module) into rows for two tables.
  - A host that did not answer is shown as such.
options:
  _input:
    description: For each host C(pool) and C(watchdog), the results of the two modules; missing or failed ones are allowed.
    type: dict
    required: true
"""

EXAMPLES = """
- name: Show all cards
  ansible.builtin.debug:
    msg: "{{ (answers | agentic.gpu_fleet.fleet_status).cards | agentic.gpu_fleet.text_table }}"
"""

RETURN = """
_value:
  description: C(cards) and C(hosts), the rows of two tables.
  type: dict
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._status import fleet_status


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"fleet_status": fleet_status}

# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter systemd_units: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: systemd_units
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: What C(systemctl show) says of several units
description:
  - Parses the output of C(systemctl show --property=Id,ActiveState,MainPID UNIT…).
options:
  _input:
    description: The standard output.
    type: str
    required: true
"""

EXAMPLES = """
- name: Show the main process of each unit
  ansible.builtin.debug:
    msg: "{{ shown.stdout | agentic.gpu_fleet.systemd_units }}"
"""

RETURN = """
_value:
  description: A mapping from unit to C(active) (its ActiveState) and C(pid) (its MainPID, 0 for none).
  type: dict
  sample: {gpu-miner@c0.service: {active: active, pid: 1234}}
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._units import parse_units


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"systemd_units": parse_units}

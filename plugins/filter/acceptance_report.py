# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter acceptance_report: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: acceptance_report
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: What an acceptance run found
description:
  - Judges the snapshots that the acceptance playbook took. Pure; the playbook makes the requests.
options:
  _input:
    description:
      - For each host its steps in order, the same on every host. A step has C(trip) and C(answer), or C(what) for one in which nothing may be leased,
        and C(snapshot), what the host showed once it had settled. The first step is the starting point.
    type: dict
    required: true
"""

EXAMPLES = """
- name: Show the faults
  ansible.builtin.debug:
    msg: "{{ (steps | agentic.gpu_fleet.acceptance_report).faults }}"
"""

RETURN = """
_value:
  description: C(faults), one sentence each, empty when all is well, and C(rows), one a trip, for a table.
  type: dict
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._acceptance import report


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"acceptance_report": report}

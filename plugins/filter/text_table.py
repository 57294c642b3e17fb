# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter text_table: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: text_table
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: A plain table for the terminal
description:
  - Left-aligned columns; the keys of the first row are the columns.
options:
  _input:
    description: The rows, all with the same keys.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = """
- name: Show a table
  ansible.builtin.debug:
    msg: "{{ [{'host': 'gpu-a', 'card': 'c0'}] | agentic.gpu_fleet.text_table }}"
"""

RETURN = """
_value:
  description: The lines of the table; empty when there are no rows.
  type: list
  elements: str
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._table import table


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"text_table": table}

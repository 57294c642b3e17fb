# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter smi_cards: see its documentation below."""

from __future__ import annotations

DOCUMENTATION = """
name: smi_cards
author: agentic.gpu_fleet contributors
version_added: 0.1.0
short_description: Cards out of what nvidia-smi prints
description:
  - For hosts that have the driver and nothing of this collection yet; the shape is that of RV(agentic.gpu_fleet.gpu_info#module:cards).
options:
  _input:
    description: Output of C(nvidia-smi --query-gpu=uuid,memory.total,name,pci.bus_id,compute_cap,mig.mode.current --format=csv,noheader,nounits).
    type: str
    required: true
"""

EXAMPLES = """
- name: Show it
  ansible.builtin.debug:
    msg: "{{ smi.stdout | agentic.gpu_fleet.smi_cards }}"
"""

RETURN = """
_value:
  description: One entry a line; a line that cannot be read has C(uuid) null, C(state) and C(message).
  type: list
  elements: dict
"""

from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_discover import smi_cards


class FilterModule:
    """Entry point for Ansible."""

    def filters(self):
        return {"smi_cards": smi_cards}

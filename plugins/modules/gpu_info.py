#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_info
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Read the GPUs of a host through NVML
description:
  - Reads every card that NVML lists, by UUID, and says which of the expected ones are lost.
  - Each question to the driver is a bounded child process, so a hung driver or card cannot hang the play; a lost or hung card hides no healthy one.
  - When NVML as a whole cannot be asked the task fails and RV(fault) says why.
extends_documentation_fragment:
  - agentic.gpu_fleet.attributes.info_module
  - agentic.gpu_fleet.attributes.actiongroup_gpu_fleet
options:
  expected:
    description:
      - UUIDs that the host should have. Those that are not there come back in RV(missing).
    type: list
    elements: str
    default: []
  interpreters:
    description:
      - Python interpreters that may have C(pynvml), the first that exists is used. The collection's services bring their own.
    type: list
    elements: path
    default:
      - /opt/gpu-fleet/gpu-watchdog/bin/python
      - /opt/gpu-fleet/lease-pool/bin/python
  timeout:
    description:
      - Seconds that one question to the driver may take before its process is killed.
    type: float
    default: 10
requirements:
  - Python 3.9 or newer on the host
  - C(nvidia-ml-py) (it brings C(pynvml)) in one of O(interpreters)
"""

EXAMPLES = r"""
- name: Read the cards
  agentic.gpu_fleet.gpu_info:
    expected: "{{ fleet_cards | map(attribute='uuid') }}"
  register: gpus

- name: Refuse to go on without all of them
  ansible.builtin.assert:
    that: gpus.missing | length == 0
    fail_msg: "lost: {{ gpus.missing | map(attribute='uuid') | join(', ') }}"
"""

RETURN = r"""
cards:
  description:
    - One entry a card that NVML lists, in NVML's order. The order is no identity, RV(cards[].uuid) is.
    - A card whose RV(cards[].state) is not V(ok) has only C(index), C(uuid) (null), C(state) and C(message).
  returned: success
  type: list
  elements: dict
  contains:
    uuid:
      description: Identity of the card.
      type: str
      sample: GPU-6a1d9f0e-3c1b-4f0e-9d8a-000000000001
    state:
      description: V(ok), V(lost), V(hung) or V(error).
      type: str
      sample: ok
    message:
      description: What the driver said when RV(cards[].state) is not V(ok).
      type: str
    index:
      description: Place in NVML's order now.
      type: int
      sample: 0
    minor:
      description: N of C(/dev/nvidiaN) now.
      type: int
      sample: 0
    name:
      description: Product name.
      type: str
      sample: NVIDIA GeForce RTX 3060
    pci:
      description: Bus address.
      type: str
      sample: "00000000:01:00.0"
    compute_capability:
      description: CUDA compute capability.
      type: str
      sample: "8.6"
    mig:
      description: Whether MIG is enabled.
      type: bool
      sample: false
    memory_mib:
      description: Memory in MiB.
      type: int
      sample: 12288
    memory_free_mib:
      description: Free memory in MiB.
      type: int
      sample: 9500
    memory_used_mib:
      description: Used memory in MiB.
      type: int
      sample: 2788
    temperature_c:
      description: Temperature in degrees Celsius, null where the card has no such reading.
      type: int
      sample: 61
    power_w:
      description: Power draw in watts, null where the card has no such reading.
      type: float
      sample: 118.5
    utilization_percent:
      description: Load of the last moments, null where the card has no such reading.
      type: int
      sample: 99
    processes:
      description: Compute processes on the card, with their memory in MiB (null where the driver does not say).
      type: list
      elements: dict
      sample: [{pid: 4711, memory_mib: 2764}]
missing:
  description: Cards of O(expected) that are not healthy, with their C(uuid), C(state) (V(lost), V(not_found), V(hung) or V(error)) and C(message).
  returned: success
  type: list
  elements: dict
  sample: [{uuid: GPU-6a1d9f0e-3c1b-4f0e-9d8a-000000000002, state: lost, message: GPU is lost}]
unexpected:
  description: UUIDs of healthy cards that O(expected) does not name; empty when O(expected) is empty.
  returned: success
  type: list
  elements: str
  sample: []
driver_version:
  description: Version of the driver.
  returned: success
  type: str
  sample: "580.95.05"
nvml_version:
  description: Version of the NVML library.
  returned: success
  type: str
  sample: "13.580.95.05"
cuda_version:
  description: Newest CUDA version that the driver supports.
  returned: success
  type: str
  sample: "13.0"
fault:
  description:
    - Why NVML cannot be asked. V(not_loadable), V(driver_mismatch) (a reboot after a driver update is due), V(hung) or V(error).
  returned: failure
  type: str
  sample: driver_mismatch
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._nvml import NvmlFault, find_interpreter, survey

INTERPRETERS = ["/opt/gpu-fleet/gpu-watchdog/bin/python", "/opt/gpu-fleet/lease-pool/bin/python"]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "expected": {"type": "list", "elements": "str", "default": []},
            "interpreters": {"type": "list", "elements": "path", "default": INTERPRETERS},
            "timeout": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        result = survey(find_interpreter(params["interpreters"]), params["timeout"], params["expected"])
    except NvmlFault as fault:
        module.fail_json(msg=str(fault), fault=fault.fault)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

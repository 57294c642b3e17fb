#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: watchdog_info
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Read what a host's GPU watchdog sees and what holds it back
description:
  - Reads the phase of the watchdog, the cards as it last saw them, what it would do next, and every reason that speaks against a reboot now.
  - The driver is not asked; the watchdog's own latest look is shown.
extends_documentation_fragment:
  - agentic.gpu_fleet.attributes.info_module
  - agentic.gpu_fleet.attributes.actiongroup_gpu_fleet
options:
  config:
    description: The watchdog's configuration on the host.
    type: path
    default: /etc/gpu-fleet/watchdog.toml
  command:
    description: The watchdog's command on the host.
    type: path
    default: /usr/local/bin/gpu-watchdog
seealso:
  - module: agentic.gpu_fleet.watchdog_ack
"""

EXAMPLES = r"""
- name: Read the watchdog
  agentic.gpu_fleet.watchdog_info:
  become: true
  register: watchdog

- name: Refuse to go on while a host is locked out
  ansible.builtin.assert:
    that: watchdog.status.phase != 'locked_out'
    fail_msg: "{{ watchdog.status.locked_reason }}"
"""

RETURN = r"""
status:
  description:
    - What C(gpu-watchdog status --json) says. Times are RFC 3339 UTC, durations seconds.
    - C(phase) is one of V(healthy), V(suspect), V(confirmed), V(draining), V(rebooting), V(verifying), V(locked_out).
    - C(cards) has per card its C(slot), C(uuid), C(pci), how it was C(seen), C(misses) in a row and C(signal), whether the kernel log named it.
    - C(holds) are the reasons against a reboot now, each with a stable C(code) and a C(reason).
  returned: success
  type: dict
  sample:
    host: gpu-a
    phase: healthy
    phase_s: 3600.0
    locked_reason: null
    dry_run: false
    observed_at: "2026-11-30T02:00:01Z"
    observed_s: 4.2
    probe: ok
    probe_detail: ""
    cards:
      - {slot: c0, uuid: GPU-1b2c, pci: "00000000:01:00.0", seen: ok, detail: "", misses: 0, signal: false}
    pool_unit: active
    leases: 0
    peers: null
    maintenance: null
    reboots_in_window: 0
    max_reboots: 2
    cooldown_left_s: 0.0
    alerts_waiting: 0
    next: nothing
    holds: []
    confirmed: []
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._watchdog import WatchdogCommand, WatchdogError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "path", "default": "/etc/gpu-fleet/watchdog.toml"},
            "command": {"type": "path", "default": "/usr/local/bin/gpu-watchdog"},
        },
        supports_check_mode=True,
    )
    watchdog = WatchdogCommand(
        lambda argv: module.run_command(argv, handle_exceptions=False), module.params["command"], module.params["config"]
    )
    try:
        status = watchdog.status()
    except WatchdogError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, status=status)


if __name__ == "__main__":
    main()

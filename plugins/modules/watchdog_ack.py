#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: watchdog_ack
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Let a locked-out GPU watchdog go on
description:
  - A watchdog whose reboot did not bring every card back, or that rebooted too often, is locked out until a person says that the host was looked at.
  - The reason is kept on the host beside the watchdog's state. The cooldown since the latest reboot goes on.
  - A watchdog that is not locked out is left as it is.
extends_documentation_fragment:
  - agentic.gpu_fleet.attributes
  - agentic.gpu_fleet.attributes.actiongroup_gpu_fleet
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  reason:
    description: What was done about the host; not empty.
    type: str
    required: true
  config:
    description: The watchdog's configuration on the host.
    type: path
    default: /etc/gpu-fleet/watchdog.toml
  command:
    description: The watchdog's command on the host.
    type: path
    default: /usr/local/bin/gpu-watchdog
seealso:
  - module: agentic.gpu_fleet.watchdog_info
"""

EXAMPLES = r"""
- name: The riser was reseated
  agentic.gpu_fleet.watchdog_ack:
    reason: riser of c0 reseated
  become: true
"""

RETURN = r"""
was:
  description: The phase before.
  returned: success
  type: str
  sample: locked_out
phase:
  description: The phase after; in check mode, the predicted one.
  returned: success
  type: str
  sample: healthy
locked_reason:
  description: Why the host was locked out, or null when it was not.
  returned: success
  type: str
  sample: the reboot did not bring back everything within 600 s, c0 vanished
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._watchdog import WatchdogCommand, WatchdogError


def _acknowledge(watchdog: WatchdogCommand, reason: str, check_mode: bool) -> t.Dict[str, t.Any]:
    before = watchdog.status()
    was, locked_reason = before["phase"], before["locked_reason"]
    if was != "locked_out":
        return {"changed": False, "was": was, "phase": was, "locked_reason": None}
    after = {"changed": True, "phase": "healthy"} if check_mode else watchdog.ack(reason)
    return {"changed": after["changed"], "was": was, "phase": after["phase"], "locked_reason": locked_reason}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "reason": {"type": "str", "required": True},
            "config": {"type": "path", "default": "/etc/gpu-fleet/watchdog.toml"},
            "command": {"type": "path", "default": "/usr/local/bin/gpu-watchdog"},
        },
        supports_check_mode=True,
    )
    reason = module.params["reason"].strip()
    if not reason:
        module.fail_json(msg="reason: expected what was done about the host, found an empty text")
    watchdog = WatchdogCommand(
        lambda argv: module.run_command(argv, handle_exceptions=False), module.params["command"], module.params["config"]
    )
    try:
        result = _acknowledge(watchdog, reason, module.check_mode)
    except WatchdogError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result, diff={"before": {"phase": result["was"]}, "after": {"phase": result["phase"]}})


if __name__ == "__main__":
    main()

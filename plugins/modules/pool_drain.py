#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: pool_drain
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Drain a host's lease pool or one card, or put it back into service
description:
  - A drained pool gives no new lease, answers queued requests with 503 and lets running ones finish; its cards go on mining.
  - A drained card gives no new lease and its miner is stopped too, over restarts and reboots, until it is resumed.
  - Resuming a card also lifts its quarantine. A quarantined card is out of service already, so draining it changes nothing.
extends_documentation_fragment:
  - agentic.gpu_fleet.pool
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
  state:
    description:
      - V(drained) takes the pool or the card out of service, V(active) puts it back.
    type: str
    choices: [drained, active]
    required: true
  card:
    description:
      - UUID or slot of one card. Without it the whole pool is meant.
    type: str
  reason:
    description:
      - Kept with a new drain and shown in the status. A pool or card that is drained already keeps the reason it has.
    type: str
  wait:
    description:
      - Seconds to wait until running requests have ended (V(drained)) or the card is back (V(active)); the task fails when they pass, and the drain stays.
      - V(0) does not wait.
    type: float
    default: 0
seealso:
  - module: agentic.gpu_fleet.pool_info
"""

EXAMPLES = r"""
- name: Drain the host before a rollout, and let running requests finish
  agentic.gpu_fleet.pool_drain:
    state: drained
    reason: rollout
    wait: 120
  become: true

- name: Take one card out of service
  agentic.gpu_fleet.pool_drain:
    state: drained
    card: GPU-6a1d9f0e-3c1b-4f0e-9d8a-000000000001
    reason: fan replaced
  become: true

- name: Put it back, quarantined or drained
  agentic.gpu_fleet.pool_drain:
    state: active
    card: c0
    wait: 30
  become: true
"""

RETURN = r"""
draining:
  description: Whether the pool is draining now; in check mode, whether it would be.
  returned: success
  type: bool
  sample: true
card:
  description: The card as the pool shows it afterwards; in check mode its O(state) is the predicted one.
  returned: when O(card) is given
  type: dict
  sample: {slot: c0, uuid: GPU-1b2c, memory_mib: 12288, state: drained, reason: fan replaced, lease: null}
leases:
  description: Leases that were still held when the module returned.
  returned: success
  type: list
  elements: dict
  sample: []
waited_s:
  description: Seconds waited.
  returned: success
  type: float
  sample: 3.2
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._pool_client import PoolClient, PoolError
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._pool_drain import drain_or_resume


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "socket": {"type": "path", "default": "/run/gpu-fleet/pool.sock"},
            "timeout": {"type": "float", "default": 10},
            "state": {"type": "str", "choices": ["drained", "active"], "required": True},
            "card": {"type": "str"},
            "reason": {"type": "str"},
            "wait": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["wait"] < 0:
        module.fail_json(msg=f"wait: found {params['wait']:g}, expected 0 or more seconds")
    client = PoolClient(params["socket"], params["timeout"])
    try:
        result = drain_or_resume(
            client,
            params["state"] == "drained",
            params["card"],
            params["reason"],
            wait_s=params["wait"],
            check_mode=module.check_mode,
        )
    except PoolError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()

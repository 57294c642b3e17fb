#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: pool_info
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Read what a host's lease pool does
description:
  - Reads the cards, leases and, when asked, the journal of the lease pool of the host over its admin socket.
  - Reading starts no worker and takes no lease.
extends_documentation_fragment:
  - agentic.gpu_fleet.pool
  - agentic.gpu_fleet.attributes.info_module
  - agentic.gpu_fleet.attributes.actiongroup_gpu_fleet
options:
  events_since:
    description:
      - Also read the journal, from this time on (RFC 3339), or V(0) for all that is kept.
      - Without it the journal is not read.
    type: str
seealso:
  - module: agentic.gpu_fleet.pool_drain
"""

EXAMPLES = r"""
- name: Read the pool
  agentic.gpu_fleet.pool_info:
  become: true
  register: pool

- name: Refuse to go on while a card is leased
  ansible.builtin.assert:
    that: pool.leases | length == 0

- name: Read what happened since a request was sent
  agentic.gpu_fleet.pool_info:
    events_since: "2026-11-30T02:00:00Z"
  become: true
"""

RETURN = r"""
status:
  description:
    - The pool's answer to C(GET /status), unchanged.
    - Per card its C(slot), C(uuid), C(memory_mib), C(state), C(reason) and C(lease); times are RFC 3339 UTC.
  returned: success
  type: dict
  sample:
    version: 0.1.0
    draining: false
    queue: 0
    cards:
      - {slot: c0, uuid: GPU-1b2c, memory_mib: 12288, state: mining, reason: null, lease: null}
    models:
      - {name: granite-4.2-8b, aliases: [t3-code], endpoints: [chat, responses]}
cards:
  description: The same cards, by UUID.
  returned: success
  type: dict
  sample: {GPU-1b2c: {slot: c0, uuid: GPU-1b2c, memory_mib: 12288, state: mining, reason: null, lease: null}}
leases:
  description: The leases held now.
  returned: success
  type: list
  elements: dict
  sample: []
events:
  description: The journal since O(events_since), oldest first; C(seconds) are durations in seconds.
  returned: when O(events_since) is given
  type: list
  elements: dict
  sample:
    - time: "2026-11-30T02:00:01Z"
      event: released
      card: GPU-1b2c
      seconds: {queued: 0.0, freeing: 0.2, loading: 1.1, serving: 0.4, returning: 0.5, idle_workload_off: 2.3}
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._pool_client import PoolClient, PoolError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "socket": {"type": "path", "default": "/run/gpu-fleet/pool.sock"},
            "timeout": {"type": "float", "default": 10},
            "events_since": {"type": "str"},
        },
        supports_check_mode=True,
    )
    client = PoolClient(module.params["socket"], module.params["timeout"])
    try:
        status = client.status()
        result: t.Dict[str, t.Any] = {
            "status": status,
            "cards": {card["uuid"]: card for card in status["cards"]},
            "leases": client.leases(),
        }
        if module.params["events_since"] is not None:
            result["events"] = client.events(module.params["events_since"])
    except PoolError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

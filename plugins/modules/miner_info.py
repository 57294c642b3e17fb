#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: miner_info
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Read whether a miner really mines
description:
  - Reads a miner's HTTP summary on the host and returns its hashrate and the age of its last accepted share.
  - These two tell a working miner from one that merely runs.
  - A miner that does not answer is a result (RV(reachable=false)), not a failure of the task, since a card that serves a request has no miner.
extends_documentation_fragment:
  - agentic.gpu_fleet.attributes.info_module
  - agentic.gpu_fleet.attributes.actiongroup_gpu_fleet
options:
  url:
    description:
      - The miner's summary, usually on loopback.
    type: str
    default: http://127.0.0.1:4068/summary
  paths:
    description:
      - Dotted paths into the summary for a miner whose names are not known, an index for a list element, for instance C(gpus.0.rate).
      - Names are V(hashrate), V(accepted), V(rejected), V(share_age_s) (seconds), V(last_share) (Unix seconds), V(pid) and V(uptime_s).
    type: dict
    default: {}
  timeout:
    description:
      - Seconds that the miner has to answer.
    type: float
    default: 5
requirements:
  - Python 3.9 or newer on the host
"""

EXAMPLES = r"""
- name: Read the first card's miner
  agentic.gpu_fleet.miner_info:
    url: http://127.0.0.1:4068/summary
  register: miner
  until: miner.hashing
  retries: 20
  delay: 1

- name: Read a miner with names of its own
  agentic.gpu_fleet.miner_info:
    url: http://127.0.0.1:4069/stats
    paths:
      hashrate: gpus.0.rate
      last_share: gpus.0.last_ok
"""

RETURN = r"""
reachable:
  description: Whether the miner answered with a summary.
  returned: success
  type: bool
  sample: true
message:
  description: Why it is not reachable, else null.
  returned: success
  type: str
hashing:
  description: Whether it is reachable with a hashrate above 0.
  returned: success
  type: bool
  sample: true
hashrate:
  description: Hashrate in the miner's own unit, null when it gives none.
  returned: success
  type: float
  sample: 51300000
share_age_s:
  description: Seconds since the last accepted share, null when there was none or the miner does not say.
  returned: success
  type: float
  sample: 4.2
accepted:
  description: Accepted shares, null when it does not say.
  returned: success
  type: int
  sample: 118
rejected:
  description: Rejected shares, null when it does not say.
  returned: success
  type: int
  sample: 0
pid:
  description: The miner's process, null when it does not say.
  returned: success
  type: int
  sample: 4711
uptime_s:
  description: Seconds it has run, null when it does not say.
  returned: success
  type: float
  sample: 3600
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._miner import KNOWN, MinerError, facts, fetch


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": "http://127.0.0.1:4068/summary"},
            "paths": {"type": "dict", "default": {}},
            "timeout": {"type": "float", "default": 5},
        },
        supports_check_mode=True,
    )
    unknown = sorted(set(module.params["paths"]) - set(KNOWN))
    if unknown:
        module.fail_json(msg=f"paths: found {', '.join(unknown)}, expected only {', '.join(KNOWN)}")
    summary: t.Dict[str, t.Any] = {}
    message = None
    try:
        summary = fetch(module.params["url"], module.params["timeout"])
    except MinerError as error:
        message = f"{module.params['url']}: {error}"
    found = facts(summary, module.params["paths"])
    module.exit_json(
        changed=False, reachable=message is None, message=message, hashing=bool(found["hashrate"] and found["hashrate"] > 0), **found
    )


if __name__ == "__main__":
    main()

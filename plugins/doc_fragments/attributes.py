# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What a module of this collection says about check mode, diff and idempotence."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return the predicted change without making it.
  diff_mode:
    description: Returns what changed, or would change, with C(--diff).
  idempotent:
    description: A second run with the same options changes nothing.
"""

    # for modules that only read
    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return the predicted change without making it.
    support: full
    details: The module only reads.
  diff_mode:
    description: Returns what changed, or would change, with C(--diff).
    support: N/A
    details: The module changes nothing.
  idempotent:
    description: A second run with the same options changes nothing.
    support: full
    details: The module changes nothing.
"""

    ACTIONGROUP_GPU_FLEET = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/agentic.gpu_fleet.gpu_fleet) in C(module_defaults) to set defaults for this module.
    support: full
    membership:
      - agentic.gpu_fleet.gpu_fleet
"""

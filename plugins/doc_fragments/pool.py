# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""How a module reaches the lease pool of a host."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  socket:
    description:
      - The pool's admin socket on the host. Its file mode decides who may use it, so the module usually runs with C(become).
    type: path
    default: /run/gpu-fleet/pool.sock
  timeout:
    description:
      - Seconds that one answer of the pool may take.
    type: float
    default: 10
requirements:
  - Python 3.9 or newer on the host
"""

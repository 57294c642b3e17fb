#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: gguf_info
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Read the header of a GGUF model file
description:
  - Reads what a catalog needs to know of a model file on the host, without loading it. The header is read within bounds, the tensors are not read at all.
  - RV(weights_mib) and RV(kv_bytes_per_token) are the catalog's variables of the same name; RV(memory_mib) is what the model needs on a card at O(context).
extends_documentation_fragment:
  - agentic.gpu_fleet.attributes.info_module
  - agentic.gpu_fleet.attributes.actiongroup_gpu_fleet
options:
  path:
    description:
      - The model file.
    type: path
    required: true
  context:
    description:
      - Tokens of context for RV(memory_mib); the trained context by default.
    type: int
  parallel:
    description:
      - Requests with O(context) each that share the KV cache.
    type: int
    default: 1
  cache_type:
    description:
      - Type of the KV cache's elements.
    type: str
    choices: [f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl]
    default: f16
  overhead_mib:
    description:
      - MiB for what is neither weights nor KV cache (the CUDA context and compute buffers).
    type: int
    default: 512
requirements:
  - Python 3.9 or newer on the host
"""

EXAMPLES = r"""
- name: Read a model's header
  agentic.gpu_fleet.gguf_info:
    path: /var/lib/gpu-fleet/models/granite-4.2-8b-Q4_K_M.gguf
    context: 65536
    cache_type: q8_0
  register: model

- name: Refuse a context that the model was not trained for
  ansible.builtin.assert:
    that: model.trained_context >= 65536
"""

RETURN = r"""
architecture:
  description: Architecture in the header; V(clip) is a vision or audio projector.
  returned: success
  type: str
  sample: gemma3
name:
  description: The model's name in the header, null when it has none.
  returned: success
  type: str
  sample: Gemma 3 270m
size_label:
  description: Size in the header, null when it has none.
  returned: success
  type: str
  sample: 270M
file_type:
  description: Quantization of most weights, null when the header does not say or the number is not known.
  returned: success
  type: str
  sample: Q4_K_M
layers:
  description: Number of layers, null for a projector.
  returned: success
  type: int
  sample: 18
trained_context:
  description: Tokens of context that the model was trained for, null when the header does not say.
  returned: success
  type: int
  sample: 32768
embedding_length:
  description: Width of the model, and of its embeddings, null when the header does not say.
  returned: success
  type: int
  sample: 640
sliding_window:
  description: Tokens that some layers look back, null for models without a sliding window.
  returned: success
  type: int
  sample: 512
projector:
  description: Whether the file is a projector (C(mmproj)), not a language model.
  returned: success
  type: bool
  sample: false
kv_bytes_per_token:
  description:
    - Bytes of KV cache a token at f16, null for a projector.
    - An upper bound for models with a sliding window.
  returned: success
  type: int
  sample: 18432
bytes:
  description: Size of the file in bytes.
  returned: success
  type: int
  sample: 253113024
weights_mib:
  description: Size of the file in MiB, rounded up, what its weights take on a card.
  returned: success
  type: int
  sample: 242
context:
  description: Tokens of context that RV(memory_mib) is for, null for a projector without O(context).
  returned: success
  type: int
  sample: 32768
memory_mib:
  description: MiB on a card, weights and KV cache and overhead together.
  returned: success
  type: int
  sample: 1330
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._catalog_memory import CACHE_SIZE, DEFAULT_OVERHEAD_MIB, MIB, kv_mib
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._gguf import GgufError, facts, read_header


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "context": {"type": "int"},
            "parallel": {"type": "int", "default": 1},
            "cache_type": {"type": "str", "choices": list(CACHE_SIZE), "default": "f16"},
            "overhead_mib": {"type": "int", "default": DEFAULT_OVERHEAD_MIB},
        },
        supports_check_mode=True,
    )
    params = module.params
    for name, least in (("context", 1), ("parallel", 1), ("overhead_mib", 0)):
        if params[name] is not None and params[name] < least:
            module.fail_json(msg=f"{name}: found {params[name]}, expected {least} or more")
    try:
        found = facts(read_header(params["path"]))
    except GgufError as error:
        module.fail_json(msg=f"{params['path']}: {error}")
    except OSError as error:
        module.fail_json(msg=f"{params['path']}: {error.strerror}")
    context = params["context"] or found["trained_context"]
    weights = -(-found["bytes"] // MIB)
    cache = kv_mib(found["kv_bytes_per_token"] or 0, params["cache_type"], context or 0, params["parallel"])
    module.exit_json(changed=False, context=context, weights_mib=weights, memory_mib=weights + cache + params["overhead_mib"], **found)


if __name__ == "__main__":
    main()

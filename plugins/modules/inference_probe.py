#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_probe
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Send one real request to a gateway or pool and check the answer
description:
  - Sends one chat, stream, vision, embedding, completion, responses or rerank request and waits for the whole answer.
  - Says what came, when, and which card served it.
  - The task fails when the status is not an expected one, when a stream ends without C([DONE]) or carries an error event, and when an answer is empty.
  - Such a request borrows a card. O(kind=models) reads the list of models and borrows none.
extends_documentation_fragment:
  - agentic.gpu_fleet.attributes
  - agentic.gpu_fleet.attributes.actiongroup_gpu_fleet
attributes:
  check_mode:
    support: full
    details: Sends nothing and is skipped, since a request would take a card from its miner.
  diff_mode:
    support: N/A
    details: The module changes nothing.
  idempotent:
    support: N/A
    details: The module changes nothing; each run sends one request.
options:
  url:
    description:
      - Base URL of the gateway or pool, with or without C(/v1).
    type: str
    required: true
  socket:
    description:
      - Unix socket to send to instead of the host in O(url).
    type: path
  kind:
    description:
      - What to ask for.
    type: str
    choices: [chat, stream, vision, embedding, completion, responses, rerank, models]
    default: chat
  model:
    description:
      - Alias or model name. Required unless O(kind=models).
    type: str
  prompt:
    description:
      - The user's message, or the text to embed.
    type: str
    default: Answer with one word. What do idle cards do?
  image:
    description:
      - PNG image in base64 for O(kind=vision); a red square by default.
    type: str
  max_tokens:
    description:
      - Longest answer in tokens.
    type: int
    default: 16
  dimensions:
    description:
      - Dimensions to ask an embedding for.
    type: int
  extra_body:
    description:
      - Further keys of the request's JSON body.
    type: dict
    default: {}
  api_key:
    description:
      - Bearer token. It is sent in a header and appears nowhere else.
    type: str
  headers:
    description:
      - Further request headers, for instance C(x-data-class).
    type: dict
    default: {}
  expected_status:
    description:
      - HTTP statuses that count as success. Name others for a request that must be refused.
    type: list
    elements: int
    default: [200]
  timeout:
    description:
      - Seconds that the whole exchange may take, queue and model load included.
    type: float
    default: 300
  validate_certs:
    description:
      - Verify the server's certificate when O(url) is C(https).
    type: bool
    default: true
requirements:
  - Python 3.9 or newer on the host
"""

EXAMPLES = r"""
- name: Ask the gateway for a short answer
  agentic.gpu_fleet.inference_probe:
    url: http://127.0.0.1:4000
    model: t4-router
    api_key: "{{ fleet_acceptance_key }}"
  register: answer

- name: Stream from one host's pool
  agentic.gpu_fleet.inference_probe:
    url: "http://{{ fleet_address }}:9100/v1"
    kind: stream
    model: t4-router
    api_key: "{{ fleet_pool_token }}"

- name: A developer may not call an operator's node alias
  agentic.gpu_fleet.inference_probe:
    url: http://127.0.0.1:4000
    model: gpu-a/t3-code
    api_key: "{{ developer_key }}"
    expected_status: [401, 403]
"""

RETURN = r"""
status:
  description: HTTP status of the answer.
  returned: when an answer came
  type: int
  sample: 200
answer:
  description: The text; of a stream, all its chunks put together; empty for embeddings and rerank.
  returned: when the status is 200
  type: str
  sample: They mine.
finish_reason:
  description: Why the text ended.
  returned: when the status is 200 and the answer is text
  type: str
  sample: stop
usage:
  description: Tokens, as the server counted them.
  returned: when the status is 200 and the server counted
  type: dict
  sample: {prompt_tokens: 12, completion_tokens: 4, total_tokens: 16}
models:
  description: Names in the list of models.
  returned: when O(kind=models) and the status is 200
  type: list
  elements: str
  sample: [t3-code, t4-router]
dimensions:
  description: Length of the embedding.
  returned: when O(kind=embedding) and the status is 200
  type: int
  sample: 640
norm:
  description: Euclidean length of the embedding.
  returned: when O(kind=embedding) and the status is 200
  type: float
  sample: 1.0
scores:
  description: Relevance of an unrelated text and of the prompt itself, in this order.
  returned: when O(kind=rerank) and the status is 200
  type: list
  elements: float
  sample: [-3.1, 7.4]
chunks:
  description: Data events of the stream, without C([DONE]) and errors.
  returned: when O(kind=stream) and the status is 200
  type: int
  sample: 14
pings:
  description: Ping comments of the stream.
  returned: when O(kind=stream) and the status is 200
  type: int
  sample: 0
done:
  description: Whether C([DONE]) came.
  returned: when O(kind=stream) and the status is 200
  type: bool
  sample: true
card:
  description: UUID of the card that served, null when the answer does not say.
  returned: when an answer came
  type: str
  sample: GPU-6a1d9f0e-3c1b-4f0e-9d8a-000000000001
lease:
  description: The lease it served under, null when the answer does not say.
  returned: when an answer came
  type: str
  sample: 01JD4Z
queued_ms:
  description: Milliseconds in the queue, null when the answer does not say.
  returned: when an answer came
  type: float
  sample: 0
load_ms:
  description: Milliseconds until the worker was ready, null when the answer does not say.
  returned: when an answer came
  type: float
  sample: 1312
seconds:
  description: Seconds from sending to the answer's headers, to a stream's first chunk (C(first_byte)) and to the end (C(total)).
  returned: when an answer came
  type: dict
  sample: {headers: 1.402, first_byte: 1.431, total: 1.62}
headers:
  description: Response headers that begin with C(x-), and C(retry-after), in lower case.
  returned: when an answer came
  type: dict
  sample: {x-gpu-fleet-card: GPU-6a1d9f0e-3c1b-4f0e-9d8a-000000000001}
error:
  description: The error object of a refusal or of a stream's error event.
  returned: when the server sent one
  type: dict
  sample: {message: the queue is full, type: rate_limit_error, param: null, code: queue_full}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._inference import PATHS, ProbeError, Request, faults_of, send


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "socket": {"type": "path"},
            "kind": {"type": "str", "choices": list(PATHS), "default": "chat"},
            "model": {"type": "str"},
            "prompt": {"type": "str", "default": "Answer with one word. What do idle cards do?"},
            "image": {"type": "str"},
            "max_tokens": {"type": "int", "default": 16, "no_log": False},
            "dimensions": {"type": "int"},
            "extra_body": {"type": "dict", "default": {}},
            "api_key": {"type": "str", "no_log": True},
            "headers": {"type": "dict", "default": {}},
            "expected_status": {"type": "list", "elements": "int", "default": [200]},
            "timeout": {"type": "float", "default": 300},
            "validate_certs": {"type": "bool", "default": True},
        },
        required_if=[("kind", kind, ["model"]) for kind in PATHS if kind != "models"],
        supports_check_mode=True,
    )
    params = dict(module.params)
    expected_status = params.pop("expected_status")
    params["model"] = params["model"] or ""
    params["headers"] = {name: str(value) for name, value in params["headers"].items()}
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="nothing is sent in check mode: a request would take a card from its miner")
    who = f"{params['kind']} {params['model']} at {params['url']}".replace("  ", " ")
    try:
        result = send(Request(**params))
    except ProbeError as error:
        module.fail_json(msg=f"{who}: {error}")
    faults = faults_of(params["kind"], result, expected_status)
    if faults:
        module.fail_json(msg=f"{who}: {'; '.join(faults)}", **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()

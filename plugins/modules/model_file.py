#!/usr/bin/python
# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)

from __future__ import annotations

DOCUMENTATION = r"""
module: model_file
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: Keep a model file present on a host
description:
  - Fetches a large file, verifies its SHA-256 and puts it at its place in one step. An interrupted download goes on where it ended.
  - The free space is checked before anything is written.
  - A file that was verified once is read again only when its size or modification time changed, or with O(verify=always).
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
  url:
    description:
      - Where the file is, C(https://), C(http://) or C(file://) on the host.
    type: str
    required: true
  path:
    description:
      - Where it shall be. The folder must exist.
    type: path
    required: true
  sha256:
    description:
      - Its SHA-256 in hexadecimal.
    type: str
    required: true
  token:
    description:
      - Bearer token for the download.
    type: str
  reserve_mib:
    description:
      - MiB that stay free on the file system.
    type: int
    default: 1024
  verify:
    description:
      - V(changed) trusts a file that was verified and not changed since, V(always) reads it.
    type: str
    choices: [changed, always]
    default: changed
  timeout:
    description:
      - Seconds without a byte after which the download is given up.
    type: int
    default: 60
requirements:
  - Python 3.9 or newer on the host
"""

EXAMPLES = r"""
- name: Keep a model present
  agentic.gpu_fleet.model_file:
    url: https://models.example.com/granite-4.2-8b-Q4_K_M.gguf
    path: /var/lib/gpu-fleet/models/granite-4.2-8b-Q4_K_M.gguf
    sha256: "{{ granite_sha256 }}"
"""

RETURN = r"""
path:
  description: Where the file is.
  returned: success
  type: str
  sample: /var/lib/gpu-fleet/models/granite-4.2-8b-Q4_K_M.gguf
downloaded:
  description: Bytes fetched by this run.
  returned: success
  type: int
  sample: 4944000000
resumed_at:
  description: Bytes that an earlier run had fetched already.
  returned: success
  type: int
  sample: 0
"""

import os
import re
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._model_file import ModelFileError, Opener, fetch, is_current, note_verified


def opener(token: t.Optional[str], timeout: int) -> Opener:
    """Open a URL at an offset, by Ansible's own client (proxies, certificates, file://)."""

    def open_at(url: str, offset: int) -> t.Tuple[t.Any, int, t.Optional[int]]:
        if url.startswith("file://"):  # no ranges there: from the beginning
            file = open_url(url)
            return file, 200, int(file.headers["Content-Length"])
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            answer = open_url(url, headers=headers, timeout=timeout, decompress=False)
        except OSError as error:
            if offset and getattr(error, "code", None) == 416:  # nothing is left to fetch, or the part is too long
                return open_at(url, 0)
            raise
        left = answer.headers.get("Content-Length")
        return answer, answer.status, None if left is None else int(left) + (offset if answer.status == 206 else 0)

    return open_at


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "token": {"type": "str", "no_log": True},
            "reserve_mib": {"type": "int", "default": 1024},
            "verify": {"type": "str", "choices": ["changed", "always"], "default": "changed"},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    params = module.params
    path, sha256 = params["path"], params["sha256"].lower()
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        module.fail_json(msg=f"sha256: found {params['sha256']}, expected 64 hexadecimal digits")
    if not re.match("(https?|file)://", params["url"]):
        module.fail_json(msg=f"url: found {params['url']}, expected http://, https:// or file://")
    result: t.Dict[str, t.Any] = {"changed": False, "path": path, "downloaded": 0, "resumed_at": 0}
    try:
        if not is_current(path, sha256, params["verify"] == "always"):
            result.update(changed=True, diff={"before": {"present": os.path.exists(path)}, "after": {"present": True, "sha256": sha256}})
            if not module.check_mode:
                result.update(fetch(params["url"], path, sha256, params["reserve_mib"], opener(params["token"], params["timeout"])))
                os.chmod(path, 0o644)
        if not module.check_mode:
            note_verified(path, sha256)
    except (ModelFileError, OSError, ValueError) as error:
        module.fail_json(msg=f"{params['url']} to {path}: {error}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()

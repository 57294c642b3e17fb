# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Lookup: one digest for a file or a tree of sources on the controller."""

from __future__ import annotations

DOCUMENTATION = """
name: tree_sha256
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: One SHA-256 over a file or a tree of files
description:
  - Hashes names and contents of all files below a path on the controller, in sorted order.
  - Compiled files, hidden folders and build leftovers do not count, so the same sources give the same digest everywhere.
options:
  _terms:
    description: Files or folders on the controller.
    type: list
    elements: path
    required: true
"""

EXAMPLES = """
- name: Show the digest of the pool's sources
  ansible.builtin.debug:
    msg: "{{ lookup('agentic.gpu_fleet.tree_sha256', playbook_dir ~ '/../src/lease_pool') }}"
"""

RETURN = """
_raw:
  description: One hexadecimal digest a term.
  type: list
  elements: str
"""

from pathlib import Path

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._sources import sources_sha256


class LookupModule(LookupBase):
    """Entry point for Ansible."""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        try:
            return [sources_sha256(Path(term).resolve()) for term in terms]
        except OSError as exc:
            raise AnsibleLookupError(f"tree_sha256: cannot read {exc}") from exc

# Copyright: agentic.gpu_fleet contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Lookup: a tree of sources on the controller as one archive, to copy in one go."""

from __future__ import annotations

DOCUMENTATION = """
name: source_archive
author: agentic.gpu_fleet contributors (@agentic)
version_added: 0.1.0
short_description: A tree of sources packed into one archive
description:
  - Packs the files that P(agentic.gpu_fleet.tree_sha256#lookup) counts into a reproducible C(.tar.gz) with one top folder, as pip installs it.
  - The archive lies in the temporary folder of the running Ansible command, which removes it at its end.
options:
  _terms:
    description: Folders on the controller.
    type: list
    elements: path
    required: true
"""

EXAMPLES = """
- name: Copy the pool's sources to the host
  ansible.builtin.copy:
    src: "{{ lookup('agentic.gpu_fleet.source_archive', playbook_dir ~ '/../src/lease_pool') }}"
    dest: /tmp/lease_pool.tar.gz
    mode: "0644"
"""

RETURN = """
_raw:
  description: Path of the archive on the controller, one a term.
  type: list
  elements: path
"""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from ansible import constants as C
from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.agentic.gpu_fleet.plugins.module_utils._sources import sources_archive


class LookupModule(LookupBase):
    """Entry point for Ansible."""

    def run(self, terms, variables=None, **kwargs):
        self.set_options(var_options=variables, direct=kwargs)
        try:
            return [_pack(Path(term).resolve()) for term in terms]
        except OSError as exc:
            raise AnsibleLookupError(f"source_archive: cannot pack {exc}") from exc


def _pack(root):
    """Write the archive completely before it gets its name: several hosts' workers may ask for it at once."""
    target = Path(C.DEFAULT_LOCAL_TMP) / f"{root.name}.tar.gz"
    with NamedTemporaryFile(dir=C.DEFAULT_LOCAL_TMP, delete=False) as file:
        file.write(sources_archive(root))
    os.replace(file.name, target)
    return str(target)

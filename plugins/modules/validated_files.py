#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.validated_files."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: validated_files
short_description: Put a set of files in place together, once their program accepts them
version_added: 0.1.0
description:
  - Writes all files of a configuration in one task. Before any of them is put in place, the program that will read
    them is shown the whole set in a folder of its own. When it refuses, nothing is changed, and the error is one line
    that names the file and the variable from which it was made.
  - Each file is replaced in one step, and all of them at the same moment. What a killed run has left is finished by
    the next.
options:
  path:
    description: The folder of the files. It and the folders in it are made where they are missing, with mode 0755.
    type: path
    required: true
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Where it is, below O(path).
        type: str
        required: true
      content:
        description:
          - The whole content; a newline is added at its end where there is none.
          - It does not show in Ansible's output, apart from the diff.
        type: str
        required: true
      mode:
        description: Its mode, as an octal number in quotes.
        type: str
        default: "0644"
      owner:
        description: Its owner.
        type: str
        default: root
      group:
        description: Its group.
        type: str
        default: root
      source:
        description: From what it was made, such as the name of a variable, for an error that concerns this file.
        type: str
        default: ""
      force:
        description:
          - Whether a file that is there already is replaced. With V(false) it is made once, and then somebody else's.
        type: bool
        default: true
  purge:
    description:
      - Patterns of paths below O(path), such as V(rules/*.yml). Files that match one and are not in O(files) are
        removed. Folders never are.
    type: list
    elements: str
    default: []
  validate:
    description:
      - A program and its arguments that must end with 0. It is asked on every run, since it may be another version
        than the one that accepted the files.
      - V(%s) stands for the folder that holds the candidates under their own names, next to links to whatever else is
        in their folders. Paths in the files should be relative, or the program looks at what is in place already.
      - In check mode a program that is not there is overlooked, because a task before would have installed it.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: The candidates are validated in check mode too. Works on a node on which the owner is not there yet.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Put Prometheus' configuration in place
  pcluster.postboot.validated_files:
    path: /etc/prometheus
    files:
      - path: prometheus.yml
        content: "{{ lookup('ansible.builtin.template', 'prometheus.yml.j2') }}"
        mode: "0640"
        group: prometheus
        source: prometheus_scrape_configs
      - path: rules/nodes.yml
        content: "{{ lookup('ansible.builtin.file', 'nodes.yml') }}"
        source: nodes.yml
    purge: [rules/*.yml]
    validate: [/usr/local/bin/promtool, check, config, "%s/prometheus.yml"]

- name: Put a program in place that its interpreter can read
  pcluster.postboot.validated_files:
    path: /usr/local/libexec
    files:
      - path: count-things
        content: "{{ lookup('ansible.builtin.file', 'count_things.py') }}"
        mode: "0755"
    validate: [/usr/bin/python3, -I, "%s/count-things", --help]
"""

RETURN = r"""
written:
  description: The files that were written, or in check mode would be, relative to the folder.
  type: list
  elements: str
  returned: success
  sample: [prometheus.yml, rules/nodes.yml]
removed:
  description: The files that were removed, or in check mode would be, relative to the folder.
  type: list
  elements: str
  returned: success
  sample: [rules/old.yml]
validated:
  description: Whether the program was asked. It is not when there is none, or in check mode when it is not there yet.
  type: bool
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _validated_files as validated
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Put the files in place, and return what was written and removed."""
    params = module.params
    request = validated.Request(
        path=params["path"],
        files=tuple(validated.Wanted(**file) for file in params["files"]),
        purge=tuple(params["purge"]),
        validate=tuple(params["validate"]),
        check=module.check_mode,
    )
    outcome = validated.apply(request)
    counts = [(len(outcome.written), "written"), (len(outcome.removed), "removed")]
    return {
        "changed": bool(outcome.written or outcome.removed),
        "written": outcome.written,
        "removed": outcome.removed,
        "validated": outcome.validated,
        "msg": ", ".join(f"{n} {what}" for n, what in counts if n) or "every file is as it should be",
        "diff": outcome.diff,
    }


def main() -> None:
    """Run the module."""
    serve(
        arguments(
            validated.Request,
            paths=("path",),
            files={
                "type": "list",
                "elements": "dict",
                # Configuration holds passwords, and a module's arguments go to the journal.
                "options": arguments(validated.Wanted, content={"no_log": True}),
            },
        ),
        work,
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.shared_build."""

from __future__ import annotations

DOCUMENTATION = r"""
module: shared_build
short_description: Publish a release on shared storage, built once for all nodes
version_added: 0.2.0
description:
  - Sees that a release lies in a directory of its own below O(root), with a C(manifest.json) that was written last, and
    that the symbolic link C(current) beside it names it. It is whole when each file of the manifest is there with the
    size that the manifest tells.
  - Without O(source), RV(due) says whether the source has to be brought. So the module is called once without it, and
    once more with it where it is due.
  - One builder works at a time, under flock(2) on C(<root>/.lock), which a killed one loses. Others wait for it. A
    release appears by a rename and is never overwritten; C(current) is switched by a rename. A builder that lost its
    lock unknowingly can change no name below O(root) any more.
  - No node's clock decides anything.
options:
  name:
    description: Name of the software, for messages.
    type: str
    required: true
  root:
    description: Directory on shared storage. Its parent directory must exist.
    type: path
    required: true
  release:
    description:
      - The name of the directory. Where a release of this name was made of other O(inputs), that one stays, and the new
        one gets the suffix C(.2), C(.3) and so on. See RV(path).
      - What has this name and is no whole release is renamed C(.broken-<release>-<token>), with a warning. It goes when
        the next release is published, or an old one is removed.
    type: str
    required: true
  inputs:
    description: What the release is made of, such as version, method, sha256 and architectures. The manifest has it.
    type: dict
    required: true
  builder:
    description: Whether this node may build, switch C(current) and remove old releases. Any other node waits for a
      running build, and then only looks.
    type: bool
    default: true
  source:
    description: Source for O(steps), which stays as it is.
    type: path
  steps:
    description:
      - The commands that fill the directory C({stage}), run one after the other in an empty directory C({scratch}) on
        this node's own disk, where they have to copy from C({source}) what a build would write into. C({jobs}) is how
        many may run at a time.
      - The release gets another name than C({stage}), so nothing in it may name that.
    type: list
    elements: list
    required: true
  environment:
    description: Variables for O(steps) and O(proof), besides C(PATH), C(LC_ALL), C(HOME) and C(TMPDIR). They may use
      the placeholders of O(steps).
    type: dict
    default: {}
  needs:
    description: Programs that a build needs. The manifest has their versions.
    type: list
    elements: str
    default: []
  provides:
    description: Files that O(steps) must leave in C({stage}), none of them empty.
    type: list
    elements: str
    default: []
  proof:
    description: Command that must succeed before the release is published. It may use the placeholders of O(steps).
    type: list
    elements: str
    default: []
  current:
    description: Whether C(current) names this release.
    type: bool
    default: true
  key:
    description:
      - For which nodes the release is, where not for all that share O(root), such as V(cuda13-x86_64). Then the link
        C(current-<key>) names it as well.
      - C(current) stays what it is while it names a release that another O(cluster) has made for another key, so that
        two clusters do not switch it in turn. Once that link is removed, it is whose run comes next.
      - If the key ends with the version of the nodes' C library, as V(cuda13-x86_64-glibc2.35) does, a whole release of
        the same O(inputs) under the key without that ending is adopted by the link instead of built again, provided
        that its files need no newer C library. It stays as it is, and so does its own link.
    type: str
    default: ""
  cluster:
    description: Cluster of this node, for the manifest.
    type: str
    default: ""
  jobs:
    description: Number of jobs of a build; 0 for one per core, with at least 3 GiB of memory for each.
    type: int
    default: 0
  wait:
    description: Seconds to wait for another node's build.
    type: int
    default: 3600
  silence:
    description: Seconds without a sign of life that this run announces while it waits for the builder. No other run
      takes over the node's lock until then. It is for nodes other than the builder, while the release is missing.
    type: int
    default: 0
  keep:
    description: How many releases with the same O(key) stay beside the wanted one, in the order in which they were
      published; 0 for all. Older ones are removed, but only while O(busy) prints nothing. What a link of other nodes
      names stays.
    type: int
    default: 0
  busy:
    description: Command that prints a line for each running job. O(keep) requires it.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    description: Can run in check mode and return what would change without changing it. It does not wait.
  diff_mode:
    description: Shows the release and C(current), before and after.
notes:
  - With C(async) and a C(poll) of 0, the run waits for its end, and tells from time to time the last line of its log.
  - Lustre has to be mounted with C(flock), as ParallelCluster does, and NFS without C(nolock) and C(local_lock); or the
    module fails.
  - O(root) may be on a disk of the head node that other nodes mount by NFS. There the lock is one of fcntl(2), too,
    which NFS clients see.
  - The output of a build is in C(<root>/logs/<release>.log), or below C(/var/log/pcluster-postboot) where that can not
    be written.
"""

EXAMPLES = r"""
- name: Look whether NCCL is published
  pcluster.postboot.shared_build: &nccl
    name: NCCL
    root: /fsx/nccl
    release: 2.32.3-cuda13-x86_64
    inputs:
      version: 2.32.3
      method: package
      sha256: 1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3
    builder: "{{ ansible_facts['pcluster']['node_type'] == 'head' }}"
    steps:
      - [cp, -R, --, "{source}/nvidia/nccl/include", "{source}/nvidia/nccl/lib", "{stage}/"]
      - [ln, -s, libnccl.so.2, "{stage}/lib/libnccl.so"]
    provides: [include/nccl.h, lib/libnccl.so.2]
    keep: 2
    busy: [/opt/slurm/bin/squeue, --noheader, --format=%i]
  register: found

- name: Publish it where it is not
  pcluster.postboot.shared_build:
    <<: *nccl
    source: /var/cache/pcluster-postboot/nccl
  when: found.due
"""

RETURN = r"""
due:
  description: Whether O(source) has to be brought, and the module called again with it. Only on a builder.
  type: bool
  returned: success
why:
  description: Why it is due or was built, why C(current) was switched, or why there is none.
  type: str
  returned: success
  sample: NCCL 2.32.3-cuda13-x86_64 is not in /fsx/nccl yet
published:
  description: Whether the release is there and whole; in check mode, whether it would be.
  type: bool
  returned: success
  sample: true
path:
  description: Its directory; where it is not published, the one that it will get.
  type: str
  returned: success
  sample: /fsx/nccl/2.32.3-cuda13-x86_64
current:
  description: What C(current) names; empty where there is none.
  type: str
  returned: success
  sample: 2.32.3-cuda13-x86_64
missing:
  description: With RV(due), those of O(needs) that this node does not have.
  type: list
  elements: str
  returned: success
  sample: [make]
summary:
  description: What there is, in one phrase; empty while it is due.
  type: str
  returned: success
  sample: NCCL 2.32.3-cuda13-x86_64, built by ip-10-0-0-5
waited_for:
  description: The node whose build was waited for; empty for none.
  type: str
  returned: success
  sample: ip-10-0-0-6 (pid 4711)
building:
  description: The node that is building it just now, which was waited for no longer; empty for none.
  type: str
  returned: success
  sample: ip-10-0-0-6 (pid 4711)
pruned:
  description: The releases that were removed, and what had been set aside.
  type: list
  elements: str
  returned: success
  sample: [2.29.2-cuda12-x86_64]
log:
  description: The last lines of the build.
  type: list
  elements: str
  returned: when a build failed
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import build


def work(module: AnsibleModule) -> dict[str, Any]:
    """See that the release is published, and return what was done."""
    os.umask(0o022)  # every user of the cluster reads what is published
    given = frozen(module.params)
    given["steps"] = tuple(tuple(str(word) for word in step) for step in given["steps"])
    given["environment"] = {str(key): str(value) for key, value in given["environment"].items()}
    return build.apply(build.Request(check=module.check_mode, **given))._asdict()


def main() -> None:
    serve(
        arguments(
            build.Request,
            paths=("root", "source"),
            inputs={"type": "dict"},
            steps={"type": "list", "elements": "list"},
            key={"no_log": False},
        ),
        work,
    )


if __name__ == "__main__":
    main()

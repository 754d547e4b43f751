#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install verified downloads on a node, from the nearest place that has them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: artifact
short_description: Install verified downloads from a cache, a mirror or upstream
version_added: 0.1.0
description:
  - Has release archives, packages and single files installed on a node, each pinned by its sha256 or sha512.
  - An artifact that is installed already is left alone. A receipt for each name says which files belong to it; it holds
    only while every one of them is still what was installed. Mode and owner that drifted are put right without a
    download.
  - Whatever is missing is looked for in the cache, then in each mirror, then upstream. Every byte is verified before it
    is used, wherever it came from.
  - Files reach their final names by rename once they are complete. A run that is killed at any point leaves each file,
    and each unpacked tree, as it was or as it shall be; the next run completes the work and removes what the killed one
    left.
  - All artifacts of a task are fetched at once.
options:
  artifacts:
    description: What to install.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The name of the receipt. An artifact keeps its name over its versions.
        type: str
        required: true
      version:
        description: The version, for messages and the receipt. Which bytes are right is decided by
          O(artifacts[].sha256) alone.
        type: str
        default: ""
      url:
        description:
          - Where upstream has it, an C(http), C(https), C(s3) or C(file) URL.
          - A user and password in it are sent as basic authentication and never shown. A query is in no message either,
            but Ansible itself writes arguments to the node's log, so no secret belongs there.
        type: str
        required: true
      sha256:
        description: The sha256 of the download, 64 hexadecimal digits, or its sha512, which some publishers tell alone,
          128 of them. Empty means that nobody knows it yet, and fails without O(artifacts[].signature).
        type: str
        required: true
      signature:
        description:
          - Who vouches for the download where O(artifacts[].sha256) is empty, by a detached OpenPGP signature. With a
            hash, the hash decides alone, unless O(artifacts[].signature.dest) or O(artifacts[].signature.key_dest)
            keeps the signature or the key - then the hash and the signature have to be right.
          - C(gpgv) or C(gpg) verifies the signature on the node. Signature and key come from the mirrors, in their
            order, or from upstream. One that is not good costs a warning that names its source, and the next source is
            asked; where no source has a good one, the task fails and names each.
          - A file that was verified so is kept as long as its URL, version and content stay. It is never in
            O(cache), because the cache finds files by their hash.
        type: dict
        suboptions:
          url:
            description: Where upstream has the signature, armored or binary.
            type: str
            required: true
          key_url:
            description: Where upstream has the public key, armored or binary.
            type: str
            required: true
          fingerprints:
            description: The whole fingerprints of the keys that may sign. Any other key in the key's file is refused.
            type: list
            elements: str
            required: true
          dest:
            description: The absolute path at which the signature is kept too, as in a mirror.
            type: str
          key_dest:
            description: The absolute path at which the key is kept too.
            type: str
      sha256_variable:
        description: The variable that holds the hash, for the message that asks to set it.
        type: str
        default: ""
      dest:
        description:
          - The absolute path of the installed file.
          - With O(artifacts[].members), the directory to which their relative destinations belong.
          - With O(artifacts[].unpack), the directory that becomes the tree and holds nothing else. A directory there
            that this artifact did not unpack is never replaced; the task fails.
        type: str
        required: true
      members:
        description: The files of an archive to install. The archive may be a tar (plain, gzip, bzip2, xz, zstd) or a
          zip, and is known by its content, not its name. Zstd needs the program C(zstd) on the node.
        type: list
        elements: dict
        default: []
        suboptions:
          src:
            description: The path of a file in the archive, or a glob in which C(*) stays within a directory and C(**)
              crosses any number of them.
            type: str
            required: true
          dest:
            description: Where the file goes, absolute or relative to O(artifacts[].dest). A path that ends with C(/) is
              a directory, in which each file keeps its own name; a glob that finds several files needs that. By default
              the file's own name.
            type: str
          mode:
            description: The file's mode, as octal digits in quotes. By default O(artifacts[].mode), else what the
              archive says.
            type: raw
      unpack:
        description:
          - Unpack the whole archive to O(artifacts[].dest). The tree appears there in one step, and replaces its
            predecessor in one step where the file system can exchange names (not NFS and Lustre, where it is missing
            for a moment in between).
          - Files keep the times that the archive gives them.
        type: bool
        default: false
      strip_components:
        description: How many leading directories to drop from the names in the archive.
        type: int
        default: 0
      mode:
        description: The mode of the installed files, as octal digits in quotes. By default V(0644) for a single file,
          and what the archive says for members. It does not go together with O(artifacts[].unpack). An archive never
          makes a file set-user-id or writable for others.
        type: raw
      owner:
        description: The user to whom the files belong, by name or number. By default the user who runs the module.
        type: str
      group:
        description: The group to which the files belong, by name or number. By default the group of the user who runs
          the module.
        type: str
  mirrors:
    description:
      - Where to look before upstream, in this order. Each has an artifact at C(<mirror>/<host of its url>/<path of its
        url>).
      - An C(http) or C(https) URL; C(s3://bucket/prefix), which is read by the AWS CLI with the node's own role; or a
        local directory, as a path or a C(file) URL.
      - A node that was configured from a bundle with downloads (role pull) looks into that first.
      - Bytes with another hash cost a warning that names their source, and the next source is asked.
    type: list
    elements: str
    default: []
  cache:
    description:
      - A directory on shared storage in which the nodes of a cluster keep downloads for each other, by hash. Empty for
        none.
      - Nodes that need the same artifact at the same time elect one to download it; the others wait for that, and look
        every 15 seconds once they have waited for some time. One that dies over it is succeeded within 40 seconds.
      - Where no source answers, one node after the other asks, and none that waits does so by itself.
      - The cache is not trusted. An entry with wrong bytes is removed and fetched anew. A cache that is full, read-only
        or gone costs a warning, not the task.
    type: str
    default: ""
  cache_wait:
    description: How long to wait for another node's download, in seconds, before downloading without the cache's help;
      or before failing, where others have found meanwhile that no source answers.
    type: float
    default: 600
  upstream:
    description: Whether upstream may be asked. V(false) keeps a node from ever trying the internet.
    type: bool
    default: true
  timeout:
    description: After how many seconds without a byte a download counts as stalled.
    type: float
    default: 30
  retries:
    description: How often to ask a source again that failed in a way that may pass (a stall, a broken connection, HTTP
      429 or 5xx), each time after a longer pause, or after the one the server asks for, up to 60 seconds.
    type: int
    default: 3
  state_dir:
    description: Where the receipts are.
    type: str
    default: /var/lib/pcluster-postboot/receipts
extends_documentation_fragment:
  - pcluster.postboot.attributes
attributes:
  check_mode:
    details: It is worked out from receipts and files; nothing is downloaded.
  diff_mode:
    details: Shows version, sha256 and files, before and after, of each artifact that changes.
  idempotent:
    details: An artifact that is installed is not downloaded again.
notes:
  - Proxy variables of the environment (C(https_proxy), C(no_proxy)) hold. Certificates are always verified, against
    the system's own authorities.
  - Redirects are followed, but never from C(https) to C(http) and never to a file.
  - Files that an earlier version installed at other paths stay.
"""

EXAMPLES = r"""
- name: Prometheus and promtool are installed
  pcluster.postboot.artifact:
    artifacts:
      - name: prometheus
        version: 3.14.0
        url: https://github.com/prometheus/prometheus/releases/download/v3.14.0/prometheus-3.14.0.linux-amd64.tar.gz
        sha256: f665c6da19eb7ba399c915d30c7d9793c9b417bf8a749b504bc470678631478d
        sha256_variable: prometheus_sha256.x86_64
        dest: /usr/local/bin
        mode: "0755"
        members:
          - src: "*/prometheus"
          - src: "*/promtool"
    mirrors:
      - s3://my-bucket/mirror
    cache: /fsx/.pcluster-postboot/cache

- name: A package lies ready to be installed, without the internet
  pcluster.postboot.artifact:
    artifacts:
      - name: cuda_keyring
        version: 1.1-1
        url: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/cuda-keyring_1.1-1_all.deb
        sha256: d2a6b11c096396d868758b86dab1823b25e14d70333f1dfa74da5ddaf6a06dba
        dest: /var/cache/pcluster-postboot/cuda-keyring.deb
    mirrors:
      - /fsx/mirror
    upstream: false

- name: A package without a published hash is verified by its publisher's signature
  pcluster.postboot.artifact:
    artifacts:
      - name: cloudwatch_agent_package
        version: 1.300072.0b1766
        url: https://amazoncloudwatch-agent.s3.amazonaws.com/redhat/amd64/1.300072.0b1766/amazon-cloudwatch-agent.rpm
        sha256: ""
        signature:
          url: https://amazoncloudwatch-agent.s3.amazonaws.com/redhat/amd64/1.300072.0b1766/amazon-cloudwatch-agent.rpm.sig
          key_url: https://amazoncloudwatch-agent.s3.amazonaws.com/assets/amazon-cloudwatch-agent.gpg
          fingerprints: [937616F3450B7D806CBD9725D58167303B789C72]
        dest: /var/cache/pcluster-postboot/amazon-cloudwatch-agent.rpm

- name: A source tree is unpacked
  pcluster.postboot.artifact:
    artifacts:
      - name: pyxis_source
        version: 0.24.0
        url: https://github.com/NVIDIA/pyxis/archive/refs/tags/v0.24.0.tar.gz
        sha256: "{{ pyxis_sha256 }}"
        sha256_variable: pyxis_sha256
        dest: /opt/pcluster-postboot/src/pyxis-0.24.0
        unpack: true
        strip_components: 1
"""

RETURN = r"""
artifacts:
  description: What became of each artifact, in the order of the argument.
  returned: always, but for arguments that mean nothing
  type: list
  elements: dict
  contains:
    name:
      description: The artifact's name.
      type: str
      returned: always
      sample: prometheus
    version:
      description: The artifact's version.
      type: str
      returned: always
      sample: 3.14.0
    sha256:
      description: The hash that was asked for, or that of the file which a trusted key has signed.
      type: str
      returned: always
      sample: f665c6da19eb7ba399c915d30c7d9793c9b417bf8a749b504bc470678631478d
    changed:
      description: Whether a file of it changed, or would.
      type: bool
      returned: always
      sample: true
    source:
      description: Where the bytes came from; V(installed) when none were needed, V(cache), V(mirror:<base>),
        V(upstream), or V(predicted) in check mode.
      type: str
      returned: always
      sample: mirror:s3://my-bucket/mirror
    seconds:
      description: How long it took, in seconds.
      type: float
      returned: always
      sample: 2.513
    bytes:
      description: How many bytes came; 0 when none were needed.
      type: int
      returned: always
      sample: 118207154
    files:
      description: The installed files; of an unpacked tree its directory, with a C(/) at the end.
      type: list
      elements: str
      returned: always
      sample: [/usr/local/bin/prometheus, /usr/local/bin/promtool]
    error:
      description: Why it failed, in one line that names each source and what was wrong with it.
      type: str
      returned: for an artifact that failed
      sample: >-
        prometheus 3.14.0: no source delivered sha256 f665c6da…: mirror s3://…: … (404) …; upstream
        https://github.com/…: HTTP 503 (4 tries)
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.ensure import ensure_all
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Settings, parse_all, secrets
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

ARGUMENTS = {
    "artifacts": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "default": ""},
            "url": {"type": "str", "required": True},
            "sha256": {"type": "str", "required": True},
            "sha256_variable": {"type": "str", "default": ""},
            "signature": {
                "type": "dict",
                "options": {
                    "url": {"type": "str", "required": True},
                    "key_url": {"type": "str", "required": True, "no_log": False},
                    "fingerprints": {"type": "list", "elements": "str", "required": True},
                    "dest": {"type": "str"},
                    "key_dest": {"type": "str", "no_log": False},
                },
            },
            "dest": {"type": "str", "required": True},
            "members": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "src": {"type": "str", "required": True},
                    "dest": {"type": "str"},
                    "mode": {"type": "raw"},
                },
            },
            "unpack": {"type": "bool", "default": False},
            "strip_components": {"type": "int", "default": 0},
            "mode": {"type": "raw"},
            "owner": {"type": "str"},
            "group": {"type": "str"},
        },
    },
    "mirrors": {"type": "list", "elements": "str", "default": []},
    "cache": {"type": "str", "default": ""},
    "cache_wait": {"type": "float", "default": 600},
    "upstream": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 30},
    "retries": {"type": "int", "default": 3},
    "state_dir": {"type": "str", "default": "/var/lib/pcluster-postboot/receipts"},
}


def work(module: AnsibleModule) -> dict[str, Any]:
    """Install the artifacts, and return what became of each."""
    params = module.params
    signed = [raw["signature"] for raw in params["artifacts"] if raw["signature"]]
    proofs = [one[where] for one in signed for where in ("url", "key_url")]
    for url in [*(raw["url"] for raw in params["artifacts"]), *proofs, *params["mirrors"]]:
        module.no_log_values |= secrets(url)
    os.umask(0o022)  # directories on the way to a file must let its users through
    outcomes = ensure_all(parse_all(params["artifacts"]), Settings.of(params, check=module.check_mode))
    for warning in dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings):
        module.warn(warning)
    result = {
        "changed": any(outcome.changed for outcome in outcomes),
        "artifacts": [outcome.result() for outcome in outcomes],
        "diff": [outcome.diff() for outcome in outcomes if outcome.changed],
    }
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        raise Problem(" | ".join(errors), **result)
    return result


def main() -> None:
    serve(ARGUMENTS, work)


if __name__ == "__main__":
    main()

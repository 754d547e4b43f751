# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

DOCUMENTATION = r"""
---
name: pins
short_description: What the roles of this collection download
version_added: 0.1.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Returns every file that a role pins by its sha256, with the user's own versions, URLs and hashes where they are
    set.
  - A role pins a file by a variable C(<x>_sha256) in its defaults, a dictionary by architecture (or with the one key
    C(noarch)), and says where the file is by C(__<x>_url). Its version is C(<x>_version), or else C(<role>_version).
    What verifies a file without a hash is C(__<x>_signature).
options:
  _terms:
    description: The roles to ask. By default all that run on nodes.
    type: list
    elements: str
    required: false
  architectures:
    description: The architectures to return.
    type: list
    elements: str
    default: [x86_64, aarch64]
  dest:
    description:
      - The directory of a mirror. Each file then has a C(dest), its path in that mirror, where the module
        M(pcluster.postboot.artifact) looks for the file. With an empty string, C(dest) is relative to the mirror.
    type: str
"""

EXAMPLES = r"""
- name: Show what will be downloaded
  ansible.builtin.debug:
    msg: "{{ query('pcluster.postboot.pins', 'node_exporter', architectures=['x86_64']) }}"
"""

RETURN = r"""
_raw:
  description:
    - The files, as the module M(pcluster.postboot.artifact) takes them, with a destination where O(dest) names a
      mirror. An unknown hash is an empty C(sha256), beside which a C(signature) stands where the publisher signs the
      file. A mirror has the signature also of a file with a hash, where nodes verify both (C(__<x>_signature_always)).
  type: list
  elements: dict
  sample:
    - name: node_exporter-1.12.1-x86_64
      version: 1.12.1
      url: https://github.com/prometheus/node_exporter/releases/download/v1.12.1/node_exporter-1.12.1.linux-amd64.tar.gz
      sha256: b51d8a76aa2a9156a55d501aca6276fae09e262259a5e4e831d2c2222f084e63
      sha256_variable: node_exporter_sha256['x86_64']
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import mirrored
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import roles

GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[dict[str, Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        unknown = set(self.get_option("architectures")) - set(GO_ARCHITECTURES)
        if unknown:
            raise AnsibleLookupError(
                f"architectures has {', '.join(sorted(unknown))}; known are {', '.join(GO_ARCHITECTURES)}"
            )
        names = [name for term in terms for name in term.split(",")]  # -e gives text with commas
        strangers = set(names) - set(roles.for_nodes())
        if strangers:
            known = ", ".join(sorted(set(roles.for_nodes()) - {"common"}))
            raise AnsibleLookupError(f"there is no component {', '.join(sorted(strangers))}; there are {known}")
        return [pin for role in names or roles.for_nodes() for pin in self._pins(role, dict(variables or {}))]

    def _pins(self, role: str, variables: dict[str, Any]) -> list[dict[str, Any]]:
        defaults = roles.load(self._loader, role, "defaults/main.yml")
        found = {**defaults, **variables, **roles.load(self._loader, role, "vars/main.yml")}
        pins: list[dict[str, Any]] = []
        along: set[str] = set()
        dest = self.get_option("dest")
        for variable in (name for name in defaults if name.endswith("_sha256")):
            what = variable[: -len("_sha256")]
            for architecture in ["noarch"] if "noarch" in defaults[variable] else self.get_option("architectures"):
                found["ansible_facts"] = {"pcluster": _facts(architecture)}
                templar = self._templar.copy_with_new_env(available_variables=found)
                url = str(templar.template(found[f"__{what}_url"]))
                version = str(templar.template(found.get(f"{what}_version", found.get(f"{role}_version", ""))))
                sha256 = str(templar.template(found[variable]).get(architecture, ""))
                signature = templar.template(found.get(f"__{what}_signature", {}))
                always = dest is not None and bool(found.get(f"__{what}_signature_always"))
                if not signature.get("fingerprints") or (sha256 and not always):
                    signature = {}
                along |= {signature["url"], signature["key_url"]} if signature else set()
                pins.append(
                    {
                        "name": f"{what}-{version}-{architecture}",
                        "version": version,
                        "url": url,
                        "sha256": sha256,
                        "sha256_variable": f"{variable}['{architecture}']",
                        **({"signature": _mirrored(signature, dest)} if signature else {}),
                        **({} if dest is None else {"dest": mirrored(dest, url)}),
                    }
                )
        # Left out: a file that is another one's signature or key. It is fetched together with that file.
        return [pin for pin in pins if pin["url"] not in along]


def _mirrored(signature: dict[str, Any], dest: str | None) -> dict[str, Any]:
    """Return what verifies a file, with the places in a mirror at which nodes look for the proof."""
    if dest is None:
        return signature
    return {
        **signature,
        "dest": mirrored(dest, signature["url"]),
        "key_dest": mirrored(dest, signature["key_url"]),
    }


def _facts(architecture: str) -> dict[str, str]:
    return {"architecture": architecture, "go_architecture": GO_ARCHITECTURES.get(architecture, architecture)}

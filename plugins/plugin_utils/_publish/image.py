# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A component of EC2 Image Builder that bakes a bundle into an image, and what `pcluster build-image` needs for it.

The component is a document of AWSTOE, schema 1.0. AWSTOE replaces {{ … }} in a document, and restarts the machine where
a step ends with 194. It runs the phase build, then validate, makes the image, and runs test on a machine of that image.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions

# Of imagebuilder:CreateComponent, for a document that is a part of the request.
MAX_CHARACTERS = 16000
_SECONDS = {"build": 7200, "validate": 1800, "test": 1800}  # that a step may take
_CHECK = "/opt/pcluster-postboot/current/bootstrap.sh --installed --bake --check\n"


class Component(NamedTuple):
    release: custom_actions.Release
    region: str = ""

    @property
    def name(self) -> str:
        """One for each bundle: Image Builder lets nobody change a component."""
        return f"pcluster-postboot-{self.release.name.rpartition('-')[2]}"

    @property
    def version(self) -> str:
        """Three numbers, whatever else the collection's version has."""
        found = re.match(r"\d+\.\d+\.\d+", self.release.name)
        return found[0] if found else "1.0.0"

    @property
    def arn(self) -> str:
        partition, account = self.release.partition, self.release.account or "<account>"
        return (
            f"arn:{partition}:imagebuilder:{self.region or '<region>'}:{account}:component/{self.name}/{self.version}"
        )


def document(component: Component, script: str) -> str:
    """Return the component's text. The script is roles/bake/files/bake.sh."""
    release = component.release
    bundle = f"{release.where}/{custom_actions.ARCHIVE}"
    shebang, _newline, rest = script.partition("\n")
    build = f"{shebang}\nexport BUNDLE={shlex.quote(bundle)} SHA256={release.sha256}\n{rest}"
    commands = {"build": ("Bake", build), "validate": ("Validate", _CHECK), "test": ("Test", _CHECK)}
    content = {
        "name": component.name,
        "description": f"Bakes the bundle {release.name} of pcluster.postboot into an image.",
        "schemaVersion": 1.0,
        "phases": [
            {"name": phase, "steps": [_step(name, text, _SECONDS[phase])]} for phase, (name, text) in commands.items()
        ],
    }
    text = custom_actions.dump(content)
    if "{{" in text or len(text) > MAX_CHARACTERS:
        raise Problem(
            f"the component of {len(text)} characters is none that Image Builder takes; needed: at most "
            f"{MAX_CHARACTERS}, and no {{{{"
        )
    return text


def _step(name: str, text: str, seconds: int) -> dict[str, Any]:
    settings = {"name": name, "action": "ExecuteBash", "timeoutSeconds": seconds, "onFailure": "Abort"}
    return {**settings, "inputs": {"commands": [text]}}


def part(component: Component, policy: str = "") -> dict[str, Any]:
    """Return what the configuration of an image needs: ParallelCluster's schema has it below Build."""
    reads = {"AdditionalIamPolicies": [{"Policy": policy or component.release.policy}]}
    return {"Build": {"Iam": reads, "Components": [{"Type": "arn", "Value": component.arn}]}}


def render(component: Component, path: str, policy: str = "") -> str:
    """Return this part as YAML, below how to make the component."""
    create = (
        f"aws imagebuilder create-component --name {component.name} --semantic-version {component.version} "
        f"--platform Linux --data {shlex.quote('file://' + path)}"
    )
    lines = [
        f"pcluster.postboot {component.release.name}: what the configuration of an image needs, beside what is there",
        "",
        f"Once, in the region in which the image is built, make the component that Components names: {create}",
    ]
    if not policy:
        made = custom_actions.create_policy(component.release)
        lines.append(f"Once, make the policy that Iam names, unless login nodes have the policy already: {made}")
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"{comment}\n{custom_actions.dump(part(component, policy))}"

# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From the options of role infrastructure to the parameters of its stack."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._infrastructure import network

ENDPOINTS = (
    *("aps-workspaces", "autoscaling", "cloudformation", "ec2", "ec2messages", "elasticloadbalancing", "logs"),
    *("monitoring", "secretsmanager", "ssm", "ssmmessages", "sts"),
)
# Without a NAT gateway a cluster does not come up without the first ones; login nodes, Systems Manager and the
# CloudWatch agent need the others ("AWS ParallelCluster in a single subnet with no internet access", User Guide).
NEEDED_ENDPOINTS = ("cloudformation", "ec2", "logs")
USUAL_ENDPOINTS = (
    *NEEDED_ENDPOINTS,
    *("autoscaling", "elasticloadbalancing", "monitoring", "ssm", "ssmmessages", "ec2messages"),
)
LOGINS = 5  # slots of the template
EFA_METADATA_IOPS = 6000
# What a stack does not lose or replace: the network under clusters, and what holds data.
_NETWORK = ("Vpc", "PublicSubnet", "PrivateSubnet", "SecondaryPublicSubnet", "SecondaryPrivateSubnet")
HOLDERS = {"lustre": "Lustre", "home": "Home", "bucket": "Bundles"}


def variable(parameter: str) -> str:
    """Return the role's variable of a parameter: LustreSize is infrastructure_lustre_size."""
    return "infrastructure" + re.sub(r"([A-Z])", r"_\1", parameter).lower()


def parameter(name: str) -> str:
    return "".join(part.capitalize() for part in re.split("[_-]", name))


def protected(release: Iterable[str]) -> list[str]:
    """Return the resources of which an update may replace or remove none."""
    let_go = {HOLDERS[name] for name in release}
    return [name for name in (*_NETWORK, *HOLDERS.values()) if name not in let_go]


def given(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of the options that are set. None stands for what the stack has."""
    found: dict[str, str] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == "endpoints":
            found |= _endpoints(value)
        elif name == "login_ssh_from":
            if len(value) > LOGINS:
                raise Problem(
                    f"infrastructure_login_ssh_from has {len(value)} entries; needed: {LOGINS} at most, so name "
                    "larger ranges"
                )
            slots = [*value, *[""] * (LOGINS - len(value))]
            found |= {f"LoginSshFrom{number}": str(slot) for number, slot in enumerate(slots, 1)}
        elif isinstance(value, list):
            found[parameter(name)] = ",".join(str(one) for one in value)
        else:
            found[parameter(name)] = _text(value)
    return found


def settled(
    told: Mapping[str, str], defaults: Mapping[str, str], there: Mapping[str, str], publishers: Iterable[str]
) -> dict[str, str]:
    """Return all parameters as the stack will have them: told, else as they are there, else by default."""
    found = {**defaults, **there, **told}
    if not there:
        for name, value in network.split(found["Cidr"]).items():
            found[name] = told.get(name, value)
        found["Publishers"] = told.get("Publishers", ",".join(publishers))
        if found["Nat"] == "false" and not any(name.startswith("Endpoint") for name in told):
            found |= _endpoints(USUAL_ENDPOINTS)
    efa = found["LustreEfa"] == "true" and found["LustreDeployment"] == "PERSISTENT_2"
    if efa and found["LustreMetadataIops"] == "0":
        found["LustreMetadataIops"] = str(EFA_METADATA_IOPS)
    return found


def endpoints(parameters: Mapping[str, str]) -> list[str]:
    return [name for name in ENDPOINTS if parameters[parameter(f"endpoint-{name}")] == "true"]


def logins(parameters: Mapping[str, str]) -> list[str]:
    slots = (parameters[f"LoginSshFrom{number}"] for number in range(1, LOGINS + 1))
    return [slot for slot in slots if slot]


def _endpoints(names: Iterable[str]) -> dict[str, str]:
    wanted = set(names)
    return {parameter(f"endpoint-{name}"): _text(name in wanted) for name in ENDPOINTS}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Work out the parameters of the monitoring instance's stack, and refuse what cannot work. Nothing is changed."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import (
    Credentials,
    client_maker,
    regions_of,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._monitoring import parameters
from ansible_collections.pcluster.postboot.plugins.plugin_utils._monitoring.account import Account
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import options

DEFAULT_TYPE = "t3.medium"


class ActionModule(OnController):
    SPEC = {"variables": {"type": "dict", "required": True}}

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        given = options("monitoring", args["variables"])
        credentials = Credentials(profile=given["profile"])
        asked = [given["region"]] if given["region"] else []
        region = regions_of(credentials, asked, "monitoring_region is not set")[0]
        account = Account(client_maker(credentials, region), region)
        there = account.stack(given["name"])
        settled = parameters.settled(given["name"], given, there)
        wrong = list(parameters.refusals(settled, given))
        if not wrong:
            subnets = account.subnets(parameters.subnets_of(settled))
            settled["Zone"] = subnets[settled["Subnet"]].zone
            wrong = list(parameters.misplaced(settled, subnets))
        if wrong:
            return {"failed": True, "msg": "\n".join(wrong)}
        # Only for a new stack: a newer image would be another instance.
        settled.setdefault("Image", "")
        settled["Image"] = settled["Image"] or account.image(settled.get("InstanceType") or DEFAULT_TYPE)
        new = {name: value for name, value in settled.items() if there.get(name) != value}
        return {"parameters": settled, "new": new, "region": region}

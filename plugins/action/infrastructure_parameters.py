# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Work out the parameters of the infrastructure's stack, and refuse what AWS or a cluster would. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import cloudformation
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import (
    Credentials,
    client_maker,
    regions_of,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._infrastructure import network, parameters, storage
from ansible_collections.pcluster.postboot.plugins.plugin_utils._infrastructure.account import Account
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import rights
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import options


class ActionModule(OnController):
    SPEC = {
        "template": {"type": "path", "required": True},
        "variables": {"type": "dict", "required": True},
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        given = options("infrastructure", args["variables"])
        with open(args["template"], encoding="utf-8") as stream:
            template = stream.read()
        names, defaults = cloudformation.parameters_of(template), cloudformation.defaults_of(template)
        told = {key: value for key, value in parameters.given(given).items() if key in names}
        credentials = Credentials(profile=given["profile"])
        asked = [given["region"]] if given["region"] else []
        region = regions_of(credentials, asked, "infrastructure_region is not set")[0]
        account = Account(client_maker(credentials, region), region)
        there = {key: value for key, value in account.stack(given["name"]).items() if key in names}
        settled = parameters.settled(told, defaults, there, rights.publishers(account.caller()))
        refusals = [
            *network.refusals(settled, told | there, account.zones(), parameters.logins(settled)),
            *self._without_nat(settled),
            *storage.refusals(settled, told, there),
        ]
        if refusals:
            return {"failed": True, "msg": "\n".join(refusals)}
        if settled["LustreRepository"]:
            account.refuse_repository(storage.bucket_of(settled["LustreRepository"]))
        return {
            "parameters": settled,
            "protect": parameters.protected(given["release"]),
            "region": region,
            "endpoints": parameters.endpoints(settled),
        }

    def _without_nat(self, settled: Mapping[str, str]) -> list[str]:
        missing = [name for name in parameters.NEEDED_ENDPOINTS if name not in parameters.endpoints(settled)]
        if settled["Nat"] == "true" or not missing:
            return []
        return [
            f"infrastructure_nat is false, and infrastructure_endpoints lacks {', '.join(missing)}, without which no "
            f"node comes up; needed: these, and usually all of {', '.join(parameters.USUAL_ENDPOINTS)}"
        ]

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
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import typed

_PREFIX = "infrastructure_"


class ActionModule(OnController):
    SPEC = {
        "name": {"type": "str", "required": True},
        "template": {"type": "path", "required": True},
        "options": {"type": "dict", "required": True},
        "release": {"type": "list", "elements": "str", "default": []},
        "region": {"type": "str", "default": ""},
        "profile": {"type": "str", "default": ""},
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        options = {f"{_PREFIX}{name}": value for name, value in args["options"].items()}
        given = {name[len(_PREFIX) :]: value for name, value in typed("infrastructure", options).items()}
        told = parameters.given(given)
        with open(args["template"], encoding="utf-8") as stream:
            template = stream.read()
        names, defaults = cloudformation.parameters_of(template), cloudformation.defaults_of(template)
        credentials = Credentials(profile=args["profile"])
        asked = [args["region"]] if args["region"] else []
        region = regions_of(credentials, asked, "infrastructure_region is not set")[0]
        account = Account(client_maker(credentials, region), region)
        there = {key: value for key, value in account.stack(args["name"]).items() if key in names}
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
            "protect": parameters.protected(args["release"]),
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

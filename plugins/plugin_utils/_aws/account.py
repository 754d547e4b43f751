# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an account has before a stack is made or changed. Nothing is changed here."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.cloudformation import REVIEW, describe
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import ClientMaker


class Account:
    def __init__(self, make: ClientMaker, region: str) -> None:
        self.make, self.region = make, region

    def stack(self, name: str) -> dict[str, str]:
        """Return the parameters of a stack; none where there is no stack yet."""
        found = describe(self.make("cloudformation", self.region), name, self.region)
        if not found or found["StackStatus"] == REVIEW:
            return {}
        return {one["ParameterKey"]: one.get("ParameterValue", "") for one in found.get("Parameters", [])}

    def _ask(self, service: str, method: str, permission: str, about: str, **more: Any) -> Any:
        try:
            return getattr(self.make(service, self.region), method)(**more)
        except AwsErrors as error:
            raise explain(error, self.region, permission, about) from error

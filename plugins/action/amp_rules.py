# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put rules into a workspace of Amazon Managed Prometheus, from the controller. Nothing is sent to the node."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import amp, session
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController

_TEXT = {"type": "str", "required": True}


class ActionModule(OnController):
    SPEC = {
        **dict.fromkeys(("workspace", "region", "namespace"), _TEXT),
        "files": {
            "type": "list",
            "elements": "dict",
            "required": True,
            "options": {"path": _TEXT, "content": _TEXT, "source": {"type": "str", "default": ""}},
        },
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        workspace, region = args["workspace"], args["region"]
        if session.boto3 is None:
            # As on a node that configures itself: somebody else puts them there, and every report says so.
            todo = "run site --tags prometheus --limit pcluster_head from a workstation with boto3"
            return {"summary": f"the rules of {args['workspace']} were not written, as boto3 is not there; {todo}"}
        try:
            rules = amp.merged(args["files"])
            client = session.client_maker(session.Credentials(), region)("amp", region)
            outcome = amp.put(client, workspace, args["namespace"], rules, bool(self._task.check_mode))
        except AwsErrors as error:
            permission = "aps:DescribeRuleGroupsNamespace, CreateRuleGroupsNamespace and PutRuleGroupsNamespace"
            raise explain(error, region, permission, f"workspace {workspace}") from error
        where = f"{workspace}: {args['namespace']}"
        diff = {"before_header": where, "after_header": where, "before": outcome.before, "after": outcome.after}
        return {"changed": outcome.changed, "groups": outcome.groups, "diff": diff}

# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a cluster's CloudWatch dashboards into a state, from the controller. Nothing is sent to the node."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import log_group
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import Credentials, client_maker
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cloudwatch import dashboards
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController

_ABSENT = ("ResourceNotFound", "DashboardNotFoundError")
_WORDS = {"type": "list", "elements": "str", "default": []}
SPEC: dict[str, Any] = {
    "cluster": {"type": "str", "required": True},
    "region": {"type": "str", "required": True},
    "kinds": {**_WORDS, "choices": list(dashboards.SUFFIXES), "default": list(dashboards.SUFFIXES)},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "namespace": {"type": "str"},
    "metrics": {**_WORDS, "choices": ["host", "gpu", "efa", "prometheus"], "default": ["host", "gpu", "efa"]},
    "measurements": {"type": "dict", "default": {}},
    "per_device": {"type": "bool", "default": False},
    "interval": {"type": "int", "default": 60},
    "scrapes": {"type": "list", "elements": "dict", "default": []},
    "head_instance": {"type": "str", "default": ""},
    "file_systems": _WORDS,
    "log_group": {"type": "str", "default": ""},
    "profile": {"type": "str", "default": ""},
}


class ActionModule(OnController):
    """Compare each dashboard with what CloudWatch has, and put what differs."""

    SPEC = SPEC

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        make = client_maker(Credentials(profile=args["profile"]), args["region"])
        return apply(make, args, bool(self._task.check_mode))


def console(region: str) -> str:
    """Return the host of AWS' console for a region."""
    if region.startswith("cn-"):
        return f"{region}.console.amazonaws.cn"
    return "console.amazonaws-us-gov.com" if region.startswith("us-gov-") else f"{region}.console.aws.amazon.com"


def apply(make: Any, args: dict[str, Any], check: bool) -> dict[str, Any]:
    name, region = args["cluster"], args["region"]
    client = make("cloudwatch", region)
    warnings: list[str] = []
    logs = args["log_group"]
    if args["state"] == "present" and not logs:
        logs = _log_group(make("logs", region), name, region, warnings)
    cluster = dashboards.Cluster(
        name=name,
        region=region,
        namespace=args["namespace"] or f"ParallelCluster/{name}",
        log_group=logs,
        **{
            key: args[key]
            for key in ("metrics", "measurements", "per_device", "interval", "scrapes", "head_instance", "file_systems")
        },
    )
    changed, diff, urls = [], [], {}
    for kind in args["kinds"]:
        dashboard = dashboards.name_of(name, kind)
        there = _get(client, dashboard, region)
        body = dashboards.build(cluster, kind) if args["state"] == "present" else None
        if body is not None:
            urls[dashboard] = (
                f"https://{console(region)}/cloudwatch/home?region={region}#dashboards/dashboard/{dashboard}"
            )
        if there == body:
            continue
        changed.append(dashboard)
        texts = ["" if one is None else dashboards.text_of(one) for one in (there, body)]
        diff.append({"before_header": dashboard, "after_header": dashboard, "before": texts[0], "after": texts[1]})
        if not check:
            warnings += _put(client, dashboard, body, region)
    said = f"{', '.join(changed)} {'would be ' * check}{'written' if args['state'] == 'present' else 'removed'}"
    return {
        "changed": bool(changed),
        "diff": diff,
        "dashboards": changed,
        "urls": urls,
        "log_group": logs,
        "warnings": warnings,
        "msg": said if changed else "the dashboards are as they should be",
    }


def _get(client: Any, dashboard: str, region: str) -> dict[str, Any] | None:
    """Return a dashboard; None where it is not there, and an empty one where it is none that we could have written."""
    try:
        text = client.get_dashboard(DashboardName=dashboard)["DashboardBody"]
    except AwsErrors as error:
        if code_of(error) in _ABSENT:
            return None
        raise explain(error, region, "cloudwatch:GetDashboard", dashboard) from error
    try:
        body = document.parse(text)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _put(client: Any, dashboard: str, body: dict[str, Any] | None, region: str) -> list[str]:
    try:
        if body is None:
            client.delete_dashboards(DashboardNames=[dashboard])
            return []
        answer = client.put_dashboard(DashboardName=dashboard, DashboardBody=json.dumps(body))
    except AwsErrors as error:
        call = "DeleteDashboards" if body is None else "PutDashboard"
        raise explain(error, region, f"cloudwatch:{call}", dashboard) from error
    return [
        f"{dashboard}: {one.get('DataPath', '')}: {one.get('Message', '')}"
        for one in answer.get("DashboardValidationMessages", [])
    ]


def _log_group(client: Any, cluster: str, region: str, warnings: list[str]) -> str:
    try:
        return log_group.newest(client, cluster)
    except AwsErrors as error:
        warnings.append(f"no logs are shown: {explain(error, region, 'logs:DescribeLogGroups', cluster)}")
        return ""

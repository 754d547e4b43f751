#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.grafana_dashboards."""

from __future__ import annotations

DOCUMENTATION = r"""
module: grafana_dashboards
short_description: Bring dashboards, their folder and their data source into a Grafana
description:
  - Uses Grafana's HTTP API, also of Amazon Managed Grafana, and changes only what differs. Changes that a person has
    made in these dashboards are lost; other dashboards stay.
  - Without O(token_file), O(token_secret) and O(password_file) the token is taken from the environment variable
    E(GRAFANA_TOKEN). No secret is an argument.
options:
  url:
    description: URL of Grafana. A redirection is not followed.
    type: str
    required: true
  token_file:
    description: File on this machine with the token of a service account.
    type: path
    default: ""
  token_secret:
    description: Name or ARN of a secret in AWS Secrets Manager with the token, as text or in an object with the key
      C(token). The AWS CLI reads it.
    type: str
    default: ""
  region:
    description: AWS region of O(token_secret); empty for the AWS CLI's own.
    type: str
    default: ""
  user:
    description: User of O(password_file).
    type: str
    default: admin
  password_file:
    description: File on this machine with the password of O(user).
    type: path
    default: ""
  dashboards:
    description: JSON files of dashboards with a C(uid) and a C(title).
    type: list
    elements: path
    default: []
  folder:
    description: Folder of the dashboards. Empty leaves dashboards where they are, and puts new ones at the top.
    type: str
    default: ParallelCluster
  folder_uid:
    description: Identifier of the folder.
    type: str
    default: pcluster
  datasource:
    description: Data source that the dashboards open with. The default is Grafana's default, and none is made.
    type: dict
    suboptions:
      name:
        description: Name of the data source.
        type: str
        required: true
      uid:
        description: Identifier of the data source.
        type: str
        required: true
      url:
        description: URL of Prometheus as Grafana reaches it, or of the Amazon Managed Prometheus workspace.
        type: str
        required: true
      type:
        description: Grafana's type of the data source. V(auto) is V(prometheus), or with O(datasource.sigv4_region)
          V(grafana-amazonprometheus-datasource) from Grafana 13 on, and in a Grafana 12 with that plugin.
        type: str
        default: auto
      sigv4_region:
        description: AWS region of the workspace, for signed requests.
        type: str
        default: ""
      sigv4_auth:
        description: Grafana's word for its source of credentials, such as V(ec2_iam_role), V(default) or V(keys).
          V(auto) keeps an existing data source's own, and is otherwise the workspace's role in Amazon Managed Grafana,
          and the AWS SDK's default chain elsewhere.
        type: str
        default: auto
      role_arn:
        description: ARN of a role that Grafana assumes.
        type: str
        default: ""
      scrape_interval:
        description: Interval at which Prometheus scrapes, from which Grafana works out the ranges of rates.
        type: str
        default: 60s
  timeout:
    description: Seconds that Grafana has to answer.
    type: int
    default: 30
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Bring the dashboards into Amazon Managed Grafana
  pcluster.postboot.grafana_dashboards:
    url: https://g-0123456789.grafana-workspace.us-east-2.amazonaws.com
    token_secret: grafana/pcluster
    dashboards: "{{ query('ansible.builtin.fileglob', 'dashboards/*.json') }}"
    datasource:
      name: AMP
      uid: pcluster-amp
      url: https://aps-workspaces.us-east-2.amazonaws.com/workspaces/ws-0123
      sigv4_region: us-east-2
"""

RETURN = r"""
changes:
  description: Changes that were made, or in check mode would be.
  type: list
  elements: str
  returned: success
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._aws import secret
from ansible_collections.pcluster.postboot.plugins.module_utils._grafana import api, dashboards
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def authorization(params: dict[str, Any]) -> str:
    """Return who asks."""
    if params["token_file"]:
        return "Bearer " + secret.from_file(params["token_file"], "dashboards_token_file")
    if params["token_secret"]:
        source = "dashboards_token_secret"
        return "Bearer " + secret.from_aws(params["token_secret"], "token", params["region"], source)
    if params["password_file"]:
        return api.basic(params["user"], secret.from_file(params["password_file"], "dashboards_password_file"))
    token = os.environ.get("GRAFANA_TOKEN", "").strip()
    if not token:
        raise Problem(
            "there is no token; needed: one in the environment variable GRAFANA_TOKEN, dashboards_token_file or "
            "dashboards_token_secret, or a password in dashboards_password_file"
        )
    return "Bearer " + secret.one_line(token, "GRAFANA_TOKEN")


def dashboard(path: str) -> dict[str, Any]:
    """Read a dashboard."""
    try:
        found = document.read(path)
    except (OSError, ValueError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found.get("uid") or not found.get("title"):
        raise Problem(f"{path} is no dashboard; needed: an object with a uid and a title")
    return found


def work(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    client = api.Client(params["url"], authorization(params), params["timeout"])
    if client.plain:
        module.warn(f"{params['url']} is not encrypted: whoever listens on the way learns the token")
    given = params["datasource"]
    source = given and dashboards.Source(
        given["name"],
        given["uid"],
        given["url"],
        given["type"],
        given["sigv4_region"],
        given["role_arn"],
        given["scrape_interval"],
        given["sigv4_auth"],
    )
    request = dashboards.Request(
        [dashboard(path) for path in params["dashboards"]],
        params["folder"],
        params["folder_uid"],
        source or None,
        module.check_mode,
    )
    changes = dashboards.Importer(client, request).run()
    return {
        "changed": bool(changes),
        "changes": [f"{change.what} {change.action}" for change in changes],
        "diff": [
            {"before_header": change.what, "after_header": change.what, "before": change.before, "after": change.after}
            for change in changes
        ],
    }


def main() -> None:
    text = {"type": "str", "default": ""}
    serve(
        {
            "url": {"type": "str", "required": True},
            # Where secrets are, and not secrets.
            "token_file": {"type": "path", "default": "", "no_log": False},
            "token_secret": {**text, "no_log": False},
            "password_file": {"type": "path", "default": "", "no_log": False},
            "region": text,
            "user": {"type": "str", "default": "admin"},
            "dashboards": {"type": "list", "elements": "path", "default": []},
            "folder": {"type": "str", "default": "ParallelCluster"},
            "folder_uid": {"type": "str", "default": "pcluster"},
            "datasource": {
                "type": "dict",
                "options": {
                    "name": {"type": "str", "required": True},
                    "uid": {"type": "str", "required": True},
                    "url": {"type": "str", "required": True},
                    "type": {"type": "str", "default": "auto"},
                    "sigv4_region": text,
                    "sigv4_auth": {"type": "str", "default": "auto"},
                    "role_arn": text,
                    "scrape_interval": {"type": "str", "default": "60s"},
                },
            },
            "timeout": {"type": "int", "default": 30},
        },
        work,
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.grafana_dashboards."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: grafana_dashboards
short_description: Have dashboards, their folder and their data source in a Grafana
version_added: 0.1.0
description:
  - Brings dashboards into Amazon Managed Grafana or any other one through its HTTP API, and changes only what differs.
  - What a person has changed in one of these dashboards is put back. Other dashboards are not touched.
options:
  url:
    description:
      - Address of Grafana, with the path below which it is served. A redirection is not followed.
    type: str
    required: true
  token_file:
    description:
      - File on this machine with the token of a service account.
    type: path
    default: ""
  token_secret:
    description:
      - Name or ARN of a secret in AWS Secrets Manager with the token, read with the AWS CLI. It is text, or an object
        with the key C(token).
    type: str
    default: ""
  region:
    description:
      - Region of O(token_secret), unless the AWS CLI knows it.
    type: str
    default: ""
  user:
    description:
      - User who logs in with the password in O(password_file), where there is no token.
    type: str
    default: admin
  password_file:
    description:
      - File on this machine with the password of O(user).
    type: path
    default: ""
  dashboards:
    description:
      - Files with dashboards as JSON. Each has a C(uid) and a C(title).
    type: list
    elements: path
    default: []
  folder:
    description:
      - Name of the folder of the dashboards. Empty leaves them where they are, and puts new ones at the top.
    type: str
    default: ParallelCluster
  folder_uid:
    description:
      - The folder's own identifier.
    type: str
    default: pcluster
  datasource:
    description:
      - The data source that the dashboards open with. Left out, none is made, and they open with Grafana's default.
    type: dict
    suboptions:
      name:
        description:
          - Its name.
        type: str
        required: true
      uid:
        description:
          - Its own identifier.
        type: str
        required: true
      url:
        description:
          - Address of Prometheus, as Grafana reaches it, or of the workspace in Amazon Managed Service for Prometheus.
        type: str
        required: true
      type:
        description:
          - Grafana's type for it. V(auto) is V(prometheus), or with O(datasource.sigv4_region)
            V(grafana-amazonprometheus-datasource) from Grafana 13 on, and in Grafana 12 where it has that plugin.
        type: str
        default: auto
      sigv4_region:
        description:
          - The workspace's region, where Grafana shall sign its requests.
        type: str
        default: ""
      sigv4_auth:
        description:
          - Where Grafana takes its credentials from, in its own words, such as V(ec2_iam_role), V(default) or V(keys).
            V(auto) is the workspace's own role in Amazon Managed Grafana, and the default chain of AWS' SDK elsewhere;
            a data source that is there keeps its own.
        type: str
        default: auto
      role_arn:
        description:
          - A role that Grafana shall assume for that.
        type: str
        default: ""
      scrape_interval:
        description:
          - How often Prometheus scrapes. Grafana works out the range of every rate from it.
        type: str
        default: 60s
  timeout:
    description:
      - Seconds that Grafana has to answer.
    type: int
    default: 30
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  platform:
    platforms: posix
notes:
  - The token may also be in the environment variable E(GRAFANA_TOKEN). It is taken where neither a file nor a secret is
    named.
  - Neither a token nor a password is ever an argument, so that none is on a command line or in a log.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: The dashboards are in Amazon Managed Grafana, and ask Amazon Managed Service for Prometheus
  pcluster.postboot.grafana_dashboards:
    url: https://g-0123456789.grafana-workspace.us-east-2.amazonaws.com
    token_secret: grafana/pcluster
    dashboards: "{{ query('ansible.builtin.fileglob', 'dashboards/*.json') }}"
    datasource:
      name: AMP
      uid: pcluster-amp
      url: https://aps-workspaces.us-east-2.amazonaws.com/workspaces/ws-0123
      sigv4_region: us-east-2

- name: They are in a Grafana that is reached through a tunnel, and open with its default data source
  pcluster.postboot.grafana_dashboards:
    url: http://127.0.0.1:3000/grafana
    password_file: ~/.grafana-password
    dashboards: [overview.json, gpu.json]
"""

RETURN = r"""
changes:
  description: What was changed, or in check mode would be.
  type: list
  elements: str
  returned: success
  sample: ["folder 'ParallelCluster' created", "dashboard 'GPUs' updated"]
"""

import json
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _grafana, _grafana_dashboards, _secret
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def authorization(params: dict[str, Any]) -> str:
    """Return who asks."""
    if params["token_file"]:
        return "Bearer " + _secret.from_file(params["token_file"], "dashboards_token_file")
    if params["token_secret"]:
        source = "dashboards_token_secret"
        return "Bearer " + _secret.from_aws(params["token_secret"], "token", params["region"], source)
    if params["password_file"]:
        return _grafana.basic(params["user"], _secret.from_file(params["password_file"], "dashboards_password_file"))
    token = os.environ.get("GRAFANA_TOKEN", "").strip()
    if not token:
        raise Problem(
            "there is no token; needed: one in the environment variable GRAFANA_TOKEN, dashboards_token_file or "
            "dashboards_token_secret, or a password in dashboards_password_file"
        )
    return "Bearer " + _secret.one_line(token, "GRAFANA_TOKEN")


def dashboard(path: str) -> dict[str, Any]:
    """Read a dashboard."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not found.get("uid") or not found.get("title"):
        raise Problem(f"{path} is no dashboard; needed: an object with a uid and a title")
    return found


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    params = module.params
    client = _grafana.Client(params["url"], authorization(params), params["timeout"])
    if client.plain:
        module.warn(f"{params['url']} is not encrypted: whoever listens on the way learns the token")
    given = params["datasource"]
    source = given and _grafana_dashboards.Source(
        given["name"],
        given["uid"],
        given["url"],
        given["type"],
        given["sigv4_region"],
        given["role_arn"],
        given["scrape_interval"],
        given["sigv4_auth"],
    )
    request = _grafana_dashboards.Request(
        [dashboard(path) for path in params["dashboards"]],
        params["folder"],
        params["folder_uid"],
        source or None,
        module.check_mode,
    )
    changes = _grafana_dashboards.Importer(client, request).run()
    return {
        "changed": bool(changes),
        "changes": [f"{change.what} {change.action}" for change in changes],
        "diff": [
            {"before_header": change.what, "after_header": change.what, "before": change.before, "after": change.after}
            for change in changes
        ],
    }


def main() -> None:
    """Run the module."""
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

# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The log group of a cluster, which ParallelCluster names by the time at which the cluster was made."""

from __future__ import annotations

import re
from typing import Any

PREFIX = "/aws/parallelcluster/"


def newest(client: Any, cluster: str) -> str:
    """Return the cluster's newest log group; nothing where there is none. Former clusters' groups come first."""
    pages = client.get_paginator("describe_log_groups").paginate(logGroupNamePrefix=f"{PREFIX}{cluster}-")
    names = [str(group["logGroupName"]) for page in pages for group in page["logGroups"]]
    own = re.compile(rf"{re.escape(PREFIX + cluster)}-\d{{12}}")
    return max(filter(own.fullmatch, names), default="")

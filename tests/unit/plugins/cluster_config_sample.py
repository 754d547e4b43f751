# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A cluster that tests of cluster_config begin with, and the variables as the action hands them on."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import render
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components

HEAD, COMPUTE, OTHER = (f"subnet-0123456789abcdef{digit}" for digit in "012")
FSX, VOLUME = "fs-0123456789abcdef0", "fsvol-0123456789abcdef0"
BLOCK = "cr-0123456789abcdef0"
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/mine"
POLICY = "arn:aws:iam::123456789012:policy/mine"
BUNDLE = {"url": "s3://my-bucket/postboot/0.1.0-0123456789ab", "sha256": "0" * 64}
COMPONENTS = components.read()


def given(**more: Any) -> dict[str, Any]:
    return {
        "name": "ml",
        "version": "3.16.1",
        "region": "us-east-1",
        "subnet_head": HEAD,
        "subnet_compute": COMPUTE,
        "container_image_gb": 10,
        "prometheus_gb": 10,
        "queues": [{"name": "gpu", "instance_type": "p5.48xlarge", "max": 4}],
        **more,
    }


def rendered(base: dict[str, Any] | None = None, **more: Any) -> render.Outcome:
    return render.render(given(**more), base, COMPONENTS)


def config(base: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    outcome = rendered(base, **more)
    assert list(outcome.problems) == []
    return outcome.config


def queue(**more: Any) -> dict[str, Any]:
    """Return the one queue of a configuration, whose variables these are."""
    found: dict[str, Any] = config(queues=[{"name": "gpu", **more}])["Scheduling"]["SlurmQueues"][0]
    return found


def only(*starts: str, **more: Any) -> None:
    """Look that the problems begin like these, and that there are no others."""
    problems = rendered(**more).problems
    assert len(problems) == len(starts), problems
    for line, start in zip(problems, starts):
        assert line.startswith(start)
        assert "\n" not in line
        assert "needed" in line

# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An update of the cluster brings a bundle to a queue. Its nodes are powered down then, for as long as SuspendTimeout
says; other tests run meanwhile, and test_pull.py has one of them boot."""

from __future__ import annotations

from collections.abc import Callable

import yaml
from testinfra.host import Host

from .bundles import Bundle

On = Callable[[str], Host]


def test_an_update_has_a_queue_boot_with_the_bundle(on: On, bundle: Bundle) -> None:
    head = on("head")
    config = yaml.safe_load(head.check_output("cat /opt/parallelcluster/shared/cluster-config.yaml"))
    (queue,) = [one for one in config["Scheduling"]["SlurmQueues"] if one["Name"] == "burst"]
    action = queue["CustomActions"]["OnNodeConfigured"]
    assert (action["Script"], action["Args"]) == (bundle.script, bundle.args)
    # The other queues have not changed: their nodes go on.
    assert head.check_output("/opt/slurm/bin/sinfo --noheader --partition=static --format=%T") == "idle"

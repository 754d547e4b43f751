# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An update of the cluster brings a bundle to a queue.

Its nodes are powered down then, for as long as SuspendTimeout says, before one of them can boot for test_pull.py. Other
tests run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from .bundles import Bundle
from .helpers import On
from .test_pull import SPARE


@pytest.fixture
def asked_for(request: pytest.FixtureRequest, on: On, bundle: Bundle) -> Iterator[None]:
    """The node of test_pull.py, if that runs too, is asked for as soon as the queue boots with the bundle."""
    yield
    if bundle.name and any(item.path.name == "test_pull.py" for item in request.session.items):
        job = f"sbatch --parsable --output=/dev/null --partition=burst --nodelist={SPARE} --wrap true"
        on("head").check_output(f"runuser -u ubuntu -- /opt/slurm/bin/{job}")


@pytest.mark.usefixtures("asked_for")
def test_an_update_has_a_queue_boot_with_the_bundle(on: On, bundle: Bundle) -> None:
    head = on("head")
    config = yaml.safe_load(head.check_output("cat /opt/parallelcluster/shared/cluster-config.yaml"))
    (queue,) = [one for one in config["Scheduling"]["SlurmQueues"] if one["Name"] == "burst"]
    action = queue["CustomActions"]["OnNodeConfigured"]
    assert (action["Script"], action["Args"]) == (bundle.script, bundle.args)
    # The other queues have not changed: their nodes go on.
    assert head.check_output("/opt/slurm/bin/sinfo --noheader --partition=static --format=%T") == "idle"

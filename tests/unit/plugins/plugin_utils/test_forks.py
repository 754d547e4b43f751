# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What forks of Ansible's process begin with. A process of its own, as other tests have loaded plugins in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, json, os, sys
from ansible.plugins.loader import filter_loader, init_plugin_loader
init_plugin_loader([sys.argv[1]])
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import forks
forks.prepare()
print(json.dumps({"frozen": gc.get_freeze_count()}), flush=True)
if not os.fork():
    before = set(sys.modules)
    filter_loader.get("pcluster.postboot.parents")
    filter_loader.get("ansible.builtin.to_json")
    print(json.dumps({"frozen": gc.get_freeze_count(), "new": sorted(set(sys.modules) - before)}), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_fork_has_the_plugins_and_looks_for_no_garbage_in_them(collections: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, collections], text=True, capture_output=True, timeout=60, check=True
    )
    controller, fork = map(json.loads, done.stdout.splitlines())
    assert controller["frozen"] == 0 < fork.pop("frozen")
    assert fork == {"new": []}

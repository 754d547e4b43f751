# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shared tree, where ordinary users have put something into it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]
# Every user may write into its parent.
TREE = "/fsx/datasets/test-tree"
USER = "setpriv --reuid=65534 --regid=65534 --clear-groups"


@pytest.mark.long
def test_a_users_link_leads_root_nowhere(on: On, play: Play) -> None:
    head = on("head")
    head.check_output("mkdir -m 0755 /root/elsewhere")
    head.check_output(f"{USER} mkdir {TREE} && {USER} ln -s /root/elsewhere {TREE}/lead")
    wanted = [{"path": f"datasets/test-tree{path}", "mode": "1777"} for path in ("", "/lead", "/lead/sub", "/own")]
    try:
        done = play("--limit", "head", "--tags", "fsx", "-e", json.dumps({"fsx_directories": wanted}))
        assert done.returncode == 0, done.stdout[-3000:]
        said = " ".join((done.stdout + done.stderr).split())
        assert f"{TREE}/lead is a link of user nobody, and is not followed" in said
        assert f"users can replace what lies in {TREE} (0755 nobody:nogroup)" in said
        assert head.check_output("stat -c '%U %a' /root/elsewhere") == "root 755"
        assert head.check_output("ls /root/elsewhere") == ""
        assert head.check_output(f"stat -c '%U %a' {TREE}/own") == "root 1777"
    finally:
        head.check_output(f"rm -rf {TREE} /root/elsewhere")

# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shared tree, where ordinary users have put something into it."""

from __future__ import annotations

import pytest

from .helpers import On, Play, as_user, ok, said, variables

GPU = "gpu-st-p5-1"
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
        done = ok(play("--limit", "head", "--tags", "fsx", *variables(fsx_directories=wanted)))
        text = said(done)
        assert f"{TREE}/lead is a link of user nobody, and is not followed" in text
        assert f"users can replace what lies in {TREE} (0755 nobody:nogroup)" in text
        assert head.check_output("stat -c '%U %a' /root/elsewhere") == "root 755"
        assert head.check_output("ls /root/elsewhere") == ""
        assert head.check_output(f"stat -c '%U %a' {TREE}/own") == "root 1777"
    finally:
        head.check_output(f"rm -rf {TREE} /root/elsewhere")


def test_a_user_sees_how_a_node_is(on: On) -> None:
    line = f"srun --nodelist={GPU} --partition=gpu --exclusive /fsx/scripts/check-compute-setup.sh"
    done = as_user(on("login"), "alice", line)
    assert done.rc == 0, done.stdout + done.stderr
    first, *lines, last = done.stdout.splitlines()
    assert first.startswith(f"{GPU}: compute, ")
    assert last == "all is well"
    states = {line.split()[0]: line.split()[1] for line in lines if line.startswith("  ")}
    now = {"/fsx", "GPUs", "EFA", "NCCL", "containers", "services", "Slurm"}
    assert {states.get(name) for name in now | {"docker", "efa", "nccl"}} == {"ok"}, done.stdout


def test_a_service_that_does_not_run_is_named(on: On) -> None:
    node = on(GPU)
    node.check_output("systemctl stop node_exporter")
    try:
        done = as_user(
            on("login"), "alice", f"srun --nodelist={GPU} --partition=gpu /fsx/scripts/check-compute-setup.sh"
        )
        assert done.rc == 1
        assert done.stdout.splitlines()[-1] == "not well: services"
        assert "node_exporter does not run: systemctl status node_exporter" in done.stdout
    finally:
        node.check_output("systemctl start node_exporter")


def test_a_user_sees_which_nodes_are_up(on: On) -> None:
    done = as_user(on("login"), "alice", "/fsx/scripts/monitor-compute-node-setup.sh main us-east-1")
    assert done.rc == 0, done.stdout + done.stderr
    assert " nodes are up, " in done.stdout
    assert "pcluster.postboot.status" in done.stdout.splitlines()[-1]

# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tools for people on the login node, from the distribution's repository."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testinfra.host import Host

from .helpers import On, Play, as_user, failure, ok, variables

ONLY = ("--limit", "login", "--tags", "login_tools")
TOOLS = ["htop", "jq", "tmux", "tree"]
ARCHIVE = "http://mirror/archive.ubuntu.com/ubuntu"
SOURCE, KEYS = "/etc/apt/sources.list.d/ubuntu.sources", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"


@pytest.fixture
def login(on: On) -> Iterator[Host]:
    """The login node with the repository that each image of Ubuntu names; then without it and what came from there."""
    node = on("login")
    text = f"Types: deb\\nURIs: {ARCHIVE}\\nSuites: noble\\nComponents: universe\\nSigned-By: {KEYS}\\n"
    node.check_output(f"curl -sf -o {KEYS} {ARCHIVE}/ubuntu-archive-keyring.gpg && printf '{text}' > {SOURCE}")
    before = set(node.check_output("dpkg-query --show --showformat '${Package}\\n'").split())
    yield node
    new = set(node.check_output("dpkg-query --show --showformat '${Package}\\n'").split()) - before
    if new:
        node.check_output(f"dpkg --purge {' '.join(sorted(new))}")
    node.check_output(f"rm {SOURCE} {KEYS}")


def test_people_have_their_tools_where_they_log_in(login: Host, play: Play) -> None:
    wanted = variables(login_tools_packages=TOOLS)
    done = ok(play(*ONLY, *wanted))
    assert "1 changed, 0 failed" in done.stdout, done.stdout[-2000:]
    told = as_user(login, "ubuntu", "tree -L 1 /opt/slurm && tmux -V && htop --version")
    assert told.rc == 0, told.stderr
    assert "slurm" in told.stdout
    assert "0 changed, 0 failed" in ok(play(*ONLY, *wanted)).stdout


@pytest.mark.long
def test_a_tool_that_no_repository_has_is_one_line_and_stops_no_node(on: On, play: Play) -> None:
    done = ok(play(*ONLY, *variables(login_tools_extra_packages=["nvtop"])))
    line = failure(done, "login", "login_tools")
    assert "Unable to locate package nvtop; enable the repository that has it" in line, done.stdout[-2000:]
    assert "0 failed" in ok(play(*ONLY)).stdout

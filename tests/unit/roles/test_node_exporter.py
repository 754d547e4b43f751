# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What node_exporter works out from the facts of a node, and what dashboards and rules ask of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Variables = Callable[..., Callable[[str], Any]]


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(**more) returns a function that works out a variable or a text."""
    facts = {"architecture": "aarch64", "go_architecture": "arm64"}
    return lambda **more: work_out("common node_exporter", facts, **more)


def test_the_archive_of_node_exporter(variables: Variables) -> None:
    value = variables()
    assert value("__node_exporter_url") == (
        "https://github.com/prometheus/node_exporter/releases/download/v1.12.1/node_exporter-1.12.1.linux-arm64.tar.gz"
    )


def test_where_the_node_reaches_its_own_exporter(variables: Variables) -> None:
    assert variables(node_exporter_listen_address=":9200")("__node_exporter_local_address") == "127.0.0.1:9200"


def test_the_command_line_reaches_node_exporter_word_by_word(variables: Variables, repo: Path) -> None:
    flags = [r"--collector.filesystem.mount-points-exclude=^/(dev|proc)($|/)", "--a=100%", 'say "so" \\.']
    value = variables(
        node_exporter_efa=False,
        node_exporter_flags=flags,
        node_exporter_collectors_enabled=["systemd", "processes"],
        node_exporter_collectors_disabled=["zfs"],
    )
    arguments = value("__node_exporter_arguments")
    assert arguments[2:] == ["--collector.systemd", "--collector.processes", "--no-collector.zfs", *flags]
    template = (repo / "roles/node_exporter/templates/node_exporter.service.j2").read_text()
    line = template.split("ExecStart=")[1].split("\n\n")[0]
    rendered = value(line)
    # systemd undoes C escapes in quotes as a shell does, and doubles of % and $.
    words = shlex.split(rendered.replace("\\\n", " "))
    assert [word.replace("%%", "%").replace("$$", "$") for word in words][1:] == arguments
    assert "ansible_managed" in template.splitlines()[0]


# What a p5 with Ubuntu 24.04 mounts, and the types that node_exporter 1.12.1 leaves out (filesystem_linux.go).
LEFT_OUT = (
    "autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs fusectl hugetlbfs iso9660 mqueue nsfs "
    "overlay proc procfs pstore rpc_pipefs securityfs selinuxfs squashfs erofs sysfs tracefs"
)
MOUNTED = {
    "/": "ext4", "/dev": "devtmpfs", "/dev/shm": "tmpfs", "/dev/pts": "devpts", "/dev/mqueue": "mqueue",
    "/dev/hugepages": "hugetlbfs", "/proc": "proc", "/sys": "sysfs", "/run": "tmpfs", "/run/lock": "tmpfs",
    "/run/credentials/systemd-sysusers.service": "ramfs", "/run/docker/netns/default": "nsfs", "/tmp": "tmpfs",
    "/var/lib/docker/overlay2/0a/merged": "overlay", "/var/lib/docker/containers/0a/mounts/shm": "tmpfs",
}  # fmt: skip


def test_memory_that_fills_up_has_a_metric(variables: Variables) -> None:
    """node_exporter's own default leaves out all below /dev."""
    flag = "--collector.filesystem.mount-points-exclude="
    (given,) = (one for one in variables()("__node_exporter_arguments") if one.startswith(flag))
    seen = [path for path, kind in MOUNTED.items() if kind not in LEFT_OUT.split()]
    assert [path for path in seen if not re.search(given.removeprefix(flag), path)] == [
        *("/", "/dev/shm", "/run", "/run/lock", "/tmp")
    ]
    own = f"{flag}^/proc"
    arguments = variables(node_exporter_flags=[own])("__node_exporter_arguments")
    assert [one for one in arguments if one.startswith(flag)] == [own]


# What each collector gives, as seen of node_exporter 1.11; netclass has its names among those of netdev.
SWITCHED_OFF = {
    "cpu.guest": "node_cpu_guest_",
    "infiniband": "node_infiniband_",
    "netclass": r"node_network_(?!(?:receive|transmit)_\w+_total)",
    "nfs": "node_nfs_",
    "schedstat": "node_schedstat_",
    "softnet": "node_softnet_",
}


def test_no_panel_and_no_rule_asks_for_what_node_exporter_leaves_out(repo: Path) -> None:
    defaults = yaml.safe_load((repo / "roles/node_exporter/defaults/main.yml").read_text())
    assert sorted(defaults["node_exporter_collectors_disabled"]) == sorted(SWITCHED_OFF)
    files = [*repo.glob("roles/grafana/files/dashboards/*.json"), *repo.glob("roles/prometheus/files/rules/*.yml")]
    assert len(files) > 8
    text = "".join(path.read_text() for path in files)
    assert "node_network_receive_bytes_total" in text
    for name, pattern in SWITCHED_OFF.items():
        assert re.findall(f"{pattern}\\w*", text) == [], name
    assert "--web.disable-exporter-metrics" in defaults["node_exporter_flags"]
    # Prometheus tells of its own process under the same names, and no panel and no rule asks for them.
    # Commands, in backticks, may name a component. The handler's errors stay (node_exporter 1.5.0, seen with the flag).
    asked = set(re.findall(r"\b(?:go|process|promhttp)_\w+", re.sub(r"`[^`\n]*`", "", text)))
    assert asked <= {"promhttp_metric_handler_errors_total"}


@pytest.mark.parametrize(
    ("unit", "told"),
    [
        ("supervisord.service", True),  # ParallelCluster's daemons run under it
        ("slurmctld.service", True),
        ("nvidia-dcgm-exporter.service", True),
        ("supervisord-other.service", False),
        ("ssh.service", False),
    ],
)
def test_the_units_on_which_a_cluster_lives(variables: Variables, unit: str, told: bool) -> None:
    flags = dict(flag.split("=", 1) for flag in variables()("node_exporter_flags") if "=" in flag)
    pattern = flags["--collector.systemd.unit-include"]
    assert bool(re.fullmatch(pattern, unit)) is told  # node_exporter puts ^(?:…)$ around it

# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the filters return. tests/unit/roles has what the roles' own variables come to through them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.pcluster.postboot.plugins.filter.as_files import as_files
from ansible_collections.pcluster.postboot.plugins.filter.builder_in_play import builder_in_play
from ansible_collections.pcluster.postboot.plugins.filter.environment import environment
from ansible_collections.pcluster.postboot.plugins.filter.local_address import local_address
from ansible_collections.pcluster.postboot.plugins.filter.merged import merged
from ansible_collections.pcluster.postboot.plugins.filter.mount_problems import mount_problems
from ansible_collections.pcluster.postboot.plugins.filter.parents import parents
from ansible_collections.pcluster.postboot.plugins.filter.problems import problems
from ansible_collections.pcluster.postboot.plugins.filter.secret_paths import secret_paths
from ansible_collections.pcluster.postboot.plugins.filter.shared_directory import shared_directory


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        (":9100", "127.0.0.1:9100"),
        ("0.0.0.0:9200", "127.0.0.1:9200"),
        ("[::]:9100", "127.0.0.1:9100"),
        ("10.0.0.4:9100", "10.0.0.4:9100"),
        ("[::1]:9100", "[::1]:9100"),
        ("localhost:9100", "localhost:9100"),
    ],
)
def test_local_address(listen: str, local: str) -> None:
    assert local_address(listen) == local


@pytest.mark.parametrize(
    ("path", "found"),
    [("/a/b/c", ["/a", "/a/b", "/a/b/c"]), ("/a//b/", ["/a", "/a/b"]), ("/", []), ("", [])],
)
def test_parents(path: str, found: list[str]) -> None:
    assert parents(path) == found


LUSTRE, HOME, SLURM, EFS = (
    {"path": path, "type": kind}
    for path, kind in (("/lustre", "lustre"), ("/home", "nfs"), ("/opt/slurm", "nfs"), ("/efs", "efs"))
)


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ({}, "/fsx"),
        ({"wanted": [HOME, EFS, LUSTRE], "found": []}, "/lustre"),
        ({"wanted": [HOME, SLURM, EFS], "found": [HOME, EFS]}, "/efs"),
        ({"wanted": [HOME, SLURM], "found": [HOME]}, "/fsx"),
        ({"wanted": [EFS], "found": [EFS, {"path": "/fsx"}]}, "/fsx"),
    ],
)
def test_shared_directory(mounts: dict[str, Any], found: str) -> None:
    assert shared_directory(mounts) == found


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ({"values": {"x_dir": "/a b", "x_home": "/a"}, "pattern": "(/[a-z]+)+"}, ["x_dir: found /a b; needed: y"]),
        ({"values": {"x_dir": "/a\n"}, "pattern": "/a"}, ["x_dir: found /a\n; needed: y"]),
        ({"values": {"x_size": 12}, "pattern": "[0-9]+"}, []),
        ({"values": {"x_list": ["a", "B", "C"]}, "pattern": "[a-z]"}, [f"x_list: found {n}; needed: y" for n in "BC"]),
        ({"values": {"x_list": []}, "pattern": "[a-z]"}, []),
        ({"values": {"x": 11}, "wrong": True, "instead": "z: 1"}, ["x: found 11; needed: y, or z: 1"]),
        ({"values": {"x": 11}, "wrong": False}, []),
        ({"values": {"x": [75, 80]}, "wrong": True}, ["x: found 75, 80; needed: y"]),
        ({"values": {"x": []}, "wrong": True}, ["x: found none; needed: y"]),
    ],
)
def test_problems(rule: dict[str, Any], found: list[str]) -> None:
    assert problems([{"needed": "y", **rule}]) == found


def test_a_rule_that_says_not_what_is_wrong_is_refused() -> None:
    with pytest.raises(KeyError, match="wrong"):
        problems([{"values": {"x": 1}, "needed": "y"}])


LUSTRE = {"path": "/fsx", "type": "lustre", "source": "fs-1@tcp:/abc"}
EFS = {"path": "/shared", "type": "efs", "source": None}


@pytest.mark.parametrize(
    ("found", "missing", "says"),
    [
        ([LUSTRE, {**EFS, "type": "nfs4"}], [], []),
        (
            [LUSTRE],
            ["/fsx", "/shared"],
            [
                "/fsx: the cluster promises lustre from fs-1@tcp:/abc, found a mount that does not answer; "
                "see `systemctl status /fsx`, then `mount /fsx`",
                "/shared: the cluster promises efs, found no mount; "
                "see `systemctl status /shared`, then `mount /shared`",
            ],
        ),
        (
            [{**LUSTRE, "type": "ext4", "source": "/dev/sdb"}],
            [],
            [
                "/fsx: the cluster promises lustre from fs-1@tcp:/abc, found ext4 from /dev/sdb; "
                "mount the right one, or add ext4 to fsx_fstypes"
            ],
        ),
    ],
)
def test_mount_problems(found: list[Any], missing: list[str], says: list[str]) -> None:
    mounts = {"wanted": [LUSTRE, EFS], "found": found, "missing": missing}
    assert mount_problems(mounts, ["lustre"]) == says
    assert mount_problems(mounts, ["lustre", "ext4"]) == (says if missing else [])


def test_as_files() -> None:
    assert as_files({"a.sh": "text"}, mode="0755") == [{"path": "a.sh", "content": "text", "mode": "0755"}]
    contents = {"a": "x: 1\n", "b.yml": {"z": 1, "a": "{{ $value }}"}, "c.yaml": "", "d.yml.old": ""}
    files = as_files(contents, "rules/{}.yml", source="prometheus_rules['{}']")
    assert [file["path"] for file in files] == [f"rules/{name}.yml" for name in ("a", "b", "c", "d.yml.old")]
    assert files[1] == {
        "path": "rules/b.yml",
        "content": "z: 1\na: '{{ $value }}'\n",
        "source": "prometheus_rules['b.yml']",
    }


def test_builder_in_play() -> None:
    def facts(kind: str, name: str) -> dict[str, Any]:
        return {"ansible_facts": {"pcluster": {"node_type": kind, "node_name": name, "cluster": "main"}}}

    hosts = {"one": facts("compute", "n"), "h": facts("head", "ip-10"), "gone": {}, "new": {"ansible_facts": {}}}
    assert builder_in_play(hosts, hosts, "main")
    assert not builder_in_play(["one", "gone", "new"], hosts, "main")
    assert not builder_in_play(hosts, hosts, "el")
    assert builder_in_play(hosts, hosts, "main", "n")
    assert builder_in_play(hosts, hosts, "main", "one")
    assert not builder_in_play(hosts, hosts, "main", "other")


def test_secret_paths_finds_what_is_read_later_and_is_no_certificate() -> None:
    receivers = [
        {
            "name": "people",
            "slack_configs": [{"api_url_file": "/s/slack", "http_config": {"proxy_url": "http://proxy"}}],
            "webhook_configs": [
                {
                    "url_file": "/s/slack",
                    "http_config": {
                        "authorization": {"credentials_file": "/s/token"},
                        "tls_config": {"ca_file": "/etc/ca.pem", "cert_file": "/etc/me.pem", "key_file": "/s/me.key"},
                    },
                }
            ],
        },
        {"name": "file_sd", "discord_configs": None},
    ]
    assert secret_paths([{"smtp_auth_password_file": "/s/smtp"}, receivers]) == [
        "/s/me.key",
        "/s/slack",
        "/s/smtp",
        "/s/token",
    ]
    assert secret_paths({}) == []


def test_merged() -> None:
    assert merged({"a": 1, "b": 2, "c": 3}, {"b": None, "c": {}, "d": False}) == {"a": 1, "c": {}, "d": False}
    assert merged({"a": 1}, {}) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("NCCL_P2P_DISABLE", True, "1"),
        ("NCCL_P2P_DISABLE", "False", "0"),
        ("NCCL_P2P_LEVEL", "NVL", "NVL"),
        ("NCCL_BUFFSIZE", 8388608, "8388608"),
        ("NCCL_BUFFSIZE", "0x800000", "0x800000"),
        ("NCCL_NET_OVERHEAD", "-2", "-2"),
        ("NCCL_THREAD_THRESHOLDS", "16 16 64", "16 16 64"),
        ("NCCL_ALGO", "ring;allreduce:tree,collnetdirect", "ring;allreduce:tree,collnetdirect"),
        ("NCCL_DEBUG", "info", "info"),
        ("NCCL_SOCKET_IFNAME", "", ""),
        ("NCCL_HOSTID", "007", "007"),  # a text
        ("OFI_NCCL_USE_IPV6_TCP", True, "1"),
        ("OFI_NCCL_NET_LATENCY", "35.5", "35.5"),
        ("FI_EFA_FORK_SAFE", False, "0"),
        ("FI_EFA_FORK_SAFE", "yes", "yes"),  # as libfabric reads it
        ("FI_LOG_LEVEL", "warn", "warn"),
        ("UCX_NET_DEVICES", "mlx5_0:1, mlx5_1:1", "mlx5_0:1, mlx5_1:1"),  # another reader, of which nothing is known
        ("OMP_NUM_THREADS", 8, "8"),
        ("OMP_NUM_THREADS", "08", "08"),
    ],
)
def test_a_value_of_the_environment(name: str, value: Any, text: str) -> None:
    assert environment({name: value, "NCCL_NET": None}) == {name: text}


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("NCCL_BUFFSIZE", "8M", 8),
        ("NCCL_BUFFSIZE", "1e6", 1),
        ("NCCL_BUFFSIZE", "0x10M", 16),
        ("NCCL_IB_TC", "0106", 70),
        ("NCCL_IB_TC", "09", 0),
        ("NCCL_IB_TIMEOUT", "22.5", 22),
        ("FI_EFA_TX_SIZE", "4K", 4),
        ("FI_EFA_TX_SIZE", "+010", 8),
    ],
)
def test_a_number_that_is_read_as_another_is_refused(name: str, value: str, read: int) -> None:
    with pytest.raises(AnsibleFilterError, match=f"because this is read as {read}$"):
        environment({name: value})


def test_a_value_of_the_environment_may_be_text_that_holds_it() -> None:
    assert environment('{"NCCL_P2P_DISABLE": true}') == {"NCCL_P2P_DISABLE": "1"}
    assert environment("NCCL_DEBUG=INFO NCCL_NVLS_ENABLE=0") == {"NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "0"}
    with pytest.raises(AnsibleFilterError, match="needed: "):
        environment("NCCL_DEBUG")

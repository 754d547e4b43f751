# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the filters return. tests/unit/roles has what the roles' own variables come to through them."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.filter.as_files import as_files
from ansible_collections.pcluster.postboot.plugins.filter.builder_in_play import builder_in_play
from ansible_collections.pcluster.postboot.plugins.filter.local_address import local_address
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

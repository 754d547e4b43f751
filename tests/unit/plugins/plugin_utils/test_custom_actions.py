# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What publish.yml prints, against what ParallelCluster 3.13 to 3.16 takes (pcluster/schemas/cluster_schema.py)."""

from __future__ import annotations

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions as actions
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish.custom_actions import Release, Wanted

OLD = Release("s3://my-bucket/post/boot", "0.1.0-000000000000", "0" * 64, "210987654321", "aws-cn")
NEW = OLD._replace(name="0.2.0-e12345678901", sha256="1e" + "2" * 62)  # a hash that YAML may take for a number
PLAIN = Wanted({}, [])
READ_BUNDLES = "pcluster-postboot-my-bucket-6479da7a"
MINE = {"Script": "https://example.com/mine.sh", "Args": ["one", "2"]}
# What each kind of node may have below CustomActions and Iam.
ALLOWED = {
    "head": ({"OnNodeStart", "OnNodeConfigured", "OnNodeUpdated"}, {"S3Access", "AdditionalIamPolicies"}),
    "pool": ({"OnNodeStart", "OnNodeConfigured", "OnNodeUpdated"}, {"AdditionalIamPolicies"}),
    "queue": ({"OnNodeStart", "OnNodeConfigured"}, {"S3Access", "AdditionalIamPolicies"}),
}
POLICY = r"arn:[a-z-]+:iam::(aws|\d{12}):policy/.+"
CLUSTER: dict[str, Any] = {
    "Region": "us-east-1",
    "HeadNode": {"InstanceType": "m5.large", "CustomActions": {"OnNodeStart": MINE, "OnNodeConfigured": MINE}},
    "LoginNodes": {
        "Pools": [
            {"Name": "a", "Iam": {"AdditionalIamPolicies": [{"Policy": "arn:aws:iam::aws:policy/Mine"}]}},
            {"Name": "b", "CustomActions": {"OnNodeUpdated": {"Sequence": [MINE, MINE]}}},
        ]
    },
    "Scheduling": {
        "Scheduler": "slurm",
        "SlurmQueues": [
            {"Name": "cpu", "Iam": {"S3Access": [{"BucketName": "mine", "EnableWriteAccess": True}]}},
            {"Name": "gpu", "Iam": {"InstanceRole": "arn:aws:iam::210987654321:role/mine"}},
        ],
    },
}


def parsed(text: str) -> Any:
    return yaml.safe_load(text)


def nodes(found: Any) -> dict[str, tuple[str, Any]]:
    """Return each part, and of which kind it is, by its name."""
    parts = {"head": ("head", found["HeadNode"])}
    parts |= {pool["Name"]: ("pool", pool) for pool in found.get("LoginNodes", {}).get("Pools", [])}
    return parts | {queue["Name"]: ("queue", queue) for queue in found["Scheduling"]["SlurmQueues"]}


def scripts(action: dict[str, Any]) -> list[dict[str, Any]]:
    return action.get("Sequence", [action])


def assert_shape(found: Any) -> None:
    """Every rule of the schema that these parts could break."""
    for name, (kind, part) in nodes(found).items():
        events, rights = ALLOWED[kind]
        assert set(part["CustomActions"]) <= events, name
        for action in part["CustomActions"].values():
            assert set(action) == {"Sequence"} or set(action) <= {"Script", "Args"}
            for script in scripts(action):
                assert re.match(r"(s3|https)://", script["Script"])
                assert all(type(word) is str for word in script.get("Args", []))
        assert set(part["Iam"]) <= rights or set(part["Iam"]) == {"InstanceRole"}, name
        for access in part.get("Iam", {}).get("S3Access", []):
            assert re.fullmatch(r"[*a-z0-9.-]+", access["BucketName"])
            assert set(access) <= {"BucketName", "KeyName", "EnableWriteAccess"}
        for policy in part.get("Iam", {}).get("AdditionalIamPolicies", []):
            assert re.fullmatch(POLICY, policy["Policy"])


def test_an_example() -> None:
    text = actions.render(NEW, PLAIN)
    assert "&id" not in text  # a part can be copied without the others
    found = parsed(text)
    assert_shape(found)
    where = "s3://my-bucket/post/boot/0.2.0-e12345678901"
    ours = {
        "Script": f"{where}/bootstrap.sh",
        "Args": ["--bundle", f"{where}/pcluster-postboot.tar.gz", "--sha256", NEW.sha256],
    }
    by_access = {"S3Access": [{"BucketName": "my-bucket", "KeyName": "post/boot/*"}]}
    by_policy = {"AdditionalIamPolicies": [{"Policy": f"arn:aws-cn:iam::210987654321:policy/{READ_BUNDLES}"}]}
    both = {"OnNodeConfigured": ours, "OnNodeUpdated": ours}
    assert found["HeadNode"] == {"CustomActions": both, "Iam": by_access}
    (pool,) = found["LoginNodes"]["Pools"]
    assert (pool["CustomActions"], pool["Iam"]) == (both, by_policy)
    (queue,) = found["Scheduling"]["SlurmQueues"]
    assert (queue["CustomActions"], queue["Iam"]) == ({"OnNodeConfigured": ours}, by_access)


def test_the_policy_that_login_nodes_need() -> None:
    (line,) = [line for line in actions.render(NEW, PLAIN).splitlines() if "create-policy" in line]
    words = shlex.split(line.split("names: ")[1])
    assert words[:5] == ["aws", "iam", "create-policy", "--policy-name", READ_BUNDLES]
    statement = json.loads(words[words.index("--policy-document") + 1])["Statement"][0]
    assert statement["Resource"] == "arn:aws-cn:s3:::my-bucket/post/boot/*"
    assert statement["Action"] == "s3:GetObject"
    own = "arn:aws:iam::210987654321:policy/own"
    text = actions.render(NEW, Wanted({}, [], own))
    assert "create-policy" not in text
    assert parsed(text)["LoginNodes"]["Pools"][0]["Iam"] == {"AdditionalIamPolicies": [{"Policy": own}]}
    assert "arn:aws-cn:iam::<account>:policy/" in actions.render(NEW._replace(account=""), PLAIN)


def test_each_bucket_and_prefix_has_a_policy_of_its_own() -> None:
    longest = "b" * 63
    bases = ["s3://my-bucket/post/boot", "s3://my-bucket/post", "s3://my.bucket/post/boot", f"s3://{longest}/p"]
    names = [NEW._replace(base=base).policy_name for base in bases]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w+=,.@-]{1,128}", name) for name in names)
    assert NEW._replace(base="s3://my-bucket/post/boot//").policy_name == NEW.policy_name == READ_BUNDLES


def test_a_pool_keeps_the_policy_that_it_has_for_these_bundles() -> None:
    """Of an earlier publish, whose policies had all one name. A pool's Iam changes only while the pool is stopped."""
    former = {"AdditionalIamPolicies": [{"Policy": "arn:aws-cn:iam::210987654321:policy/pcluster-postboot-bundles"}]}
    cluster = {**CLUSTER, **parsed(actions.render(OLD, PLAIN, CLUSTER))}
    pool = cluster["LoginNodes"]["Pools"][1]
    pool["Iam"] = former
    cluster["LoginNodes"]["Pools"] = [pool]
    text = actions.render(NEW, PLAIN, cluster)
    assert parsed(text)["LoginNodes"]["Pools"][0]["Iam"] == former
    told = (
        "because its Iam may only change while the pool is stopped; it must allow s3:GetObject on arn:aws-cn:s3:::my-"
    )
    assert f"# login pool b keeps {former['AdditionalIamPolicies'][0]['Policy']}, {told}" in text
    assert "create-policy" not in text
    # That policy is of one prefix.
    text = actions.render(NEW._replace(base="s3://my-bucket/post"), PLAIN, cluster)
    names = [entry["Policy"].rpartition("/")[2] for entry in parsed(text)["LoginNodes"]["Pools"][0]["Iam"].popitem()[1]]
    assert names == ["pcluster-postboot-bundles", NEW._replace(base="s3://my-bucket/post").policy_name]
    assert f"--policy-name {names[1]} " in text


@pytest.mark.parametrize(
    ("caller", "arns"),
    [
        ("arn:aws-cn:iam::210987654321:user/team/me", ["arn:aws-cn:iam::210987654321:user/team/me"]),
        (
            "arn:aws-cn:sts::210987654321:assumed-role/AWSReservedSSO_Admin_0123/me@example.com",
            [
                "arn:aws-cn:iam::210987654321:role/AWSReservedSSO_Admin_0123",
                "arn:aws-cn:iam::210987654321:role/*/AWSReservedSSO_Admin_0123",
            ],
        ),
    ],
)
def test_the_policy_of_the_bucket(caller: str, arns: list[str]) -> None:
    (line,) = [line for line in actions.render(NEW._replace(caller=caller), PLAIN).splitlines() if "put-bucket" in line]
    words = shlex.split(line.lstrip("# "))
    assert words[:5] == ["aws", "s3api", "put-bucket-policy", "--bucket", "my-bucket"]
    (statement,) = json.loads(words[words.index("--policy") + 1])["Statement"]
    assert (statement["Effect"], statement["Principal"]) == ("Deny", "*")
    assert statement["Resource"] == ["arn:aws-cn:s3:::my-bucket", "arn:aws-cn:s3:::my-bucket/post/boot/*"]
    assert {"s3:PutObject*", "s3:DeleteObject*", "s3:DeleteBucketPolicy"} <= set(statement["Action"])
    assert statement["Condition"] == {"ArnNotLike": {"aws:PrincipalArn": arns}}


OTHER = {"Sid": "OnlyByTls", "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "*"}
OTHER["Condition"] = {"Bool": {"aws:SecureTransport": "false"}}
ME = "arn:aws-cn:iam::210987654321:user/me"


def printed_policy(there: dict[str, Any] | str | None) -> tuple[str, list[dict[str, Any]] | None]:
    """What is printed, and the statements that its command puts there."""
    text = actions.render(
        NEW._replace(caller=ME, bucket_policy=json.dumps(there) if isinstance(there, dict) else there), PLAIN
    )
    lines = [line for line in text.splitlines() if "put-bucket-policy" in line]
    return text, json.loads(shlex.split(lines[0].lstrip("# "))[-1])["Statement"] if lines else None


def protection(**changed: Any) -> dict[str, Any]:
    _text, statements = printed_policy("")
    assert statements is not None
    return {"Version": "2012-10-17", "Statement": [OTHER, {**statements[0], **changed}]}


def test_a_bucket_without_a_policy_needs_no_look_at_it() -> None:
    text, statements = printed_policy("")
    assert "The bucket has no policy yet" in text
    assert "get-bucket-policy" not in text
    assert statements is not None
    assert [each["Sid"] for each in statements] == ["OnlyPublishersWriteBundles"]


def test_a_policy_that_cannot_be_read_is_to_be_looked_at_first() -> None:
    text, _statements = printed_policy(None)
    assert text.index("get-bucket-policy") < text.index("put-bucket-policy")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"Action": "S3:*", "Resource": "*"},
        {"Principal": {"AWS": "*"}, "Action": ["s3:Put*"], "Resource": "arn:aws-cn:s3:::my-bucket*"},
        {"Condition": {"StringNotLike": {"AWS:principalarn": ME}}},
    ],
)
def test_a_policy_that_protects_the_bundles_is_left_alone(changed: dict[str, Any]) -> None:
    text, statements = printed_policy(protection(**changed))
    assert statements is None
    assert f"# The bucket's policy lets nobody write there but {ME}, and is left as it is." in text


@pytest.mark.parametrize(
    "changed",
    [
        {"Effect": "Allow"},
        {"Principal": {"AWS": ME}},
        {"Action": ["s3:PutObject"]},
        {"Resource": ["arn:aws-cn:s3:::my-bucket", "arn:aws-cn:s3:::my-bucket/other/*"]},
        {"Condition": {"ArnNotLike": {"aws:PrincipalArn": "*"}}},
        {"Condition": {"ArnLike": {"aws:PrincipalArn": ME}}},
        {"Condition": {"ArnNotLike": {"aws:PrincipalArn": ME}, "Bool": {"aws:SecureTransport": "false"}}},
        {"Condition": {"ArnNotLike": {"aws:PrincipalArn": ME, "aws:SourceArn": ME}}},
    ],
)
def test_a_policy_that_does_not_is_kept_beside_ours(changed: dict[str, Any]) -> None:
    there = protection(**changed)
    text, statements = printed_policy(there)
    assert statements is not None
    assert statements[:2] == there["Statement"]
    assert statements[2] == {**protection()["Statement"][1], "Sid": "OnlyPublishersWriteBundles1"}
    assert "What the bucket's policy says already is kept" in text


def test_a_policy_of_one_statement_with_a_quote_is_kept() -> None:
    there = {"Version": "2012-10-17", "Id": "mine", "Statement": {**OTHER, "Sid": "it's"}}
    assert [each["Sid"] for each in printed_policy(there)[1] or []] == ["it's", "OnlyPublishersWriteBundles"]


def test_without_a_caller_no_policy_of_the_bucket_is_made_up() -> None:
    assert "put-bucket-policy" not in actions.render(NEW, PLAIN)


def test_nodes_that_run_get_it_by_a_command() -> None:
    new = NEW._replace(name=f"0.2.0-{NEW.sha256[:12]}")
    (line,) = [one for one in actions.render(new, PLAIN).splitlines() if "pcluster.postboot.fleet" in one]
    words = shlex.split(line.split("ansible-playbook ")[1])
    assert words[:3] == ["-i", "<inventory>", "pcluster.postboot.fleet"]
    assert words[3:] == ["-e", f"fleet_bundle={new.base}/{new.name}", "-e", f"fleet_sha256={new.sha256}"]
    bundle, sha256 = (word.split("=", 1)[1] for word in words if "=" in word)
    request = rollout.Request(bundle, sha256)
    request.check()
    assert request.url == dict(zip(*[iter(new.action({})["Args"])] * 2))["--bundle"]


def test_options_are_strings() -> None:
    options = {"--mode": "gpu", "--budget": "900", "--defer": "yes"}
    found = parsed(actions.render(NEW, Wanted(options, [])))
    assert_shape(found)
    words = found["HeadNode"]["CustomActions"]["OnNodeConfigured"]["Args"]
    assert words[4:] == ["--mode", "gpu", "--budget", "900", "--defer", "yes"]


def test_beside_what_is_there() -> None:
    wanted = Wanted({}, ["arn:aws:iam::aws:policy/More", "arn:aws:iam::aws:policy/Mine"])
    before = copy.deepcopy(CLUSTER)
    text = actions.render(OLD, wanted, CLUSTER)
    assert before == CLUSTER
    found = parsed(text)
    assert_shape(found)
    ours = OLD.action({})
    part = {name: node for name, (_kind, node) in nodes(found).items()}
    assert part["head"]["CustomActions"] == {
        "OnNodeStart": MINE,
        "OnNodeConfigured": {"Sequence": [MINE, ours]},
        "OnNodeUpdated": ours,
    }
    assert part["b"]["CustomActions"]["OnNodeUpdated"] == {"Sequence": [MINE, MINE, ours]}
    assert [entry["Policy"].rpartition("/")[2] for entry in part["a"]["Iam"]["AdditionalIamPolicies"]] == [
        "Mine",
        READ_BUNDLES,
        "More",
    ]
    assert part["cpu"]["Iam"]["S3Access"] == [
        {"BucketName": "mine", "EnableWriteAccess": True},
        {"BucketName": "my-bucket", "KeyName": "post/boot/*"},
    ]
    # A role of the user's own goes together with neither.
    assert part["gpu"]["Iam"] == CLUSTER["Scheduling"]["SlurmQueues"][1]["Iam"]
    assert "queue gpu has an InstanceRole of its own, which must allow s3:GetObject on arn:aws-cn:s3:::my-" in text
    assert "/*, and no writing there: publish cannot see what it allows" in text
    assert "InstanceType" not in text


def test_a_cluster_that_exists_gets_no_first_script_by_an_update() -> None:
    told = (
        "no bundle yet. To a cluster that exists already, add these parts without OnNodeConfigured, and without Iam of "
        "a pool whose Count is not 0; "
    )
    text = actions.render(NEW, PLAIN, CLUSTER)
    assert f"# HeadNode, login pool a, login pool b: {told}ParallelCluster would refuse the update\n" in text
    cluster = {**CLUSTER, **parsed(text)}
    assert told not in actions.render(NEW, PLAIN, cluster)
    del cluster["LoginNodes"]["Pools"][1]["CustomActions"]
    assert f"# login pool b: {told}" in actions.render(NEW, PLAIN, cluster)
    assert told not in actions.render(NEW, PLAIN)


def test_keys_without_a_value_are_as_if_they_were_not_there() -> None:
    empty = {"S3Access": None, "AdditionalIamPolicies": None}
    cluster = {
        "HeadNode": {"Iam": dict(empty), "CustomActions": None},
        "LoginNodes": {"Pools": [{"Name": "a", "Iam": {"AdditionalIamPolicies": None}}]},
        "Scheduling": {"SlurmQueues": [{"Name": "cpu", "Iam": dict(empty)}]},
    }
    wanted = Wanted({}, ["arn:aws:iam::aws:policy/X"])
    assert_shape(parsed(actions.render(NEW, wanted, cluster)))


def test_an_upgrade_touches_only_what_an_update_takes() -> None:
    first = {**CLUSTER, **parsed(actions.render(OLD, Wanted({"--budget": "900", "--defer": "no"}, []), CLUSTER))}
    # One queue has got another option since.
    gpu = first["Scheduling"]["SlurmQueues"][1]["CustomActions"]["OnNodeConfigured"]
    gpu["Args"] += ["--mode", "cpu"]
    text = actions.render(NEW, Wanted({"--budget": "1200"}, []), first)
    found = parsed(text)
    assert_shape(found)
    before = nodes(first)
    for name, (kind, part) in nodes(found).items():
        old = before[name][1]
        assert part.get("Iam") == old.get("Iam")
        if kind != "queue":
            assert part["CustomActions"]["OnNodeConfigured"] == old["CustomActions"]["OnNodeConfigured"], name
            assert f"{name.replace('head', 'HeadNode')}: OnNodeConfigured stays as it is" in text
        event = "OnNodeConfigured" if kind == "queue" else "OnNodeUpdated"
        ours = scripts(part["CustomActions"][event])[-1]
        more = ["--mode", "cpu"] if name == "gpu" else []
        assert ours == NEW.action({"--budget": "1200", "--defer": "no"}) | {
            "Args": [*NEW.action({"--budget": "1200", "--defer": "no"})["Args"], *more]
        }
        assert len(scripts(part["CustomActions"][event])) == len(scripts(old["CustomActions"][event]))
    # And the same once more is nothing new; the way back is the same way.
    again = {**first, **found}
    assert parsed(actions.render(NEW, PLAIN, again)) == found
    back = {**again, **parsed(actions.render(OLD, Wanted({"--budget": "900"}, []), again))}
    assert back == first


def test_hold_is_left_out_where_an_update_may_change_it() -> None:
    """What an earlier publish has printed, with an option that no bundle has any more."""
    held = Wanted({"--hold": "yes", "--budget": "900"}, [])
    first = {**CLUSTER, **parsed(actions.render(OLD, held, CLUSTER))}
    text = actions.render(NEW, PLAIN, first)
    found, before = nodes(parsed(text)), nodes(first)
    for name, (kind, part) in found.items():
        event = "OnNodeConfigured" if kind == "queue" else "OnNodeUpdated"
        assert scripts(part["CustomActions"][event])[-1] == NEW.action({"--budget": "900"})
        if kind != "queue":
            assert part["CustomActions"]["OnNodeConfigured"] == before[name][1]["CustomActions"]["OnNodeConfigured"]
    where = "HeadNode/OnNodeUpdated, login pool a/OnNodeUpdated, login pool b/OnNodeUpdated, "
    (line,) = [one for one in text.splitlines() if "--hold" in one and one.startswith("#")]
    assert line.startswith(
        f"# {where}queue cpu/OnNodeConfigured, queue gpu/OnNodeConfigured: --hold is left out of Args, "
    )
    assert "--hold is left out" not in actions.render(NEW, PLAIN, {**first, **parsed(text)})


def cluster_with(where: str, **iam: Any) -> dict[str, Any]:
    """Return a cluster of which one node has these rights."""
    cluster = {
        "HeadNode": {"InstanceType": "m5.large"},
        "LoginNodes": {"Pools": [{"Name": "a"}]},
        "Scheduling": {"SlurmQueues": [{"Name": "cpu"}, {"Name": "gpu"}]},
    }
    for name, (_kind, node) in nodes(cluster).items():
        if name == where:
            node["Iam"] = iam
    return cluster


WRITABLE: list[dict[str, Any]] = [
    {"BucketName": "my-bucket"},
    {"BucketName": "*"},
    {"BucketName": "my-*", "KeyName": "*"},
    {"BucketName": "my-bucket", "KeyName": "post/boot/*"},
    {"BucketName": "my-bucket", "KeyName": "p*"},
    {"BucketName": "my-bucket", "KeyName": "post/????/0.1.0*/bootstrap.sh"},
    {"BucketName": "my-bucket", "KeyName": "*/bootstrap.sh"},
    {"BucketName": "*", "KeyName": "boot/*"},  # a * crosses slashes
]
ELSEWHERE: list[dict[str, Any]] = [
    {"BucketName": "my-buckets"},
    {"BucketName": "my-bucket", "KeyName": "post/boots/*"},
    {"BucketName": "my-bucket", "KeyName": "post/boot"},
    {"BucketName": "my-bucket", "KeyName": "checkpoints/*"},
    {"BucketName": "my-bucket", "KeyName": "post/[b]oot/*"},
]


@pytest.mark.parametrize("value", [True, "true", "Yes"])
@pytest.mark.parametrize("entry", WRITABLE)
def test_nodes_that_can_write_to_the_bundles_are_refused(entry: dict[str, Any], value: Any) -> None:
    cluster = cluster_with("cpu", S3Access=[{**entry, "EnableWriteAccess": value}])
    (line,) = actions.refusals(NEW, PLAIN, cluster)
    what = f"{entry['BucketName']}/{entry.get('KeyName', '*')}"
    assert line == (
        f"publish_config: queue cpu could write to s3://my-bucket/post/boot/ by S3Access to {what} with "
        "EnableWriteAccess, and so replace the bootstrap.sh that every node runs as root; needed: no such right there "
        "(a bucket of its own for publish_s3, or a narrower policy), or 'queue cpu' in publish_trusted_writers"
    )
    trusted = PLAIN._replace(trusted=["queue cpu"])
    assert actions.refusals(NEW, trusted, cluster) == []
    text = actions.render(NEW, trusted, cluster)
    assert f"# queue cpu can write to the bundles by S3Access to {what} with EnableWriteAccess, and " in text
    assert "can write to the bundles" not in actions.render(NEW, trusted, cluster_with("gpu"))


@pytest.mark.parametrize(
    "entry", [*({**entry, "EnableWriteAccess": True} for entry in ELSEWHERE), *WRITABLE, {"BucketName": "*"}]
)
def test_who_writes_elsewhere_or_only_reads_is_not(entry: dict[str, Any]) -> None:
    assert actions.refusals(NEW, PLAIN, cluster_with("cpu", S3Access=[entry])) == []


@pytest.mark.parametrize(("name", "where"), [("head", "HeadNode"), ("a", "login pool a"), ("gpu", "queue gpu")])
@pytest.mark.parametrize(
    "policy",
    ["AmazonS3FullAccess", "PowerUserAccess", "job-function/DataScientist", "service-role/AmazonEC2RoleforSSM"],
)
def test_a_wide_policy_is_refused(name: str, where: str, policy: str) -> None:
    arn = f"arn:aws-cn:iam::aws:policy/{policy}"
    cluster = cluster_with(name, AdditionalIamPolicies=[{"Policy": arn}])
    (line,) = actions.refusals(NEW, PLAIN, cluster)
    assert line.startswith(
        f"publish_config: {where} could write to s3://my-bucket/post/boot/ by {arn}, and so replace "
    )
    assert actions.refusals(NEW, PLAIN._replace(trusted=[where]), cluster) == []


def test_a_wide_policy_that_publish_is_to_add_is_refused() -> None:
    arn = "arn:aws:iam::aws:policy/AdministratorAccess"
    lines = actions.refusals(NEW, Wanted({}, [arn]), cluster_with("none"))
    assert [line.split(" could ")[0] for line in lines] == [
        f"publish_policies: {where}" for where in ("HeadNode", "login pool a", "queue cpu", "queue gpu")
    ]
    (line,) = actions.refusals(NEW, Wanted({}, [], arn), cluster_with("none"))
    assert line.startswith("publish_login_policy: login pool a could ")
    assert len(actions.refusals(NEW, Wanted({}, [arn]))) == 3  # of the example too


def test_policies_that_publish_cannot_see_are_named_once() -> None:
    mine = [f"arn:aws:iam::210987654321:policy/{name}" for name in ("b", "a")]
    known = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
    cluster = cluster_with("cpu", AdditionalIamPolicies=[{"Policy": arn} for arn in (*mine, known)])
    cluster["HeadNode"]["Iam"] = {"AdditionalIamPolicies": [{"Policy": mine[0]}]}
    assert actions.refusals(NEW, PLAIN, cluster) == []
    text = actions.render(NEW, PLAIN, cluster)
    told = "these must not allow writing to arn:aws-cn:s3:::my-bucket/post/boot/*, which publish cannot see"
    assert f"# {mine[1]}, {mine[0]}: {told}\n" in text
    assert told not in actions.render(NEW, PLAIN, cluster_with("none"))


def test_a_trusted_node_that_is_not_there_is_named() -> None:
    trusted = PLAIN._replace(trusted=["HeadNode", "cpu"])
    assert actions.refusals(NEW, trusted, cluster_with("none")) == [
        "publish_trusted_writers has cpu, which is no node of publish_config; needed: one of HeadNode, login pool a, "
        "queue cpu, queue gpu"
    ]
    assert actions.refusals(NEW, trusted) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Region: x", "lacks HeadNode or Scheduling/SlurmQueues; needed: a cluster's YAML"),
        ("- a", "has no sections; needed: a configuration of ParallelCluster"),
        ("HeadNode: {a: b}\nScheduling: {Scheduler: awsbatch}", "lacks HeadNode or Scheduling/SlurmQueues"),
        ("a: [", "is no YAML"),
    ],
)
def test_what_is_no_cluster(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(Problem, match=f"publish_config: {path} {message}") as failed:
        actions.read(str(path))
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, []),
        ({"mode": "none", "budget": 900, "python": None}, ["--mode", "none", "--budget", "900"]),
        ({"budget": "900", "defer": "False"}, ["--budget", "900", "--defer", "no"]),
        ({"python": "/opt/python", "defer": "yes", "base": "x"}, ["--python", "/opt/python", "--defer", "yes"]),
    ],
)
def test_options_of_the_playbook(given: dict[str, Any], words: list[str]) -> None:
    assert [word for pair in actions.options(given).items() for word in pair] == words


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mode", "gpus", "gpus; needed: auto, gpu, cpu or none"),
        ("mode", "", "empty; needed: auto, gpu, cpu or none"),
        ("budget", "15m", "15m; needed: a number of seconds"),
        ("budget", -1, "-1; needed: a number of seconds"),
        ("budget", 0, "0; needed: a number of seconds"),
        ("defer", "maybe", "maybe; needed: true or false"),
        ("defer", 2, "2; needed: true or false"),
        ("python", "", "empty; needed: the path of a Python on the nodes"),
    ],
)
def test_a_wrong_option_is_named_as_the_playbook_does(name: str, value: Any, message: str) -> None:
    with pytest.raises(Problem, match=f"^publish_{name} is {re.escape(message)}$"):
        actions.options({name: value})


def test_no_such_file() -> None:
    with pytest.raises(Problem, match=r"publish_config: /nowhere/cluster.yaml does not exist; needed"):
        actions.read("/nowhere/cluster.yaml")

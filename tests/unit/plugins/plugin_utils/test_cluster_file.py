# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations that people have written: anchors, nulls and mistakes, as publish and cluster_config read them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import base as users
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions as actions
from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample
from ansible_collections.pcluster.postboot.tests.unit.plugins import parallelcluster, people
from ansible_collections.pcluster.postboot.tests.unit.plugins.cluster_config_sample import config

READERS = {"cluster_config_base": users.read, "publish_config": actions.read}
RELEASE = actions.Release("s3://my-bucket/postboot", "0.1.0-0123456789ab", "0" * 64)
HEAD = f"{{InstanceType: c5.large, Networking: {{SubnetId: {sample.HEAD}}}}}"
QUEUES = f"""
  - Name: gpu
    Networking: {{SubnetIds: [{sample.COMPUTE}]}}
    ComputeResources: [{{Name: c5, InstanceType: c5.large}}]
"""
GOOD = f"Image: {{Os: ubuntu2404}}\nHeadNode: {HEAD}\nScheduling:\n  Scheduler: slurm\n  SlurmQueues:{QUEUES}"


def write(folder: Path, text: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return str(path)


def refused(variable: str, path: str) -> list[str]:
    with pytest.raises(Problem) as error:
        READERS[variable](path)
    lines = str(error.value).splitlines()
    start = f"{variable}: {path}"
    assert [line for line in lines if not line.startswith(start) or "needed: " not in line] == []
    return [line[len(start) :].lstrip(": ") for line in lines]


# --- Anchors: what is asked for one queue or pool is the other one's only where the user asks for both.

SHARED = f"""
Image: {{Os: ubuntu2404}}
HeadNode: {HEAD}
LoginNodes:
  Pools:
    - &pool
      Name: one
      InstanceType: c5.large
      Count: 1
      Networking: {{SubnetIds: [{sample.OTHER}]}}
      Iam: {{AdditionalIamPolicies: [{{Policy: {sample.POLICY}}}]}}
    - {{<<: *pool, Name: two}}
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: a
      ComputeSettings: &settings {{LocalStorage: {{RootVolume: {{Encrypted: true}}}}}}
      Networking: &net {{SubnetIds: [{sample.COMPUTE}]}}
      Iam: &iam {{S3Access: [{{BucketName: for-both}}]}}
      Tags: &tags [{{Key: team, Value: ml}}]
      ComputeResources: &resources
        - {{Name: c5, InstanceType: c5.xlarge, CustomSlurmSettings: {{Feature: x}}}}
    - Name: b
      ComputeSettings: *settings
      Networking: *net
      Iam: *iam
      Tags: *tags
      ComputeResources: *resources
"""
ASKED = {
    "queues": [
        {
            "name": "a",
            "instance_type": "c5.xlarge",
            "policies": [f"{sample.POLICY}-of-a"],
            "s3_access": [{"bucket": "only-for-a", "write": True}],
            "root_volume_size": 200,
            "placement_group": "true",
            "node_settings": {"RealMemory": 5000},
            "tags": {"cost": 7},
            "max": 3,
        }
    ],
    "login_pools": [{"name": "one", "policies": [f"{sample.POLICY}-of-one"], "security_groups": ["sg-12345678"]}],
}


@pytest.mark.parametrize("more", [{}, {"bundle": {**sample.BUNDLE, "login_policy": sample.POLICY}}])
def test_what_is_asked_for_one_queue_leaves_the_others_as_they_are(tmp_path: Path, more: dict[str, Any]) -> None:
    base = users.read(write(tmp_path, SHARED))
    before = copy.deepcopy(base)
    found = config(base, subnet_head="", components=[], **ASKED, **more)
    a, b = found["Scheduling"]["SlurmQueues"]
    one, two = found["LoginNodes"]["Pools"]
    assert {"Policy": f"{sample.POLICY}-of-a"} in a["Iam"]["AdditionalIamPolicies"]
    assert a["ComputeSettings"]["LocalStorage"]["RootVolume"] == {"Encrypted": True, "Size": 200}
    assert one["Networking"]["SecurityGroups"] == ["sg-12345678"]
    # Of what a bundle adds, every node has its own.
    for node in (b, two):
        node.pop("CustomActions", None)
    if more:
        b["Iam"]["S3Access"].pop()
    assert b == before["Scheduling"]["SlurmQueues"][1]
    assert two == before["LoginNodes"]["Pools"][1]
    assert base == before


def test_a_draft_shares_nothing_even_where_its_base_does() -> None:
    base = yaml.safe_load(SHARED)
    found = config(base, subnet_head="", components=[], **ASKED)
    assert found["Scheduling"]["SlurmQueues"][1]["Iam"] == {"S3Access": [{"BucketName": "for-both"}]}
    assert base == yaml.safe_load(SHARED)


def test_publish_prints_each_node_what_is_its_own(tmp_path: Path) -> None:
    found = actions.read(write(tmp_path, SHARED))
    before = copy.deepcopy(found)
    wanted = actions.Wanted({}, [f"{sample.POLICY}-of-all"])
    parts = yaml.safe_load(actions.render(RELEASE, wanted, found))
    assert found == before
    for part in (*parts["LoginNodes"]["Pools"], *parts["Scheduling"]["SlurmQueues"]):
        policies = [each["Policy"] for each in part["Iam"]["AdditionalIamPolicies"]]
        assert len(policies) == len(set(policies))


@pytest.mark.parametrize("variable", READERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD + "Tags: &tags [*tags]", "is nested too deeply or refers to itself"),
        (
            "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30)) + GOOD,
            "has aliases for more than 100000 values",
        ),
        (GOOD + "Deep: " + "[" * 5000 + "]" * 5000, "is nested too deeply or refers to itself"),
    ],
)
def test_aliases_without_end_are_one_line(tmp_path: Path, variable: str, text: str, says: str) -> None:
    (line,) = refused(variable, write(tmp_path, text))
    assert line.startswith(says)


# --- Nulls, which ClusterSchema.dump writes into /opt/parallelcluster/shared/cluster-config.yaml

DUMPED = f"""
Image: {{Os: ubuntu2404, CustomAmi: null}}
LoginNodes: null
Tags: null
HeadNode:
  InstanceType: c5.large
  Networking: {{SubnetId: {sample.HEAD}, SecurityGroups: null, ElasticIp: null}}
  Iam: {{InstanceRole: null, InstanceProfile: null, S3Access: null, AdditionalIamPolicies: null}}
  CustomActions: {{OnNodeStart: null, OnNodeConfigured: null, OnNodeUpdated: null}}
  LocalStorage: {{RootVolume: {{Size: null}}, EphemeralVolume: null}}
Scheduling:
  Scheduler: slurm
  SlurmSettings: {{CustomSlurmSettings: null, Database: null, Dns: {{DisableManagedDns: null}}}}
  SlurmQueues:
    - Name: gpu
      Networking: {{SubnetIds: [{sample.COMPUTE}], PlacementGroup: null}}
      Iam: {{InstanceRole: null, S3Access: [{{BucketName: mine, KeyName: null, EnableWriteAccess: null}}]}}
      CustomActions: {{OnNodeConfigured: {{Script: s3://mine/x.sh, Args: null}}}}
      CustomSlurmSettings: {{MaxTime: null}}
      ComputeResources: [{{Name: c5, InstanceType: c5.large, Instances: null, MinCount: null, Tags: null}}]
SharedStorage: null
DevSettings: {{Timeouts: null}}
"""


def test_a_null_is_no_role_of_ones_own(tmp_path: Path) -> None:
    path = write(tmp_path, DUMPED)
    parts, notes = actions.sections(RELEASE, actions.Wanted({}, []), actions.read(path))
    ours = {"BucketName": "my-bucket", "KeyName": "postboot/*"}
    assert parts["HeadNode"]["Iam"] == {"S3Access": [ours]}
    assert parts["Scheduling"]["SlurmQueues"][0]["Iam"] == {"S3Access": [{"BucketName": "mine"}, ours]}
    assert not any("of its own" in note for note in notes)
    found = config(users.read(path), subnet_head="", queues=[], bundle=dict(sample.BUNDLE))
    assert found["HeadNode"]["Iam"] == {"S3Access": [ours]}
    assert "null" not in yaml.safe_dump({**found, "Scheduling": {**found["Scheduling"], "SlurmQueues": []}})


def test_a_role_that_is_null_is_none_for_who_hands_it_on() -> None:
    cluster = {"HeadNode": {"Iam": {"InstanceRole": None, "InstanceProfile": None}}, "Scheduling": {"SlurmQueues": []}}
    parts, notes = actions.sections(RELEASE, actions.Wanted({}, []), cluster)
    assert parts["HeadNode"]["Iam"]["S3Access"] == [{"BucketName": "my-bucket", "KeyName": "postboot/*"}]
    assert not any("of its own" in note for note in notes)


def test_a_null_among_settings_of_slurm_is_left_alone(tmp_path: Path) -> None:
    (queue,) = users.read(write(tmp_path, DUMPED))["Scheduling"]["SlurmQueues"]
    assert queue["CustomSlurmSettings"] == {"MaxTime": None}


# --- Mistakes. Each is given a section's place, and the value there.


def whole(place: str, value: str) -> str:
    """Return a configuration with a value, which is YAML, at a place; a number is an entry of a list."""
    found = yaml.safe_load(GOOD)
    *steps, last = [int(step) if step.isdigit() else step for step in place.split("/")]
    there = found
    for step in steps:
        there = there[step] if isinstance(step, int) else there.setdefault(step, {})
    there[last] = yaml.safe_load(value)
    return str(yaml.safe_dump(found, sort_keys=False))


ARN = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
GPU = "Scheduling/SlurmQueues/0"
# Of parts that both readers use: place, value, and the line.
MISTAKES = {
    "a policy that is a string": (
        "HeadNode/Iam/AdditionalIamPolicies",
        f"[{ARN}]",
        f'HeadNode/Iam/AdditionalIamPolicies[0] is "{ARN}"; needed: Policy: <the ARN of a policy>',
    ),
    "policies that are one string": (
        f"{GPU}/Iam/AdditionalIamPolicies",
        ARN,
        f'Scheduling/SlurmQueues[gpu]/Iam/AdditionalIamPolicies is "{ARN}"; needed: a list whose entries have Policy',
    ),
    "a policy without its key": (
        f"{GPU}/Iam/AdditionalIamPolicies",
        f"[{{Arn: '{ARN}'}}]",
        "Scheduling/SlurmQueues[gpu]/Iam/AdditionalIamPolicies[0] lacks Policy; needed: Policy: <the ARN of a policy>",
    ),
    "a bucket that is a string": (
        "HeadNode/Iam/S3Access",
        "[my-bucket]",
        'HeadNode/Iam/S3Access[0] is "my-bucket"; needed: BucketName: <the name of a bucket>',
    ),
    "buckets that are a section": (
        "HeadNode/Iam/S3Access",
        "{BucketName: my-bucket}",
        'HeadNode/Iam/S3Access is {"BucketName": "my-bucket"}; needed: a list whose entries have BucketName',
    ),
    "write access that is neither": (
        "HeadNode/Iam/S3Access",
        "[{BucketName: my-bucket, EnableWriteAccess: write}]",
        'HeadNode/Iam/S3Access[0]/EnableWriteAccess is "write"; needed: true or false',
    ),
    "a script that is a string, as ParallelCluster 2 had it": (
        "HeadNode/CustomActions/OnNodeConfigured",
        "s3://b/x.sh",
        'HeadNode/CustomActions/OnNodeConfigured is "s3://b/x.sh"; needed: Script: <s3://… or https://…>, or Sequence: '
        "<a list of such entries>",
    ),
    "scripts that are a list": (
        "HeadNode/CustomActions/OnNodeConfigured",
        "[{Script: s3://b/x.sh}]",
        'HeadNode/CustomActions/OnNodeConfigured is [{"Script": "s3://b/x.sh"}]; needed: Script',
    ),
    "actions that are a list": (
        f"{GPU}/CustomActions",
        "[OnNodeConfigured]",
        'Scheduling/SlurmQueues[gpu]/CustomActions is ["OnNodeConfigured"]; needed: a section',
    ),
    "a sequence of strings": (
        "HeadNode/CustomActions/OnNodeConfigured",
        "{Sequence: ['s3://b/x.sh']}",
        'HeadNode/CustomActions/OnNodeConfigured/Sequence[0] is "s3://b/x.sh"; needed: Script: <s3://… or https://…>',
    ),
    "a sequence without a value": (
        "HeadNode/CustomActions/OnNodeConfigured",
        "{Sequence: }",
        "HeadNode/CustomActions/OnNodeConfigured has neither Script nor Sequence; needed: one of them",
    ),
    "a script and a sequence": (
        "HeadNode/CustomActions/OnNodeStart",
        "{Script: s3://b/x.sh, Sequence: [{Script: s3://b/y.sh}]}",
        "HeadNode/CustomActions/OnNodeStart has both Script and Sequence; needed: one of them",
    ),
    "arguments that are one string": (
        f"{GPU}/CustomActions/OnNodeConfigured",
        "{Script: s3://b/x.sh, Args: --fast}",
        'Scheduling/SlurmQueues[gpu]/CustomActions/OnNodeConfigured/Args is "--fast"; needed: a list',
    ),
    "an argument that is a number": (
        f"{GPU}/CustomActions/OnNodeConfigured",
        "{Script: s3://b/x.sh, Args: [--budget, 900]}",
        "Scheduling/SlurmQueues[gpu]/CustomActions/OnNodeConfigured/Args[1] is 900; needed: a text, in quotes",
    ),
    "queues that are a section": (
        "Scheduling/SlurmQueues",
        "{gpu: {}}",
        'Scheduling/SlurmQueues is {"gpu": {}}; needed: a list whose entries have Name',
    ),
    "a queue that is its name": (
        "Scheduling/SlurmQueues",
        "[gpu]",
        'Scheduling/SlurmQueues[0] is "gpu"; needed: Name: <a name>',
    ),
    "an entry without a value": ("Scheduling/SlurmQueues", "[null]", "Scheduling/SlurmQueues[0] is null; needed: Name"),
    "a queue whose name is a number": (
        f"{GPU}/Name",
        "1",
        "Scheduling/SlurmQueues[0]/Name is 1; needed: a text, in quotes",
    ),
    "pools that are a section": (
        "LoginNodes/Pools",
        "{Name: login}",
        'LoginNodes/Pools is {"Name": "login"}; needed: a list whose entries have Name',
    ),
    "login nodes that are a list": (
        "LoginNodes",
        "[{Name: login}]",
        'LoginNodes is [{"Name": "login"}]; needed: a section',
    ),
    "a head node that is a list": ("HeadNode", "[InstanceType]", 'HeadNode is ["InstanceType"]; needed: a section'),
    "scheduling that is a list": ("Scheduling", "[{Scheduler: slurm}]", 'Scheduling is [{"Scheduler": "slurm"}]; need'),
    "permissions that are a list": (f"{GPU}/Iam", "[S3Access]", 'Scheduling/SlurmQueues[gpu]/Iam is ["S3Access"]; n'),
    "a role that is a section": (
        "HeadNode/Iam/InstanceRole",
        "{Arn: x}",
        'HeadNode/Iam/InstanceRole is {"Arn": "x"}; needed: the ARN of a role',
    ),
    "a key in other letters": (
        "HeadNode/Iam/AdditionalIAMPolicies",
        "[]",
        "HeadNode/Iam has AdditionalIAMPolicies; needed: AdditionalIamPolicies",
    ),
    "two queues of one name": (
        "Scheduling/SlurmQueues",
        "[{Name: a}, {Name: b}, {Name: a}]",
        'Scheduling/SlurmQueues[2]/Name is "a", as of another entry; needed: a name that no other entry has',
    ),
    "tags that are a section": ("Tags", "{team: ml}", 'Tags is {"team": "ml"}; needed: a list whose entries have Key'),
    "the value of a tag that is a number": (
        "Tags",
        "[{Key: cost, Value: 7}]",
        "Tags[cost]/Value is 7; needed: a text, in quotes",
    ),
}
# Of parts that only cluster_config reads.
MORE = {
    "a time in words": (
        "DevSettings/Timeouts/ComputeNodeBootstrapTimeout",
        "1 hour",
        'DevSettings/Timeouts/ComputeNodeBootstrapTimeout is "1 hour"; needed: a number of seconds',
    ),
    "a size with its unit": (
        "HeadNode/LocalStorage/RootVolume/Size",
        "100GB",
        'HeadNode/LocalStorage/RootVolume/Size is "100GB"; needed: a number of GiB, without a unit',
    ),
    "a size of a queue with its unit": (
        f"{GPU}/ComputeSettings/LocalStorage/RootVolume/Size",
        "100 GiB",
        'Scheduling/SlurmQueues[gpu]/ComputeSettings/LocalStorage/RootVolume/Size is "100 GiB"; needed: a number of G',
    ),
    "a volume that is a number": (
        "HeadNode/LocalStorage/RootVolume",
        "100",
        "HeadNode/LocalStorage/RootVolume is 100; needed: a section",
    ),
    "a subnet where a list belongs": (
        f"{GPU}/Networking/SubnetIds",
        sample.COMPUTE,
        f'Scheduling/SlurmQueues[gpu]/Networking/SubnetIds is "{sample.COMPUTE}"; needed: a list',
    ),
    "a security group where a list belongs": (
        "HeadNode/Networking/AdditionalSecurityGroups",
        "sg-12345678",
        'HeadNode/Networking/AdditionalSecurityGroups is "sg-12345678"; needed: a list',
    ),
    "instances that are strings": (
        f"{GPU}/ComputeResources/0/Instances",
        "[c5.large]",
        'Scheduling/SlurmQueues[gpu]/ComputeResources[c5]/Instances[0] is "c5.large"; needed: InstanceType',
    ),
    "no count": (
        f"{GPU}/ComputeResources/0/MinCount",
        "none",
        'Scheduling/SlurmQueues[gpu]/ComputeResources[c5]/MinCount is "none"; needed: a whole number',
    ),
    "settings of Slurm that are a section": (
        "Scheduling/SlurmSettings/CustomSlurmSettings",
        "{MaxArraySize: 5}",
        'Scheduling/SlurmSettings/CustomSlurmSettings is {"MaxArraySize": 5}; needed: a list of sections',
    ),
    "settings of Slurm that are strings": (
        "Scheduling/SlurmSettings/CustomSlurmSettings",
        "['MaxArraySize=5']",
        'Scheduling/SlurmSettings/CustomSlurmSettings[0] is "MaxArraySize=5"; needed: a section',
    ),
    "settings of a queue that are a list": (
        f"{GPU}/CustomSlurmSettings",
        "[{MaxTime: 5}]",
        'Scheduling/SlurmQueues[gpu]/CustomSlurmSettings is [{"MaxTime": 5}]; needed: a section',
    ),
    "a placement group that is true": (
        f"{GPU}/Networking/PlacementGroup",
        "true",
        "Scheduling/SlurmQueues[gpu]/Networking/PlacementGroup is true; needed: a section",
    ),
    "storage that is a section": (
        "SharedStorage",
        "{Name: fsx}",
        'SharedStorage is {"Name": "fsx"}; needed: a list whose entries have Name',
    ),
    "settings of storage that are a list": (
        "SharedStorage",
        "[{Name: fsx, FsxLustreSettings: [{FileSystemId: x}]}]",
        'SharedStorage[fsx]/FsxLustreSettings is [{"FileSystemId": "x"}]; needed: a section',
    ),
    "an image that is a string": ("Image", "ubuntu2404", 'Image is "ubuntu2404"; needed: a section'),
    "monitoring that is true": ("Monitoring", "true", "Monitoring is true; needed: a section"),
}


@pytest.mark.parametrize("variable", READERS)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(tmp_path: Path, name: str, variable: str) -> None:
    place, value, says = MISTAKES[name]
    (line,) = refused(variable, write(tmp_path, whole(place, value)))
    assert line.startswith(says)


@pytest.mark.parametrize("name", MORE)
def test_a_mistake_that_only_cluster_config_meets_is_one_line_there(tmp_path: Path, name: str) -> None:
    place, value, says = MORE[name]
    path = write(tmp_path, whole(place, value))
    (line,) = refused("cluster_config_base", path)
    assert line.startswith(says)
    assert actions.sections(RELEASE, actions.Wanted({}, []), actions.read(path))


def test_every_mistake_has_a_line_of_its_own(tmp_path: Path) -> None:
    text = whole("HeadNode/Iam/AdditionalIamPolicies", f"[{ARN}, {ARN}]")
    assert len(refused("publish_config", write(tmp_path, text + "Tags: 5\n"))) == 3


@pytest.mark.parametrize("variable", READERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "has no sections; needed: a configuration of ParallelCluster"),
        (b"- a", "has no sections"),
        (b"a: [", "is no YAML: while parsing"),
        (b"HeadNode:\n\tIam: {}", "is no YAML: while scanning"),
        (b"HeadNode: \xff\xfe", "is no YAML: "),
        (b"Tags: [{Key: day, Value: 2024-02-30}]", "is no YAML: day is out of range for month"),
        (b"HeadNode: !!python/object:os.system {}", "is no YAML: could not determine a constructor"),
        (b"--- {HeadNode: {}}\n--- {Scheduling: {}}\n", "has 2 documents; needed: one"),
        (
            b"HeadNode: {}\nScheduling:\n  SlurmQueues: []\n  SlurmQueues: []\n",
            "has SlurmQueues twice, in line 4 again; needed: each key once",
        ),
        (b"HeadNode: {KeyName: !Ref Key}", "has !Ref at HeadNode/KeyName; needed: plain values"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, variable: str, text: bytes, says: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(text)
    (line,) = refused(variable, str(path))
    assert line.startswith(says)


@pytest.mark.parametrize("variable", READERS)
def test_a_file_that_is_missing_or_no_file_is_one_line(tmp_path: Path, variable: str) -> None:
    assert refused(variable, str(tmp_path / "x")) == ["does not exist; needed: a configuration of ParallelCluster"]
    (line,) = refused(variable, str(tmp_path))
    assert line.startswith("cannot be read: Is a directory; needed: ")


# A template as AWS's custom resource for clusters has it (Custom::PclusterCluster).
TEMPLATE = """
AWSTemplateFormatVersion: 2010-09-09
Conditions: {OwnKey: !Not [!Equals [!Ref KeyName, ""]]}
Resources:
  Provider: {Type: AWS::CloudFormation::Stack, Properties: {TemplateURL: !Sub "https://${Bucket}.example.com/x"}}
  Cluster:
    Type: Custom::PclusterCluster
    Properties:
      ServiceToken: !GetAtt [Provider, Outputs.ServiceToken]
      ClusterName: !Sub "${AWS::StackName}-c"
      ClusterConfiguration:
        HeadNode: {Networking: {SubnetId: !Ref Subnet}, Iam: !If [OwnKey, {}, !Ref AWS::NoValue]}
        Scheduling: {Scheduler: slurm, SlurmQueues: [{Name: gpu}]}
"""
NEEDED = (
    "is a CloudFormation template; needed: the configuration below Resources/Cluster/Properties/ClusterConfiguration, "
    "in a file of its own and with values in place of CloudFormation's functions"
)


@pytest.mark.parametrize("variable", READERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEMPLATE, NEEDED),
        (json.dumps({"Resources": {"Cluster": {"Properties": {"ClusterConfiguration": {"HeadNode": {}}}}}}), NEEDED),
        (
            "AWSTemplateFormatVersion: 2010-09-09\nResources: {Bucket: {Type: AWS::S3::Bucket}}",
            "is a CloudFormation template; needed: a configuration of ParallelCluster",
        ),
    ],
)
def test_a_cloudformation_template_is_named_as_such(tmp_path: Path, variable: str, text: str, says: str) -> None:
    assert refused(variable, write(tmp_path, text)) == [says]


# --- ParallelCluster's own schema, where it is installed beside Ansible

# What our own rules take: place, value, what the schema answers, and whether publish reads that part.
JUDGED = {
    "a role": ("HeadNode/Iam/InstanceRole", "mine", '"mine"; needed: a value that Par', "expected pattern", True),
    "a policy": (
        "HeadNode/Iam/AdditionalIamPolicies",
        "[{Policy: mine}]",
        '"mine"; needed: ',
        "expected pattern",
        True,
    ),
    "a subnet": (f"{GPU}/Networking/SubnetIds", "[subnet-1]", '"subnet-1"; needed: ', "expected pattern", False),
    "no time": ("DevSettings/Timeouts/HeadNodeBootstrapTimeout", "0", "0; needed: ", "greater than or equal", False),
}


@pytest.mark.parametrize("version", parallelcluster.VERSIONS)
def test_parallelcluster_judges_values_where_it_is_installed(version: str, tmp_path: Path, collections: Path) -> None:
    others = [GOOD.replace("ubuntu2404", "alinux2"), GOOD.replace("SlurmQueues:", "ANewKey: {}\n  SlurmQueues:")]
    texts = [whole(place, value) for place, value, *_rest in JUDGED.values()] + [GOOD, *others]
    found = parallelcluster.read_beside(texts, version, tmp_path, collections)
    for (_place, _value, says, answers, both), lines in zip(JUDGED.values(), found):
        assert bool(lines[1]) == both
        for line in filter(None, lines):
            assert says in line
            assert answers in line
            assert "\n" not in line
    # Which systems there are, and which keys, differs between versions.
    assert found[len(JUDGED) :] == [["", ""]] * 3


@pytest.mark.parametrize("version", parallelcluster.VERSIONS)
def test_what_parallelcluster_takes_is_read_where_it_is_installed(
    version: str, tmp_path: Path, collections: Path
) -> None:
    files = [people.make(seed, version) for seed in range(21)]
    before = parallelcluster.refusals([file.plain for file in files], version)
    valid = [file.text for file, refusal in zip(files, before) if not refusal]
    assert parallelcluster.read_beside(valid, version, tmp_path, collections) == [["", ""]] * len(valid)

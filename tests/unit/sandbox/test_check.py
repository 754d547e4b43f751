# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""check.py: what ParallelCluster says of a configuration, in an account that has what the configuration names."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parents[3] / "molecule/cluster/parallelcluster"
GOOD = yaml.safe_load("""
Region: us-east-2
Image: {Os: ubuntu2404, CustomAmi: ami-0123456789abcdef0}
HeadNode:
  InstanceType: m5.8xlarge
  Networking: {SubnetId: subnet-0123456789abcdef0}
  Ssh: {KeyName: my-key}
  Iam:
    AdditionalIamPolicies:
      - Policy: arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore
      - Policy: arn:aws:iam::123456789012:policy/my-policy
  CustomActions:
    OnNodeConfigured: {Script: s3://my-bucket/postboot/bootstrap.sh, Args: [--mode, auto]}
Scheduling:
  Scheduler: slurm
  SlurmSettings:
    Database:
      Uri: database.example.com:3306
      UserName: slurm
      PasswordSecretArn: arn:aws:secretsmanager:us-east-2:123456789012:secret:slurm-0a1b2c
  SlurmQueues:
    - Name: block
      CapacityType: CAPACITY_BLOCK
      CapacityReservationTarget: {CapacityReservationId: cr-0123456789abcdef0}
      Networking: {SubnetIds: [subnet-0123456789abcdef1], PlacementGroup: {Enabled: false}}
      ComputeResources:
        - {Name: p5en, InstanceType: p5en.48xlarge, MinCount: 4, MaxCount: 4, Efa: {Enabled: true}}
    - Name: group
      CapacityReservationTarget:
        CapacityReservationResourceGroupArn: arn:aws:resource-groups:us-east-2:123456789012:group/my-group
      Networking:
        SubnetIds: [subnet-0123456789abcdef1]
        AdditionalSecurityGroups: [sg-0123456789abcdef0]
        PlacementGroup: {Enabled: false}
      ComputeResources:
        - {Name: p4d, InstanceType: p4d.24xlarge, MinCount: 0, MaxCount: 4, Efa: {Enabled: true}}
SharedStorage:
  - {Name: fsx, StorageType: FsxLustre, MountDir: /fsx, FsxLustreSettings: {FileSystemId: fs-0123456789abcdef0}}
  - {Name: home, StorageType: FsxOpenZfs, MountDir: /home, FsxOpenZfsSettings: {VolumeId: fsvol-0123456789abcdef0}}
Monitoring: {DetailedMonitoring: true}
""")


@pytest.fixture(scope="module", autouse=True)
def _path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield
    for name in ("account", "check", "resolver", "synthesize"):
        sys.modules.pop(name, None)


def misspelt(config: Any) -> None:
    config["Scheduling"]["SlurmQueues"][0]["ComputeResources"][0]["Efaa"] = {}


def unrelated_group(config: Any) -> None:
    config["Scheduling"]["SlurmQueues"][1]["Networking"]["PlacementGroup"]["Enabled"] = True


def other_group(config: Any) -> None:
    config["Scheduling"]["SlurmQueues"][0]["Networking"]["PlacementGroup"]["Enabled"] = True


def no_block(config: Any) -> None:
    del config["Scheduling"]["SlurmQueues"][0]["CapacityReservationTarget"]


def no_group(config: Any) -> None:
    del config["Scheduling"]["SlurmQueues"][1]["CapacityReservationTarget"]


def other_type(config: Any) -> None:
    config["Scheduling"]["SlurmQueues"][0]["CapacityType"] = "ONDEMAND"
    config["Scheduling"]["SlurmQueues"][0]["ComputeResources"].append(
        {"Name": "p5", "InstanceType": "p5.48xlarge", "MaxCount": 2}
    )


def public(config: Any) -> None:
    config["Scheduling"]["SlurmQueues"][1]["Networking"]["AssignPublicIp"] = True


def unknown_policy(config: Any) -> None:
    config["HeadNode"]["Iam"]["AdditionalIamPolicies"][0]["Policy"] += "s"


def forbidden_setting(config: Any) -> None:
    config["Scheduling"]["SlurmSettings"]["CustomSlurmSettings"] = [{"Prolog": "/fsx/prolog"}]


def without_efa(config: Any) -> None:
    config["Scheduling"]["SlurmQueues"][0]["ComputeResources"][0]["InstanceType"] = "m5.large"


# How the configuration above is broken, and what is said of it.
WRONG: dict[Callable[[Any], None], str] = {
    misspelt: "Scheduling.SlurmQueues.0.ComputeResources.0.Efaa: Unknown field.",
    unrelated_group: "PlacementGroupCapacityReservationValidator: When using an open or targeted capacity reservation",
    other_group: "PlacementGroupCapacityTypeValidator: When using a capacity block reservation, a placement group",
    no_block: "CapacityTypeValidator: Capacity Reservation id is required when using CAPACITY_BLOCK",
    no_group: "EfaPlacementGroupValidator: Placement group is disabled for queue 'group'.",
    other_type: "must have the same instance type as p5.48xlarge",
    public: "contains the instance types p4d.24xlarge with multiple network interfaces, but AssignPublicIp is set",
    unknown_policy: "policy/AmazonSSMManagedInstanceCores",
    forbidden_setting: "CustomSlurmSettingsValidator",
    without_efa: "EfaValidator: Instance type 'm5.large' does not support EFA",
}


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """The findings for each way to break the configuration, and for the configuration as it is."""
    import check

    configs = {"as it is": yaml.safe_dump(GOOD)}
    for break_it in WRONG:
        config = copy.deepcopy(GOOD)
        break_it(config)
        configs[break_it.__name__] = yaml.safe_dump(config)
    return check.check(configs, check.versions()[-1], "validators")


def test_a_configuration_that_fits_has_no_findings(said: dict[str, list[str]]) -> None:
    assert said["as it is"] == []


@pytest.mark.parametrize("broken", WRONG, ids=lambda each: str(each.__name__))
def test_what_does_not_fit_is_a_finding(said: dict[str, list[str]], broken: Callable[[Any], None]) -> None:
    found = said[broken.__name__]
    assert any(WRONG[broken] in each for each in found), found
    assert not any("\n" in each for each in found)


def test_what_cfn_lint_refuses_in_a_template_is_a_finding() -> None:
    import check

    template = {"Resources": {"Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketNam": "x"}}}}
    good = {"Resources": {"Bucket": {"Type": "AWS::S3::Bucket"}}}
    texts = {name: {check.TEMPLATE: yaml.safe_dump(each)} for name, each in (("good", good), ("wrong", template))}
    found = check.lint(texts, "us-east-2")
    assert found["good"] == []
    (line,) = found["wrong"]
    assert "E3002" in line
    assert "'BucketNam' was unexpected" in line


def test_the_program_names_file_version_and_finding_and_ends_with_1(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    import check

    config = copy.deepcopy(GOOD)
    misspelt(config)
    files = {tmp_path / "good.yaml": GOOD, tmp_path / "wrong.yaml": config}
    for file, content in files.items():
        file.write_text(yaml.safe_dump(content))
    oldest = check.versions()[0]
    line = ["check.py", "--depth", "schema", "--parallelcluster", oldest, *map(str, files)]
    monkeypatch.setattr(sys, "argv", line)
    assert check.main() == 1
    good, wrong = capsys.readouterr().out.splitlines()
    assert good == f"{tmp_path}/good.yaml: ParallelCluster {oldest}: nothing to say"
    assert wrong == f"{tmp_path}/wrong.yaml: ParallelCluster {oldest}: {WRONG[misspelt]}"
    monkeypatch.setattr(sys, "argv", line[:-1])
    assert check.main() == 0

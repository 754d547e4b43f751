#!/bin/bash
# aws-parallelcluster 3.16.1 compares the names of shared file systems with directories.
#
# OverlappingMountDirValidator is meant to refuse a shared file system within another one, or within the directory of
# a node's own disks. Given directories, it does. Its caller hands it the names of the file systems, so a configuration
# with /data and /data/inner passes, while two file systems in the same directory are refused.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check aws-parallelcluster==3.16.1
AWS_DEFAULT_REGION=us-east-1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
from importlib.metadata import version
from unittest import mock

import yaml
from pcluster.config.cluster_config import SlurmClusterConfig
from pcluster.schemas.cluster_schema import ClusterSchema
from pcluster.validators.cluster_validators import OverlappingMountDirValidator

CONFIG = """
Image: {Os: ubuntu2204}
HeadNode: {InstanceType: c5.large, Networking: {SubnetId: subnet-12345678}}
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: q
      Networking: {SubnetIds: [subnet-12345678]}
      ComputeResources: [{Name: c, InstanceType: c5.large}]
SharedStorage:
  - {Name: first, MountDir: /data, StorageType: Ebs}
  - {Name: second, MountDir: /data/inner, StorageType: Ebs}
"""


def messages(given):
    return [failure.message for failure in OverlappingMountDirValidator().execute(**given)]


print("aws-parallelcluster", version("aws-parallelcluster"))
cluster = ClusterSchema(cluster_name="example").load(yaml.safe_load(CONFIG))
disks = mock.PropertyMock(return_value={})  # which asks EC2 otherwise; c5.large has no instance storage
with mock.patch.object(SlurmClusterConfig, "local_mount_dir_instance_types_dict", disks):
    cluster._validate_mount_dirs()
(given,) = [args for kind, args in cluster._validators if kind is OverlappingMountDirValidator]
print("handed to the validator:", given["shared_mount_dir_list"])
print("what it says of that:", messages(given))
directories = {"shared_mount_dir_list": ["/data", "/data/inner"], "local_mount_dir_list": []}
print("what it says of the directories:", messages(directories))
assert given["shared_mount_dir_list"] == ["first", "second"]
assert messages(given) == []
assert messages(directories) == ["Mount directories /data, /data/inner cannot overlap"]
PYTHON

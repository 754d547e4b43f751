# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sizes and throughputs that FSx refuses, and places in S3 that cannot be.

The numbers are those of CreateFileSystem (API reference of Amazon FSx: StorageCapacity, PerUnitStorageThroughput,
MetadataConfiguration, OpenZFSConfiguration). Those with EFA are in "Increasing storage capacity" (FSx for Lustre User
Guide).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

PLACE = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/[^\s?]*)?")
_THROUGHPUT = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}
_EFA_STEP = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
_METADATA_IOPS = (1500, 3000, 6000, *range(12000, 192001, 12000))
_EFA_METADATA_IOPS = 6000
_FIRST, _SECOND = (64, 128, 256, 512, 1024, 2048, 3072, 4096), (160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240)
_HOME_THROUGHPUT = {
    **dict.fromkeys(("SINGLE_AZ_1", "SINGLE_AZ_HA_1"), _FIRST),
    **dict.fromkeys(("SINGLE_AZ_2", "SINGLE_AZ_HA_2"), _SECOND),
}
_HOME_SIZE = (64, 524288)


def bucket_of(place: str) -> str:
    found = PLACE.fullmatch(place)
    return found["bucket"] if found else ""


def refusals(parameters: Mapping[str, str], told: Mapping[str, str], there: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong, a line for each. Told is what the options say, there what the stack has."""
    size = int(parameters["LustreSize"])
    if size:
        yield from _lustre(parameters, told, size)
        yield from _grown("infrastructure_lustre_size", size, int(there.get("LustreSize", 0)), 0)
    yield from _repository(parameters, size)
    home = int(parameters["HomeSize"])
    if home:
        yield from _home(parameters, home)
        yield from _grown("infrastructure_home_size", home, int(there.get("HomeSize", 0)), 10)
    yield from _bucket(parameters)
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,24}", parameters["Name"]):
        yield (
            f"infrastructure_name is {parameters['Name']}; needed: a small letter and then small letters, digits and "
            "hyphens, 25 at most, because the bucket is named after it"
        )


def _lustre(parameters: Mapping[str, str], told: Mapping[str, str], size: int) -> Iterator[str]:
    kind, efa = parameters["LustreDeployment"], parameters["LustreEfa"] == "true"
    throughput, iops = int(parameters["LustreThroughput"]), int(parameters["LustreMetadataIops"])
    step = 3600 if kind == "SCRATCH_1" else 2400
    if size not in (1200, 2400) and (size < 0 or size % step):
        yield f"infrastructure_lustre_size is {size}; needed: 1200, 2400, or a multiple of {step} (GiB, {kind})"
    if kind not in _THROUGHPUT:
        if "LustreThroughput" in told:
            yield f"infrastructure_lustre_throughput is {throughput}; {kind} has its own, so leave the variable out"
    elif throughput not in _THROUGHPUT[kind]:
        yield (
            f"infrastructure_lustre_throughput is {throughput}; needed: one of "
            f"{_listed(_THROUGHPUT[kind])} (MB/s for each TiB, {kind})"
        )
    if iops and kind != "PERSISTENT_2":
        yield f"infrastructure_lustre_metadata_iops is {iops}; needed: PERSISTENT_2 as infrastructure_lustre_deployment"
    elif iops and iops not in _METADATA_IOPS:
        yield (
            f"infrastructure_lustre_metadata_iops is {iops}; needed: 1500, 3000, 6000, 12000, or a multiple of 12000, "
            "192000 at most"
        )
    if efa:
        yield from _efa(kind, size, throughput, iops)


def _efa(kind: str, size: int, throughput: int, iops: int) -> Iterator[str]:
    if kind != "PERSISTENT_2":
        yield f"infrastructure_lustre_efa is true, and infrastructure_lustre_deployment {kind}; needed: PERSISTENT_2"
        return
    step = _EFA_STEP.get(throughput)
    if step and size % step:
        yield (
            f"infrastructure_lustre_size is {size}; needed: a multiple of {step}, because of infrastructure_lustre_efa "
            f"at {throughput} MB/s for each TiB"
        )
    if iops < _EFA_METADATA_IOPS:
        yield (
            f"infrastructure_lustre_metadata_iops is {iops}; needed: {_EFA_METADATA_IOPS} or more, because of "
            "infrastructure_lustre_efa"
        )


def _repository(parameters: Mapping[str, str], size: int) -> Iterator[str]:
    place, path = parameters["LustreRepository"], parameters["LustreRepositoryPath"]
    if not place:
        if parameters["LustreExport"] == "true":
            yield "infrastructure_lustre_export is true; needed: infrastructure_lustre_repository, where files go to"
        return
    if not bucket_of(place):
        yield f"infrastructure_lustre_repository is {place}; needed: a place in S3 such as s3://bucket/prefix"
    if not size:
        yield (
            f"infrastructure_lustre_repository is {place}, and there is no file system to link, because "
            "infrastructure_lustre_size is 0; needed: a size"
        )
    elif parameters["LustreDeployment"] == "SCRATCH_1":
        yield (
            "infrastructure_lustre_deployment is SCRATCH_1, which takes no infrastructure_lustre_repository; needed: "
            "PERSISTENT_2, PERSISTENT_1 or SCRATCH_2"
        )
    if not re.fullmatch(r"/[\w./-]*", path):
        yield f"infrastructure_lustre_repository_path is {path}; needed: a directory of the file system, such as /s3"
    if bucket_of(place) and bucket_of(place) == parameters["Bucket"]:
        yield (
            f"infrastructure_lustre_repository is in {parameters['Bucket']}, the bucket of bundles; needed: another "
            "bucket, because who can write bundles is root on every node"
        )


def _home(parameters: Mapping[str, str], size: int) -> Iterator[str]:
    kind, throughput = parameters["HomeDeployment"], int(parameters["HomeThroughput"])
    if not _HOME_SIZE[0] <= size <= _HOME_SIZE[1]:
        yield f"infrastructure_home_size is {size}; needed: {_HOME_SIZE[0]} to {_HOME_SIZE[1]} (GiB), or 0 for none"
    if throughput not in _HOME_THROUGHPUT[kind]:
        yield (
            f"infrastructure_home_throughput is {throughput}; needed: one of {_listed(_HOME_THROUGHPUT[kind])} "
            f"(MB/s, {kind})"
        )


def _grown(name: str, size: int, before: int, percent: int) -> Iterator[str]:
    if before and size != before and size * 100 < before * (100 + percent):
        more = f"{before}, or {percent} % more" if percent else f"{before} or more"
        yield f"{name} is {size}, and the file system has {before}; needed: {more}, because FSx only lets it grow"


def _bucket(parameters: Mapping[str, str]) -> Iterator[str]:
    bucket, prefix = parameters["Bucket"], parameters["Prefix"]
    if bucket and not bucket_of(f"s3://{bucket}"):
        yield f"infrastructure_bucket is {bucket}; needed: a name that S3 takes, such as my-bundles"
    if not re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*", prefix):
        yield f"infrastructure_prefix is {prefix}; needed: a prefix such as postboot, without a slash at its ends"
    for arn in parameters["Publishers"].split(","):
        if not re.fullmatch(r"arn:aws[a-z-]*:(iam|sts)::\d{12}:(root|[a-z-]+/\S+)", arn):
            yield (
                f"infrastructure_publishers has {arn}; needed: ARNs of users and roles, such as "
                "arn:aws:iam::123456789012:role/Admin, which stands for its sessions"
            )


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))

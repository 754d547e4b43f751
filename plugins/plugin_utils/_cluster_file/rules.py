# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the parts of a configuration that we read have to be: one table, for publish and for cluster_config.

It takes whatever the schema of a supported ParallelCluster takes. Which values fit together is ParallelCluster's
business, and so are sections that we do not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Union

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file import upstream
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.variables import shown

# As ParallelCluster's library for schemas, marshmallow, reads them.
_TRUE = ("t", "T", "true", "True", "TRUE", "on", "On", "ON", "y", "Y", "yes", "Yes", "YES", "1", 1)
_FALSE = ("f", "F", "false", "False", "FALSE", "off", "Off", "OFF", "n", "N", "no", "No", "NO", "0", 0)


class Value(NamedTuple):
    needed: str
    fits: Callable[[Any], bool]


class Section(NamedTuple):
    keys: Mapping[str, Rule]
    one_of: tuple[str, ...] = ()  # of which there is exactly one
    required: tuple[str, ...] = ()


class Entries(NamedTuple):
    """A list of sections that have one key at least."""

    key: str
    entry: Section
    unique: bool = False  # whether the key is the entry's name


class Items(NamedTuple):
    """A list of values, or of sections without a key."""

    item: Value | Section


Rule = Union[Value, Section, Entries, Items]


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        int(value)
    except (ValueError, OverflowError):
        return False
    return True


def is_true(value: Any) -> bool:
    """Say whether ParallelCluster takes a value for true, which may be a text."""
    return isinstance(value, (int, float, str)) and value in _TRUE


def text(needed: str = "a text, in quotes") -> Value:
    return Value(needed, lambda value: isinstance(value, str))


def number(needed: str = "a whole number") -> Value:
    return Value(needed, _is_whole)


_TEXT, _NUMBER = text(), number()


def texts(*keys: str, required: tuple[str, ...] = ()) -> Section:
    return Section(dict.fromkeys(keys, _TEXT), required=required)


_BOOLEAN = Value("true or false", lambda value: isinstance(value, (int, float, str)) and value in (*_TRUE, *_FALSE))
_FREE = Section({})  # whose keys are another program's
_TEXTS = Items(_TEXT)
_ENABLED = Section({"Enabled": _BOOLEAN})
_IMAGE = texts("CustomAmi")
_NAME = {"Name": _TEXT}
_TAGS = Entries("Key", texts("Key", "Value"), True)

_SCRIPT: dict[str, Rule] = {"Script": text("s3://… or https://…"), "Args": _TEXTS}
_ACTION = Section({**_SCRIPT, "Sequence": Entries("Script", Section(_SCRIPT))}, ("Script", "Sequence"))
# What every node has that publish reads.
_RIGHTS: dict[str, Rule] = {
    "Iam": Section(
        {
            "InstanceRole": text("the ARN of a role"),
            "InstanceProfile": text("the ARN of an instance profile"),
            "AdditionalIamPolicies": Entries("Policy", Section({"Policy": text("the ARN of a policy")})),
            "S3Access": Entries(
                "BucketName",
                Section({"BucketName": text("the name of a bucket"), "KeyName": _TEXT, "EnableWriteAccess": _BOOLEAN}),
            ),
        }
    ),
    "CustomActions": Section(dict.fromkeys(("OnNodeStart", "OnNodeConfigured", "OnNodeUpdated"), _ACTION)),
}


def _cluster(
    head: Mapping[str, Rule],
    pool: Mapping[str, Rule],
    queue: Mapping[str, Rule],
    resource: Mapping[str, Rule],
    settings: Mapping[str, Rule],
    more: Mapping[str, Rule],
) -> Section:
    resources = Entries("Name", Section({**_NAME, "Tags": _TAGS, **resource}), True)
    queues = Section({**_NAME, **_RIGHTS, "Tags": _TAGS, "ComputeResources": resources, **queue})
    return Section(
        {
            "HeadNode": Section({**_RIGHTS, **head}),
            "LoginNodes": Section({"Pools": Entries("Name", Section({**_NAME, **_RIGHTS, **pool}), True)}),
            "Scheduling": Section({"SlurmQueues": Entries("Name", queues, True), **settings}),
            "Tags": _TAGS,
            **more,
        }
    )


PUBLISHED = _cluster({}, {}, {}, {}, {}, {})

_NETWORKING: dict[str, Rule] = {
    "SubnetId": _TEXT,
    "SubnetIds": _TEXTS,
    "SecurityGroups": _TEXTS,
    "AdditionalSecurityGroups": _TEXTS,
}
_STORAGE = Section(
    {
        "RootVolume": Section({"Size": number("a number of GiB, without a unit")}),
        "EphemeralVolume": Section({"MountDir": text("a directory")}),
    }
)
_NODE: dict[str, Rule] = {
    "InstanceType": _TEXT,
    "Image": _IMAGE,
    "Ssh": texts("KeyName", "AllowedIps"),
}
_SECONDS = number("a number of seconds")
_GROUP = Section({"Enabled": _BOOLEAN, "Id": _TEXT, "Name": _TEXT})
_SHARED = Section(
    {
        **_NAME,
        "MountDir": text("a directory"),
        "StorageType": _TEXT,
        "EbsSettings": Section({"VolumeId": _TEXT, "Size": _NUMBER, "Encrypted": _BOOLEAN}),
        "EfsSettings": Section({"FileSystemId": _TEXT, "Encrypted": _BOOLEAN}),
        "FsxLustreSettings": Section(
            {
                "FileSystemId": _TEXT,
                "StorageCapacity": _NUMBER,
                "PerUnitStorageThroughput": _NUMBER,
                "DataRepositoryAssociations": Entries("Name", Section(_NAME), True),
            }
        ),
        "FsxOpenZfsSettings": texts("VolumeId"),
        "FsxOntapSettings": texts("VolumeId"),
    }
)
WHOLE = _cluster(
    {
        **_NODE,
        "Networking": Section(_NETWORKING),
        "LocalStorage": _STORAGE,
        "SharedStorageType": _TEXT,
        "Imds": Section({"Secured": _BOOLEAN}),
    },
    {**_NODE, "Networking": Section(_NETWORKING), "Count": _NUMBER, "GracetimePeriod": number("a number of minutes")},
    {
        "Networking": Section({**_NETWORKING, "PlacementGroup": _GROUP}),
        "ComputeSettings": Section({"LocalStorage": _STORAGE}),
        "CapacityType": _TEXT,
        "AllocationStrategy": _TEXT,
        "JobExclusiveAllocation": _BOOLEAN,
        "CapacityReservationTarget": texts("CapacityReservationId", "CapacityReservationResourceGroupArn"),
        "Image": _IMAGE,
        "HealthChecks": Section({"Gpu": _ENABLED}),
        "CustomSlurmSettings": _FREE,
    },
    {
        "InstanceType": _TEXT,
        "Instances": Entries("InstanceType", texts("InstanceType")),
        "MinCount": _NUMBER,
        "MaxCount": _NUMBER,
        "Efa": _ENABLED,
        "Networking": Section({"PlacementGroup": _GROUP}),
        "DisableSimultaneousMultithreading": _BOOLEAN,
        "CustomSlurmSettings": _FREE,
    },
    {
        "Scheduler": _TEXT,
        "SlurmSettings": Section(
            {
                "ScaledownIdletime": number("a number of minutes"),
                "QueueUpdateStrategy": _TEXT,
                "EnableMemoryBasedScheduling": _BOOLEAN,
                "Dns": Section({"DisableManagedDns": _BOOLEAN, "UseEc2Hostnames": _BOOLEAN, "HostedZoneId": _TEXT}),
                "Database": texts("Uri", "UserName", "PasswordSecretArn", "DatabaseName"),
                "CustomSlurmSettings": Items(_FREE),
            }
        ),
    },
    {
        "Region": _TEXT,
        "Image": texts("Os", "CustomAmi"),
        "SharedStorage": Entries("Name", _SHARED, True),
        "Imds": texts("ImdsSupport"),
        "Monitoring": Section(
            {
                "DetailedMonitoring": _BOOLEAN,
                "Logs": Section(
                    {
                        "CloudWatch": Section(
                            {
                                "Enabled": _BOOLEAN,
                                "RetentionInDays": number("a number of days"),
                                "DeletionPolicy": _TEXT,
                            }
                        )
                    }
                ),
                "Dashboards": Section({"CloudWatch": _ENABLED}),
                "Alarms": _ENABLED,
            }
        ),
        "DevSettings": Section(
            {
                "Timeouts": Section(
                    {"HeadNodeBootstrapTimeout": _SECONDS, "ComputeNodeBootstrapTimeout": _SECONDS},
                )
            }
        ),
    },
)


def problems(found: Mapping[str, Any], sections: Section) -> list[str]:
    """Return a line for each mistake. What ParallelCluster's own schema refuses is one, too, if it is installed."""
    return list(_section("", found, sections, upstream.schema()))


def _section(place: str, found: Any, rule: Section, schema: Any) -> Iterator[str]:
    if not isinstance(found, Mapping):
        needed = _entry(rule.keys, rule.one_of[0]) + ", or Sequence: <a list of such entries>" if rule.one_of else ""
        yield f"{place} is {shown(found)}; needed: {needed or 'a section, with keys and values'}"
        return
    known = {key.lower(): key for key in rule.keys}
    for key in found:
        right = known.get(str(key).lower(), key)
        if right != key:
            yield f"{place or 'the file'} has {key}; needed: {right}"
    for key in rule.required:
        if key not in found:
            yield f"{place} lacks {key}; needed: {_entry(rule.keys, key)}"
    present = [key for key in rule.one_of if key in found]
    if rule.one_of and len(present) != 1:
        names = " and ".join(rule.one_of) if present else " nor ".join(rule.one_of)
        yield f"{place} has {'both' if present else 'neither'} {names}; needed: one of them"
    for key, inner in rule.keys.items():
        if key in found:
            yield from _judge(f"{place}/{key}".lstrip("/"), found[key], inner, upstream.field(schema, key))


def _judge(place: str, found: Any, rule: Rule, field: Any) -> Iterator[str]:
    if isinstance(rule, Section):
        yield from _section(place, found, rule, upstream.inner(field))
    elif isinstance(rule, Value):
        refusal = upstream.refusal(field, found) if rule.fits(found) else ""
        if refusal:
            needed = f"a value that ParallelCluster takes, whose schema answers: {refusal}"
            yield f"{place} is {shown(found)}; needed: {needed}"
        elif not rule.fits(found):
            yield f"{place} is {shown(found)}; needed: {rule.needed}"
    elif not isinstance(found, list):
        if isinstance(rule, Entries):
            needed = f"a list whose entries have {rule.key}"
        else:
            needed = "a list of sections" if isinstance(rule.item, Section) else "a list"
        yield f"{place} is {shown(found)}; needed: {needed}"
    elif isinstance(rule, Items):
        for position, each in enumerate(found):
            yield from _judge(f"{place}[{position}]", each, rule.item, upstream.item(field))
    else:
        yield from _entries(place, found, rule, upstream.inner(field))


def _entries(place: str, found: list[Any], rule: Entries, schema: Any) -> Iterator[str]:
    names: list[Any] = []
    for position, each in enumerate(found):
        here, needed = f"{place}[{position}]", _entry(rule.entry.keys, rule.key)
        if not isinstance(each, Mapping):
            yield f"{here} is {shown(each)}; needed: {needed}"
            continue
        name = each.get(rule.key)
        if name is None:
            yield f"{here} lacks {rule.key}; needed: {needed}"
        elif rule.unique and name in names:
            yield f"{here}/{rule.key} is {shown(name)}, as of another entry; needed: a name that no other entry has"
        elif rule.unique and isinstance(name, str):
            here = f"{place}[{name}]"
        names.append(name)
        yield from _section(here, each, rule.entry, schema)


def _entry(keys: Mapping[str, Rule], key: str) -> str:
    rule = keys[key]
    needed = "a name" if rule is _TEXT or not isinstance(rule, Value) else rule.needed
    return f"{key}: <{needed}>"

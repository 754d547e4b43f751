# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/create-a-cluster.md: which changes a cluster that runs takes; and whether its commands have these options.

The latter is asked of docs/first-cluster.md and of docs/runbooks, too, where not every command runs in the sandbox.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.session
import jmespath
import pytest
import yaml
from botocore import xform_name

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/create-a-cluster.md").read_text()
RUNNING = yaml.safe_load((ROOT / "examples/cluster-configs/post-install.yaml").read_text())
Change = Callable[[Any], Any]


def queue(config: Any, number: int = 0) -> Any:
    return config["Scheduling"]["SlurmQueues"][number]


def resource(config: Any, **changes: Any) -> None:
    queue(config)["ComputeResources"][0].update(changes)


def pool(config: Any, **changes: Any) -> None:
    config["LoginNodes"]["Pools"][0].update(changes)


IMAGE = {"CustomAmi": "ami-0123456789abcdef0"}
RESERVATION = {"CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}}
FIRST, SECOND = "subnet-0123456789abcdef1", "subnet-0123456789abcdef2"
NEW = {
    "Name": "new",
    "Networking": {"SubnetIds": [FIRST]},
    "ComputeResources": [{"Name": "m5", "InstanceType": "m5.large", "MaxCount": 2}],
}
OPENZFS = {
    "Name": "data",
    "MountDir": "/data",
    "StorageType": "FsxOpenZfs",
    "FsxOpenZfsSettings": {"VolumeId": "fsvol-0123456789abcdef0"},
}
POLICY = {"Policy": "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"}
DATABASE = {
    "Uri": "database.example.com:3306",
    "UserName": "slurm",
    "PasswordSecretArn": "arn:aws:secretsmanager:us-east-2:123456789012:secret:slurm-0a1b2c",
}
# Each row of the page, as changes of a configuration.
CHANGES: dict[str, list[Change]] = {
    "more nodes at most": [lambda c: resource(c, MaxCount=20)],
    "more nodes always, with as many more at most": [lambda c: resource(c, MinCount=4, MaxCount=10)],
    "fewer nodes": [lambda c: resource(c, MaxCount=4), lambda c: resource(c, MinCount=1)],
    "another queue": [lambda c: c["Scheduling"]["SlurmQueues"].append(NEW)],
    "a queue less": [lambda c: c["Scheduling"]["SlurmQueues"].pop()],
    "the instance type of a queue": [lambda c: resource(c, InstanceType="p5en.48xlarge")],
    "a queue's subnet, image, root volume, reservation, `CustomActions`": [
        lambda c: queue(c, 1)["Networking"].update(SubnetIds=[SECOND]),
        lambda c: queue(c).update(Image=IMAGE),
        lambda c: queue(c, 1)["ComputeSettings"]["LocalStorage"]["RootVolume"].update(Size=200),
        lambda c: queue(c).update(RESERVATION),
        lambda c: queue(c)["CustomActions"]["OnNodeConfigured"].update(Args=["x"]),
    ],
    "the policies of head node and queues": [
        lambda c: c["HeadNode"]["Iam"]["AdditionalIamPolicies"].append(POLICY),
        lambda c: queue(c)["Iam"]["AdditionalIamPolicies"].append(POLICY),
    ],
    "the head node's instance type, image, `OnNodeConfigured`": [
        lambda c: c["HeadNode"].update(InstanceType="m5.8xlarge"),
        lambda c: c["HeadNode"].update(Image=IMAGE),
        lambda c: c["HeadNode"]["CustomActions"]["OnNodeConfigured"].update(Args=["x"]),
    ],
    "the head node's `OnNodeUpdated`": [lambda c: c["HeadNode"]["CustomActions"]["OnNodeUpdated"].update(Args=["x"])],
    "the image of all nodes": [lambda c: c["Image"].update(IMAGE)],
    "`ComputeNodeBootstrapTimeout`": [lambda c: c["DevSettings"]["Timeouts"].update(ComputeNodeBootstrapTimeout=3000)],
    "`HeadNodeBootstrapTimeout`": [lambda c: c["DevSettings"]["Timeouts"].update(HeadNodeBootstrapTimeout=6000)],
    "another file system at the same place": [
        lambda c: c["SharedStorage"][0]["FsxLustreSettings"].update(FileSystemId="fs-0123456789abcdef1")
    ],
    "one more file system that is there": [lambda c: c["SharedStorage"].append(OPENZFS)],
    "the number of login nodes": [lambda c: pool(c, Count=3)],
    "the instance type of login nodes": [lambda c: pool(c, InstanceType="m5.4xlarge")],
    "`CustomSlurmSettings`": [lambda c: c["Scheduling"]["SlurmSettings"].pop("CustomSlurmSettings")],
    "the accounting database": [lambda c: c["Scheduling"]["SlurmSettings"].update(Database=DATABASE)],
    "detailed monitoring": [lambda c: c.update(Monitoring={"DetailedMonitoring": True})],
}
# What the refusal has where the page says what to do instead.
WORDS = {
    "": "^$",
    "stop the fleet": "All compute nodes must be stopped Stop the compute fleet",
    "stop the fleet, or `QueueUpdateStrategy: TERMINATE`": "QueueUpdateStrategy must be set to TERMINATE",
    "`QueueUpdateStrategy`, or stop the fleet": "All compute nodes must be stopped or QueueUpdateStrategy must be set ",
    "a new cluster": "please consider creating a new cluster",
    "a new cluster; a queue's own image can change": "please consider creating a new cluster",
    "the pool's `Count: 0` first": "Stop the login nodes by setting Count parameter to 0",
}


def rows() -> dict[str, tuple[str, str]]:
    table = PAGE.partition("<!-- begin updates")[2].partition("<!-- end updates")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    return {change: (verdict, instead) for change, verdict, instead in cells[1:]}


def test_each_row_is_a_change_and_says_what_to_do_instead() -> None:
    assert list(rows()) == list(CHANGES)
    for verdict, instead in rows().values():
        assert instead in WORDS
        assert verdict == ("refuses" if instead else "takes it")


@pytest.mark.long
def test_the_newest_takes_and_refuses_what_the_page_says(check: Any) -> None:
    configs, expected = {}, {}
    for row, (_, instead) in rows().items():
        for number, change in enumerate(CHANGES[row]):
            config = copy.deepcopy(RUNNING)
            change(config)
            configs[f"{row}, {number}"], expected[f"{row}, {number}"] = yaml.safe_dump(config), WORDS[instead]
    found = check.updates(yaml.safe_dump(RUNNING), configs, check.versions()[-1])
    assert {name: line for name, line in found.items() if not re.search(expected[name], line)} == {}


def commands(program: str) -> Iterator[list[str]]:
    more = [ROOT / "docs/first-cluster.md", *sorted((ROOT / "docs/runbooks").glob("*.md"))]
    pages = PAGE + "".join(path.read_text() for path in more)
    blocks = re.findall(r"^```console\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    for line in re.sub(r" \\\n +", " ", "".join(blocks)).splitlines():
        if line.startswith(f"$ {program} "):
            yield list(itertools.takewhile(lambda word: word not in (">", "|"), shlex.split(line)[2:]))


# `aws s3` has commands of its own, which are no operations; the sandbox runs them.
OPERATIONS = [words for words in commands("aws") if words[0] != "s3"]


@pytest.mark.parametrize("words", OPERATIONS, ids=lambda words: " ".join(words[:2]))
def test_a_command_of_the_aws_cli_has_these_options(words: list[str]) -> None:
    service, command, *rest = words
    model = botocore.session.get_session().get_service_model(service.removesuffix("api"))
    (operation,) = [name for name in model.operation_names if xform_name(name, "-") == command]
    shape = model.operation_model(operation).input_shape
    known = {xform_name(name, "-"): name for name in shape.members}
    given = {word[2:] for word in rest if word.startswith("--")} - {"region", "query", "output", "max-items"}
    assert given <= set(known)
    assert set(shape.required_members) <= {known[name] for name in given}
    if "--query" in rest:
        jmespath.compile(rest[rest.index("--query") + 1])


def test_every_command_of_pcluster_has_these_options(check: Any, tmp_path: Path) -> None:
    (tmp_path / "my-cluster.yaml").write_text("Region: us-east-2")
    program = (
        "import functools, json, sys; from pcluster.cli import entrypoint, model\n"
        "entrypoint._run_operation = lambda *given: None\n"
        "model.package_spec = functools.cache(model.package_spec)  # which every line would read anew\n"
        "for words in json.load(sys.stdin): entrypoint.run(words)"
    )
    lines = list(commands("pcluster"))
    assert len({words[0] for words in lines}) > 7
    python = check.HERE.parents[2] / f".sandbox/cache/parallelcluster-{check.versions()[-1]}/bin/python"
    done = subprocess.run(
        [python, "-c", program], input=json.dumps(lines), text=True, capture_output=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr

# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the controller adds: nodes that are gone, what differs between nodes, the page, and the one archive."""

from __future__ import annotations

import json
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import CAUSE, FAULT, NOTE, finding
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import Redactor
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import archive, fleet, gone, page
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import GONE, SILENT, Node, groups
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import error

REGION, SECRET = "us-east-2", "Hunter2-correcthorse"
GROUP = "/aws/parallelcluster/alpha-202611231100"
LIMITS = gone.Limits(1_000_000, 48.0, time.time())
TOLD = "pcluster-postboot: enroot failed: dpkg ended with 1; see /var/log/pcluster-postboot/pull.log"
# NVIDIA/NVSentinel#155, as imjournal of rsyslog writes the three lines into /var/log/messages.
OFF_THE_BUS = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0#012NVRM: (PCI ID: 10de:26b5) installed in this system has#012NVRM: fallen off "
    "the bus and is not responding to commands."
)


def node(name: str, bundle: str = "", kind: str = "compute", **more: Any) -> Node:
    who = {"cluster": "alpha", "node": name, "node_type": kind, "bundle": bundle, "region": REGION}
    return Node(name, who=who, **more)


# What AWS has


@pytest.fixture(scope="module")
def account(moto: str) -> Iterator[gone.Aws]:
    """An account with an instance that has ended, and with its cluster's logs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [one for one in os.environ if one.startswith("AWS_")]:
            patch.delenv(name)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "x")
        patch.setenv("AWS_ENDPOINT_URL", moto)
        make = session.client_maker(session.Credentials(), REGION)
        yield gone.Aws(make, REGION, "alpha", LIMITS)


@pytest.fixture(scope="module")
def instance(account: gone.Aws) -> str:
    ec2, logs = account.make("ec2", REGION), account.make("logs", REGION)
    image = ec2.describe_images()["Images"][0]["ImageId"]
    found = str(ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"])
    ec2.terminate_instances(InstanceIds=[found])
    now = int(time.time() * 1000)
    # A page has 50 groups, in the order of their names.
    former = [f"/aws/parallelcluster/alpha-2025010100{minute:02}" for minute in range(50)]
    for group in (GROUP, *former, "/aws/parallelcluster/alpha-beta-202611231100"):
        logs.create_log_group(logGroupName=group)
    for stream, lines in {
        f"ip-10-0-0-5.{found}.cloud-init-output": ["first", TOLD],
        f"ip-10-0-0-5.{found}.slurmd": [f"password={SECRET}"],
        f"ip-10-0-0-5.{found}.system-messages": [f"Nov 27 11:48:13 ip-10-0-0-5 kernel: {OFF_THE_BUS}"],
        f"cpu-st-c5-1.{found}.pcluster-postboot-report": ['{"stopped": null}', '{"stopped": {"message": "x"}}'],
        "ip-10-0-0-6.i-0123.cloud-init-output": ["another node"],
    }.items():
        logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
        events = [{"timestamp": now + n, "message": line} for n, line in enumerate(lines)]
        logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events)
    return found


@pytest.mark.parametrize("host", ["ip-10-0-0-5", ""])
def test_a_node_that_is_gone_is_known_by_its_logs_console_and_state(
    account: gone.Aws, instance: str, host: str
) -> None:
    account.group = GROUP
    one = Node("cpu-st-c5-1", GONE, {"node": "cpu-st-c5-1", "node_type": "compute"})
    account.gather(one, [(instance, host)])
    gone.clean(one, Redactor())
    stream = f"{instance}/cloudwatch/ip-10-0-0-5.{instance}.cloud-init-output"
    assert one.texts[stream] == f"first\n{TOLD}\n"
    assert "Linux version" in one.texts[f"{instance}/console.txt"]  # moto's sample
    assert "state: terminated" in one.texts[f"{instance}/ec2.txt"]
    assert SECRET not in "".join(one.texts.values())
    assert not [name for name in one.texts if "i-0123" in name]
    assert one.texts[f"{instance}/cloudwatch/cpu-st-c5-1.{instance}.pcluster-postboot-report"] == (
        '{"stopped": {"message": "x"}}\n'
    )
    told = gone.judged(one, LIMITS)
    assert "boot-failed" in [each.kind for each in told]
    assert (told[0].kind, told[0].level, told[0].file) == ("component-enroot", CAUSE, stream)
    assert "ended" in [each.kind for each in told]
    assert "XID 79 on PCI:0000:b3:00" in next(each.what for each in told if each.kind == "xid-79")
    assert account.notes == []


class Stream:
    """A stream whose pages CloudWatch gives backwards: some empty, and beyond the first the same token again."""

    def __init__(self, *pages: list[str]) -> None:
        self.pages, self.calls = pages, 0

    def get_log_events(self, nextToken: str = "0", **_more: Any) -> dict[str, Any]:
        self.calls += 1
        number = int(nextToken)
        events = [{"message": line} for line in self.pages[number]] if number < len(self.pages) else []
        return {"events": events, "nextBackwardToken": str(min(number + 1, len(self.pages)))}


def read(stream: Stream, most: int = 1_000_000) -> tuple[str, list[str]]:
    limits = LIMITS._replace(file=most)
    aws = gone.Aws(lambda _service, _region: stream, REGION, "alpha", limits, GROUP)
    return aws._events("slurmd"), aws.notes


def test_a_page_of_events_may_be_empty_and_not_be_the_last() -> None:
    stream = Stream([], ["third", "fourth"], [], ["first", "second"])
    assert read(stream) == ("first\nsecond\nthird\nfourth\n", [])
    assert stream.calls == 5, "the last call has said that nothing is before"
    assert read(Stream(["b"], [], ["a"]), most=2) == ("b\n", []), "no more is asked for than is kept"


def test_a_stream_whose_pages_do_not_end_is_not_read_for_ever() -> None:
    stream = Stream(["last"], *([[]] * 1000))
    assert read(stream) == (
        "last\n",
        [f"{GROUP}, stream slurmd: only the last 200 pages of events were read"],
    )
    assert stream.calls == 200


def test_the_newest_log_group_of_the_cluster_itself_is_taken(account: gone.Aws, instance: str) -> None:
    fresh = gone.Aws(account.make, REGION, "alpha", LIMITS)
    assert fresh._find_group() == GROUP
    other = gone.Aws(account.make, REGION, "gamma", LIMITS)
    assert other._find_group() == ""
    assert other.notes == [
        "CloudWatch has no log group /aws/parallelcluster/gamma-<time>: the cluster's logs were not kept"
    ]


def test_an_instance_that_aws_has_forgotten_ends_nothing(account: gone.Aws) -> None:
    fresh = gone.Aws(account.make, REGION, "alpha", LIMITS, GROUP)
    one = Node("i-0123456789abcdef0", GONE)
    fresh.gather(one, [("i-0123456789abcdef0", "")])
    assert one.texts == {}


def test_what_is_not_allowed_is_one_note() -> None:
    class Denied:
        def __getattr__(self, _name: str) -> Any:
            def refuse(**_more: Any) -> Any:
                raise error("AccessDeniedException")

            return refuse

    aws = gone.Aws(lambda _service, _region: Denied(), REGION, "alpha", LIMITS, GROUP)
    aws.gather(Node("n"), [("i-01", ""), ("i-01", "")])
    assert [line.split(" is not allowed")[0].rsplit(" ", 1)[1] for line in aws.notes] == [
        "ec2:DescribeInstances",
        "ec2:GetConsoleOutput",
        "logs:DescribeLogStreams",
    ]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Server.SpotInstanceTermination: Instance terminated due to Spot price", "spot"),
        ("Server.InternalError: Internal error on launch", "ec2-server"),
        ("Client.InstanceInitiatedShutdown: Instance initiated shutdown", "ended"),
    ],
)
def test_the_reason_of_ec2_is_passed_on(reason: str, kind: str) -> None:
    text = f"instance: i-01\nstate: terminated\nreason: {reason}\n"
    told = gone.judged(Node("n", texts={"i-01/ec2.txt": text}), LIMITS)
    assert [one.kind for one in told] == [kind]


def test_a_silent_head_node_is_judged_by_what_its_daemons_have_shipped() -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S,123", time.gmtime())
    failure = "Found the following bootstrap failure nodes: (x1) ['cpu-st-c5-1(10.0.0.5)']"
    line = f"{now} - [slurm_plugin.clustermgtd:_handle_bootstrap_failure_nodes] - WARNING - {failure}\n"
    stream = "i-01/cloudwatch/ip-10-0-0-1.i-01.clustermgtd"
    told = gone.judged(node("head", kind="head", texts={stream: line}), LIMITS)
    assert [one.kind for one in told] == ["bootstrap-failures"]
    told = gone.judged(node("cpu-st-c5-1", texts={"head/clustermgtd": line}), LIMITS)
    assert [one.kind for one in told] == ["given-up"]


def test_names_that_are_none_are_refused() -> None:
    gone.check(["gpu-st-p5-1", "a-dy-b-c-12", "i-0123456789abcdef0"])
    with pytest.raises(Problem, match=r"^diagnose_gone: found head, i-xyz; needed: names of compute nodes in Slurm"):
        gone.check(["gpu-st-p5-1", "head", "i-xyz"])


# Between nodes


def test_a_node_with_another_bundle_is_named() -> None:
    nodes = [node("a", "0.2.0-b"), node("b", "0.2.0-b"), node("c", "0.1.0-a"), node("d")]
    fleet.compare(nodes)
    assert [[one.kind for one in each.findings] for each in nodes] == [[], [], ["old-bundle"], []]
    (one,) = nodes[2].findings
    assert (one.level, one.line) == (CAUSE, "0.1.0-a on c; 0.2.0-b on a,b")
    # Of two the head node has the one that is meant; and clusters differ as they like.
    nodes = [node("head", "0.1.0-a", "head"), node("b", "0.2.0-b")]
    fleet.compare(nodes)
    assert [len(each.findings) for each in nodes] == [0, 1]
    nodes[0].who["cluster"] = "beta"
    nodes[1].findings = []
    fleet.compare(nodes)
    assert nodes[1].findings == []


def test_versions_that_differ_between_like_nodes_are_told() -> None:
    def report(version: str) -> dict[str, str]:
        return {fleet.REPORT: json.dumps({"versions": {"nccl": {"version": version}, "odd": None}})}

    nodes = [node(name, texts=report(version)) for name, version in (("a", "2"), ("b", "2"), ("c", "1"))]
    fleet.compare(nodes)
    assert [[one.kind for one in each.findings] for each in nodes] == [[], [], ["version-nccl"]]


def test_a_run_that_was_killed_on_this_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    me = lock.Holder.of_process(os.getpid(), "push")
    dead = {**me.__dict__, "pid_started": "before"}
    nodes = [node("a", texts={fleet.LOCK: json.dumps(dead)}), node("b", texts={fleet.LOCK: json.dumps(me.__dict__)})]
    fleet.compare(nodes)
    assert [[one.kind for one in each.findings] for each in nodes] == [["killed-run"], []]


# The page and the archive


def sent(tmp_path: Path, name: str, **texts: str) -> Node:
    """A node whose part was fetched."""
    path = tmp_path / f"{name}.tar.gz"
    told = finding(
        "lost-gpu", CAUSE, "1 of 8 GPUs are lost", f"GPU 7, {SECRET}", "commands/x.txt", "drain it", "lost-gpu"
    )
    listed = {
        "files": [{"name": "commands/x.txt", "source": "x", "kept": 3, "whole": 9, "note": ""}],
        "left": ["/a: too large"],
        "redacted": {"AWS access key": 2},
        "findings": [told._asdict()],
    }
    with tarfile.open(path, "w:gz") as stream:
        for member, text in {"commands/x.txt": f"<b>{SECRET}", "gathered.json": json.dumps(listed), **texts}.items():
            archive._add(stream, member, text)
    found = node(name, file=str(path))
    archive.read(found)
    return found


def test_the_archive_has_the_page_and_no_secret_of_this_machine(tmp_path: Path) -> None:
    nodes = [sent(tmp_path, "gpu-1"), sent(tmp_path, "gpu-2"), node("cpu-1", texts={"i-01/ec2.txt": SECRET})]
    fleet.silent(nodes[2], "no route to host")
    redactor = Redactor(archive.secrets([{"ansible_become_password": SECRET, "x": "y", "token_list": [3]}]))
    archive.clean(nodes, redactor)
    run = page.Run("alpha", "2026-11-23T12:00:00Z", "limits", ["AWS was not asked"])
    pages = {"summary.txt": page.text(run, nodes), "index.html": page.html(run, nodes)}
    path = tmp_path / "out.tar.gz"
    assert archive.write(str(path), "out", nodes, pages, redactor) == path.stat().st_size
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as stream:
        texts = {name: stream.extractfile(name).read().decode() for name in stream.getnames()}  # type: ignore[union-attr]
    assert list(texts)[:2] == ["out/summary.txt", "out/index.html"]
    assert SECRET not in "".join(texts.values())
    assert texts["out/nodes/gpu-1/commands/x.txt"] == "<b>[redacted]"
    summary = texts["out/summary.txt"]
    assert summary.splitlines()[1] == "2 of 3 nodes answered. First look at: gpu-[1-2]: 1 of 8 GPUs are lost."
    assert "1. gpu-[1-2]: 1 of 8 GPUs are lost\n   evidence: GPU 7, [redacted]\n" in summary
    assert "   file:     nodes/gpu-1/commands/x.txt\n" in summary
    assert "   runbook:  docs/runbooks/lost-gpu.md\n" in summary
    assert "AWS access key: 4\n" in summary
    assert "gpu-1: /a: too large" in summary
    html = texts["out/index.html"]
    assert '<a href="nodes/gpu-1/commands/x.txt">' in html
    assert "docs/runbooks/lost-gpu.md" in html
    assert "AWS was not asked" in html
    assert "3 of 9" in html


def test_what_nodes_say_is_no_markup(tmp_path: Path) -> None:
    one = node("<i>n</i>")
    one.findings = [finding("k", FAULT, "<script>w", "<script>l", "a b?.txt", "<script>t", "logs")]
    html = page.html(page.Run("<script>", "now", "limits"), [one])
    assert "<script>" not in html
    assert 'href="nodes/%3Ci%3En%3C/i%3E/a%20b%3F.txt"' in html


def test_the_gravest_and_the_most_frequent_come_first() -> None:
    nodes = [node("a"), node("b")]
    seldom, often = (finding(kind, FAULT, kind, "l", "", "t", "logs") for kind in ("seldom", "often"))
    cause = finding("cause", CAUSE, "cause", "l", "", "t", "logs")
    note = finding("note", NOTE, "note", "l", "", "t", "logs")
    nodes[0].findings, nodes[1].findings = [note, seldom, often], [often, cause]
    assert [group.finding.kind for group in groups(nodes)] == ["cause", "often", "seldom", "note"]
    verdict = page.text(page.Run("", "now", ""), nodes).splitlines()[1]
    assert verdict == "2 of 2 nodes answered. First look at: b: cause."
    nodes[0].findings = nodes[1].findings = [note]
    assert page.text(page.Run("", "now", ""), nodes).splitlines()[1] == "2 of 2 nodes answered. Nothing stands out."


def test_a_part_that_is_broken_or_leads_outside_is_refused(tmp_path: Path) -> None:
    broken = node("n", file=str(tmp_path / "n.tar.gz"))
    (tmp_path / "n.tar.gz").write_bytes(b"no archive")
    with pytest.raises(Problem, match=r"^what n has sent cannot be read: "):
        archive.read(broken)
    outside = sent(tmp_path, "m", **{"../../etc/x": "y", "/etc/y": "z"})
    assert [name for name, _text in archive.members(outside)] == ["commands/x.txt", "gathered.json"]


def test_silence_is_a_finding() -> None:
    one = node("n")
    fleet.silent(one, "timed out")
    assert (one.state, one.findings[0].line, one.findings[0].level) == (SILENT, "timed out", FAULT)

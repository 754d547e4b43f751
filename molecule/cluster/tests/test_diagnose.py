# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults are planted, and the first page of diagnose's archive names the cause of each."""

from __future__ import annotations

import json
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from testinfra.host import Host

from .bundles import Bundle, republish
from .conftest import host, instance, playbook
from .helpers import On, Play, Run, failed, joined, ok, said, until, variables
from .test_control_plane import MAIN, wait_until_replaced
from .test_pull import LOG, OPT, SPARE, TAKE_AWAY, act, fault, newer, points, report, serves, settle, spare

# Fixtures of other files, which pytest finds by their names here.
__all__ = ["fault", "newer", "spare"]
SECRET = "Hunter2-correcthorse"


@dataclass
class Page:
    """The archive of one run."""

    run: Run
    texts: dict[str, str]

    @property
    def summary(self) -> str:
        return self.texts["summary.txt"]

    @property
    def found(self) -> dict[tuple[str, str], dict[str, Any]]:
        """What was found, by kind and node."""
        told = {}
        for name, text in self.texts.items():
            if name.endswith("/gathered.json"):
                told[name] = json.loads(text)
        return {(one["kind"], each["node"]["name"]): one for each in told.values() for one in each["findings"]}

    def first(self) -> str:
        """The first page: what stands out, without the list of nodes."""
        return " ".join(self.summary.partition("\nNodes\n")[0].split())


Diagnose = Callable[..., Page]


@pytest.fixture(scope="module")
def diagnose(play: Play, tmp_path_factory: pytest.TempPathFactory) -> Diagnose:
    """A function that runs diagnose for some nodes, and reads its archive."""
    folder = tmp_path_factory.mktemp("diagnose")

    def run(limit: str, **more: Any) -> Page:
        path = folder / f"{time.monotonic_ns()}.tar.gz"
        done = ok(play("--limit", limit, *variables(diagnose_archive=str(path), **more), name="diagnose"))
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile()]
            texts = {one.name.partition("/")[2]: archive.extractfile(one).read().decode() for one in members}  # type: ignore[union-attr]
        return Page(done, texts)

    return run


# A FUSE server that has mounted its file system and answers nothing: whoever touches the mount waits.
HUNG = """
import ctypes, os, signal, sys
os.makedirs(sys.argv[1], exist_ok=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if ctypes.CDLL(None, use_errno=True).mount(b"hung", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
signal.pause()
"""
CPU, GPU = "cpu-st-c5-1", "gpu-st-p5-1"


@pytest.fixture(scope="module")
def planted(diagnose: Diagnose, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The archive of four nodes: one is not reached, and the other three have a fault or a secret each.

    These are a dead exporter and a hung mount, a lost GPU, and secrets on the head node. Nothing is reached on the port
    of the login node for SSH; AWS is asked what it has of that node.
    """
    cpu, gpu, head, login = host(CPU), host(GPU), host("head"), host("login")
    unreached = "INPUT -p tcp --dport 22 -j REJECT"
    secrets = f"grafana_admin_password: {SECRET}\\nlogin with {SECRET}\\n"
    secrets += "url https://b.s3.amazonaws.com/k?X-Amz-Signature=0123456789abcdef&x=1\\n"
    try:
        cpu.check_output("systemctl stop node_exporter")
        cpu.check_output("printf %%s %s > /root/hung.py", HUNG)
        cpu.check_output("systemd-run --quiet --unit=hung-mount python3 /root/hung.py /mnt/hung")
        until(lambda: "/mnt/hung" in cpu.file("/proc/mounts").content_string, 10, "the mount hangs")
        gpu.check_output("mv /dev/nvidia7 /root/nvidia7")
        head.check_output(f"printf '{secrets}' > /var/log/parallelcluster/planted.log")
        login.check_output(f"iptables -I {unreached}")
        # Connections that earlier plays have left open would go on.
        yield diagnose(f"head,login,{CPU},{GPU}", ansible_control_path_dir=str(tmp_path_factory.mktemp("ssh")))
    finally:
        login.run(f"iptables -D {unreached}")
        head.run("rm -f /var/log/parallelcluster/planted.log")
        gpu.run("mv /root/nvidia7 /dev/nvidia7")
        cpu.run("umount -l /mnt/hung; systemctl stop hung-mount; rm -rf /mnt/hung /root/hung.py")
        cpu.check_output("systemctl start node_exporter")


def test_a_dead_exporter_is_named(planted: Page) -> None:
    one = planted.found["unit-node_exporter.service", CPU]
    assert one["line"].startswith("node_exporter.service: inactive (dead)")
    assert f"{CPU}: node_exporter.service is enabled and does not run" in planted.first()
    assert "docs/runbooks/logs.md" in planted.first()


def test_a_hung_mount_is_named_and_hangs_nothing(planted: Page) -> None:
    one = planted.found["hung-mount-/mnt/hung", CPU]
    assert one["line"] == "/mnt/hung (fuse) did not answer within 6 s"
    assert f"{CPU}: the mount /mnt/hung hangs" in planted.first()
    assert json.loads(planted.texts[f"nodes/{CPU}/mounts.json"])["/mnt/hung"]["dead"] is True


def test_a_lost_gpu_is_named(planted: Page) -> None:
    assert planted.found["lost-gpu", GPU]["what"] == "1 of 8 GPUs (as PCI has them) are lost"
    assert f"{GPU}: 1 of 8 GPUs (as PCI has them) are lost" in planted.first()
    assert "docs/runbooks/lost-gpu.md" in planted.first()


def test_no_planted_secret_is_in_the_archive(planted: Page) -> None:
    everything = "".join(planted.texts.values())
    assert SECRET not in everything
    assert "0123456789abcdef&" not in everything
    assert planted.texts["nodes/head/var/log/parallelcluster/planted.log"] == (
        "grafana_admin_password: [redacted]\nlogin with [redacted]\n"
        "url https://b.s3.amazonaws.com/k?X-Amz-Signature=[redacted]&x=1\n"
    )
    assert "What was redacted" in planted.summary
    assert "signature of a URL: 1\n" in planted.summary


def test_a_node_that_does_not_answer_is_a_finding_and_no_failure(planted: Page) -> None:
    assert "3 of 4 nodes answered" in planted.summary
    assert "login: the node does not answer" in planted.first()
    assert [name for name in planted.texts if name.startswith("nodes/login/i-") and name.endswith("/ec2.txt")]


def test_what_a_supporter_asks_for_is_there(planted: Page) -> None:
    head = {name.partition("/")[2].partition("/")[2] for name in planted.texts if name.startswith("nodes/head/")}
    assert {
        "var/log/parallelcluster/clustermgtd",
        "var/log/slurmctld.log",
        "var/log/cfn-init.log",
        "var/lib/pcluster-postboot/report.json",
        "commands/scontrol-nodes.txt",
        "commands/fleet-status.txt",
        "commands/supervisord-status.txt",
    } <= head
    assert "index.html" in planted.texts
    assert "clustermgtd" in planted.texts["nodes/head/commands/supervisord-status.txt"]


@pytest.mark.long
def test_check_mode_and_a_second_run_change_nothing_on_a_node(on: On, play: Play, tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    files = (
        "find /etc /opt /var/lib /root -xdev -newer /run/diagnosed -type f"
        " ! -path '*/ansible/*' ! -path '/opt/aws/*/logs/*'"
    )
    on(CPU).check_output("touch /run/diagnosed")
    told = ok(play("--limit", CPU, "--check", *variables(diagnose_archive=str(path)), name="diagnose"))
    assert f"would write {path}" in told.stdout
    assert not path.exists()
    ok(play("--limit", CPU, *variables(diagnose_archive=str(path)), name="diagnose"))
    changed = on(CPU).check_output(files).splitlines()
    assert [one for one in changed if "node_exporter" not in one and "slurm" not in one] == []


def test_bad_input_is_one_line_before_any_node_is_asked(play: Play) -> None:
    done = failed(play("--limit", CPU, *variables(diagnose_gone=["head node"]), name="diagnose"))
    assert "diagnose_gone: found head node; needed: names of compute nodes in Slurm" in said(done)
    assert "Gather" not in done.stdout


# Boots that fail. The spare stays up, as its custom actions are run by hand.


def broken(spare: Host, diagnose: Diagnose, *actions: dict[str, Any]) -> Page:
    assert act(spare, *actions).rc == 1
    return diagnose(SPARE)


@pytest.mark.long
def test_a_bundle_that_cannot_be_had_is_named(
    spare: Host, newer: Bundle, fault: Callable[[str], dict[str, Any]], diagnose: Diagnose
) -> None:
    settle(spare)
    page = broken(spare, diagnose, fault(serves("refuse")), newer.action())
    assert f"First look at: {SPARE}: the node may not read the bundle." in page.first()
    assert page.found["bundle-forbidden", SPARE]["file"] == LOG.lstrip("/")
    page = broken(spare, diagnose, fault(points("aws", "127.0.0.1")), newer.action(budget="60"))
    assert f"First look at: {SPARE}: the bundle could not be fetched." in page.first()


@pytest.mark.long
def test_a_wrong_pin_is_named(
    spare: Host, bundle: Bundle, newer: Bundle, s3: Any, fault: Callable[[str], dict[str, Any]], diagnose: Diagnose
) -> None:
    settle(spare)
    page = broken(spare, diagnose, newer.action(sha256="0" * 64))
    assert f"First look at: {SPARE}: the bundle is not the one that --sha256 pins." in page.first()
    # Of a component that fails no boot.
    wrong = republish(s3, bundle, "102.0.0", {"node_exporter_sha256": {"x86_64": "0" * 64}})
    spare.check_output("rm -f /var/lib/pcluster-postboot/receipts/node_exporter.json /usr/local/bin/node_exporter")
    assert act(spare, wrong.action(defer="no")).rc == 0
    page = diagnose(SPARE)
    assert f"{SPARE}: the pin of component node_exporter is wrong" in page.first()
    assert page.found["pin-node_exporter", SPARE]["level"] == "fault"
    assert act(spare, bundle.action(defer="no")).rc == 0


@pytest.mark.long
def test_an_essential_component_that_fails_is_named(spare: Host, bundle: Bundle, s3: Any, diagnose: Diagnose) -> None:
    settle(spare)
    other = republish(s3, bundle, "103.0.0", {"enroot_version": "0.0.1"})
    page = broken(spare, diagnose, other.action())
    assert f"First look at: {SPARE}: " in page.first()
    assert [kind for kind, _node in page.found if kind.endswith("-enroot")]
    assert report(spare)["stopped"]["component"] == "enroot"
    assert act(spare, bundle.action()).rc == 0


@pytest.mark.long
def test_a_boot_whose_time_runs_out_is_named(
    spare: Host, bundle: Bundle, fault: Callable[[str], dict[str, Any]], diagnose: Diagnose
) -> None:
    settle(spare)
    spare.check_output("apt-get purge -q -y docker-ce docker-ce-cli containerd.io")
    spare.check_output("rm -f /etc/apt/sources.list.d/docker.*")
    page = broken(spare, diagnose, fault(serves("slow", "mirror", 80)), bundle.action(budget="15"))
    assert f"First look at: {SPARE}: the node's time ran out in its boot." in page.first()
    assert "while docker was running" in page.found["boot-budget", SPARE]["line"]
    fault("true")
    assert act(spare, bundle.action()).rc == 0
    settle(spare, 300)


@pytest.mark.long
def test_a_killed_run_is_named(spare: Host, bundle: Bundle, diagnose: Diagnose) -> None:
    settle(spare)
    before = spare.check_output(f"grep -c 'site begins' {LOG}")
    spare.check_output(f"systemd-run --quiet --unit=killed-run {OPT}/current/bootstrap.sh --installed")
    until(lambda: spare.check_output(f"grep -c 'site begins' {LOG}") != before, 60, "site begins")
    time.sleep(2)
    spare.check_output("systemctl kill --signal=KILL killed-run")
    page = diagnose(SPARE)
    assert f"First look at: {SPARE}: the last run was killed" in page.first()
    assert act(spare, bundle.action()).rc == 0
    settle(spare)


@pytest.mark.long
def test_an_old_bundle_on_one_node_is_named(
    spare: Host, bundle: Bundle, s3: Any, play: Play, diagnose: Diagnose, on: On
) -> None:
    """The spare has one bundle, and the login node gets another one."""
    settle(spare)
    other = republish(s3, bundle, "104.0.0", {"pull_retries": 25})
    try:
        for name in ("login", CPU):
            where = {"fleet_bundle": f"s3://{s3.name}/bundles/{other.name}", "fleet_sha256": other.sha256}
            ok(play("--limit", name, *variables(**where), name="fleet", timeout=600))
        page = diagnose(f"{SPARE},login,{CPU}")
        assert f"{SPARE}: another bundle than on 2 other nodes: {bundle.name}" in page.first()
        assert f"{bundle.name} on {SPARE}; {other.name} on {CPU},login" in page.first()
    finally:
        for name in ("login", CPU):
            on(name).check_output(TAKE_AWAY)
        again = play("--limit", f"login,{CPU}", "--tags", "node_exporter,pull")
    ok(again)


@pytest.mark.long
def test_a_node_that_is_gone_is_known_by_its_instance(
    bundle: Bundle, newer: Bundle, on: On, diagnose: Diagnose
) -> None:
    """The play does not ask the node itself: its log streams, its console and the head node's logs tell of it."""
    assert bundle.name
    other = SPARE.replace("-1", "-2")  # the log streams of the spare have what other tests have done there
    with joined(other):
        settle(on(other))
        assert act(on(other), newer.action(sha256="0" * 64)).rc == 1
        gone = instance(other)
        time.sleep(8)  # the node's CloudWatch agent looks every two seconds
        page = diagnose("head", diagnose_gone=[gone])
    assert "the bundle is not the one that --sha256 pins" in page.first()
    names = {name.partition(f"nodes/{gone}/")[2] for name in page.texts}
    assert {"head/slurm_resume.log", f"{gone}/ec2.txt", f"{gone}/console.txt"} <= names
    assert [name for name in names if name.endswith(f".{gone}.bootstrap_error_msg")], names


# A fleet that launches no node any more


@pytest.mark.long
def test_protected_mode_is_named(diagnose: Diagnose) -> None:
    """A node is killed in its boot; clustermgtd gives up after one failed boot instead of ten, by its own option."""
    head, conf = host("head"), "/etc/parallelcluster/slurm_plugin/parallelcluster_clustermgtd.conf"
    status = "get-compute-fleet-status.sh | jq -r .status"
    head.check_output(f"echo 'protected_failure_count = 1' >> {conf}")
    former = instance(MAIN.node)
    try:
        MAIN.slurm(f"scontrol update nodename={MAIN.node} state=drain reason='a test of diagnose'")
        until(lambda: instance(MAIN.node) not in ("", former), 240, "a successor boots")
        kill = ["podman", "kill", f"postboot-{MAIN.node}"]
        until(lambda: subprocess.run(kill, capture_output=True, check=False).returncode == 0, 60, "its machine runs")
        until(lambda: head.check_output(status).strip() == "PROTECTED", 240, "protected mode")
        page = diagnose("head", diagnose_gone=[MAIN.node])
    finally:
        head.check_output(f"sed -i /^protected_failure_count/d {conf}")
        # pcluster update-compute-fleet --status START_REQUESTED
        table = boto3.resource("dynamodb", region_name="us-east-1").Table("parallelcluster-main")
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        table.put_item(Item={"Id": "COMPUTE_FLEET", "Data": {"status": "RUNNING", "lastStatusUpdatedTime": now}})
        MAIN.slurm(f"scontrol update partitionname={MAIN.queue} state=up")
        wait_until_replaced(MAIN, former)
        ok(playbook("--limit", MAIN.node))
    one = page.found["protected", "head"]
    assert one["what"] == f"the cluster is in protected mode: the boots of {MAIN.node} have failed"
    assert "Found the following bootstrap failure nodes" in one["line"]
    assert "First look at: head: the cluster is in protected mode" in page.first()
    assert "docs/runbooks/protected-mode.md" in page.first()
    gone = page.texts[f"nodes/{MAIN.node}/head/clustermgtd"]
    assert "bootstrap failure nodes" in gone

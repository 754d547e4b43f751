# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Readers of JSON that others write end with a value or a message of one line, whatever the JSON holds."""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.pcluster.postboot.plugins.module_utils import _container_images as images
from ansible_collections.pcluster.postboot.plugins.module_utils._aws import secret
from ansible_collections.pcluster.postboot.plugins.module_utils._boot import head
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import agent, keys
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import config as cloudwatch
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import judge
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import Evidence
from ansible_collections.pcluster.postboot.plugins.module_utils._docker import config as docker
from ansible_collections.pcluster.postboot.plugins.module_utils._docker import engine
from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._grafana import dashboards
from ansible_collections.pcluster.postboot.plugins.module_utils._grafana.api import Answer as GrafanaAnswer
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import report as host_report
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import (
    hyperpod,
    parallelcluster,
    platforms,
    software,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds, plan
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import plugin as pyxis
from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import release, root
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import health, health_dcgm, neuron, nodes
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.remote_script import Answer, Node
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import archive as diagnose_archive
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import fleet as diagnose_fleet
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import model
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import report as site_report
from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify.page import render
from ansible_collections.pcluster.postboot.roles.container_images.files.container_images import registry, state
from ansible_collections.pcluster.postboot.roles.container_images.files.container_images.errors import ImageError
from ansible_collections.pcluster.postboot.roles.container_images.files.container_images.names import parse as image_of
from ansible_collections.pcluster.postboot.roles.container_images.files.container_images.settings import Settings
from ansible_collections.pcluster.postboot.roles.fsx.files import check_compute_setup
from ansible_collections.pcluster.postboot.roles.node_exporter.files import aws_events
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider import records
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider import run as decider
from ansible_collections.pcluster.postboot.roles.prometheus.files import prometheus_targets
from ansible_collections.pcluster.postboot.tests.unit.fuzz.shapes import Reader, complaints, documents, odd_documents

FIXTURES = Path(__file__).parents[1] / "fixtures"
NOW = 1_795_400_000.0
CLOCK = records.Clock(NOW, 3600.0, "boot")

# --- what each reader reads well ---------------------------------------------------------------------------------

COMPONENT = {
    "name": "nccl",
    "status": "failed",
    "changed": 1,
    "changes": ["nccl_release"],
    "seconds": 1.5,
    "why": "no room",
    "task": "Build NCCL",
    "essential": True,
    "version": "2.28.3-1",
    "summary": "NCCL 2.28.3",
}
REPORT = {
    "run_id": "head:1:2",
    "host": "head",
    "cluster": "main",
    "node": "head",
    "node_type": "head",
    "kind": "head",
    "started": "2026-01-31T12:00:00Z",
    "finished": "2026-01-31T12:05:00Z",
    "seconds": 300.0,
    "phase": "all",
    "check_mode": False,
    "outcome": "stopped",
    "stopped": {"component": "nccl", "message": "nccl failed: no room"},
    "changed": 1,
    "components": [COMPONENT],
    "advisories": ["docker 28 has CVE-1, which 29 mends"],
    "versions": {"nccl": {"version": "2.28.3-1", "summary": "NCCL", "finished": "2026-01-31T12:00:00Z"}},
}
PLAN = {"run": True, "reason": "", "essential": True, "deferred": False, "started": NOW, "errors": []}
PROGRESS = {
    "started": NOW,
    "since": NOW,
    "component": "nccl",
    "ended": False,
    "report": {**REPORT, "components": []},
    "plans": {"docker": {**PLAN, "run": False, "reason": "not wanted"}, "nccl": PLAN, "enroot": PLAN},
}
LOCK = {
    "run_id": "head:1:2",
    "mode": "push",
    "controller": "desk",
    "user": "root",
    "pid": 1,
    "pid_started": "1",
    "machine": "head 1",
    "started": NOW,
    "turns": 1,
}
STATE = {
    "schema": 1,
    "node": "q-st-p5-1",
    "instance_id": "i-0123",
    "instance_type": "p5.48xlarge",
    "boot_id": "b",
    "time": NOW,
    "gpus": ["GPU-0"],
    "skipped": {"clock": "chronyc is not there"},
    "findings": [
        {"finding": "gpu_xid_79", "class": "replace", "subject": "GPU 0", "evidence": "NVRM: Xid 79", "since": NOW}
    ],
}
DRAIN = {
    "node": "q-st-p5-1",
    "instance": "i-0123",
    "address": "10.0.0.5",
    "finding": "gpu_xid_79",
    "class": "replace",
    "reason": "node_health: gpu_xid_79: GPU 0",
    "time": NOW,
    "done": True,
    "end": "",
    "ended": 0.0,
    "gpus": [],
    "skipped": [],
}
HISTORY = {
    "schema": 1,
    "drains": [DRAIN, {**DRAIN, "end": "back", "ended": NOW}],
    "totals": {"gpu_xid_79": 1},
    "stops": {"gpu_xid_79": {"time": NOW, "node": "q-st-p5-1", "instances": ["i-1", "i-2"]}},
    "holds": {"q-st-p5-2": {"time": NOW, "reason": "a look", "by": "root"}},
}
GROUP = {
    "Name": "gpu",
    "InstanceType": "ml.p5.48xlarge",
    "Instances": [{"InstanceId": "i-1", "CustomerIpAddress": "10.1.4.190"}],
}
RESOURCES = {
    "ClusterType": "Slurm",
    "ClusterConfig": {"ClusterName": "c", "ClusterArn": "arn:aws:sagemaker:us-east-1:123456789012:cluster/abc"},
    "SlurmConfig": {"PrimaryControllerIp": "10.1.4.190", "SecondaryControllerIps": []},
    "InstanceGroups": [GROUP],
}
PUBLISHED = {
    "groups": {"gpu": {"node_type": "Controller", "mounts": [{"path": "/fsx", "type": "lustre", "source": "a@tcp:/b"}]}}
}
PARAMETERS = {"controller_group": "gpu", "login_group": "login", "fsx_dns_name": "fs", "fsx_mountname": "m"}
DNA = {
    "cluster": {
        "node_type": "ComputeFleet",
        "cluster_name": "c",
        "region": "us-east-1",
        "head_node_private_ip": "10.0.0.1",
        "fsx_shared_dirs": "/fsx",
        "fsx_fs_ids": "fs-1",
        "fsx_dns_names": "",
        "fsx_mount_names": "m",
        "fsx_fs_types": "LUSTRE",
        "efs_shared_dirs": "/efs",
        "efs_fs_ids": "fs-2",
        "ebs_shared_dirs": "/ebs",
        "raid_shared_dir": "NONE",
        "ephemeral_dir": "/scratch",
        "head_node_imds_secured": "true",
        "scheduler_queue_name": "q",
    }
}
SPEC = {"region": "us-east-1", "instance_id": "i-1", "compute": {"instance-type": "p5.48xlarge", "name": "q-st-p5-1"}}
CFNCONFIG = "cfn_node_type=ComputeFleet\nstack_name=c\n"
AGENT = {
    "agent": {"metrics_collection_interval": 60, "run_as_user": "root"},
    "metrics": {
        "namespace": "CWAgent",
        "append_dimensions": {"InstanceId": "${aws:InstanceId}"},
        "aggregation_dimensions": [["InstanceId", "path"]],
        "metrics_collected": {
            "disk": {"measurement": ["used_percent"], "resources": ["*"]},
            "mem": {"measurement": [{"name": "used"}]},
            "procstat": [{"pattern": "slurmd", "measurement": ["cpu_usage"]}],
            "ethtool": {"metrics_include": ["bw_in_allowance_exceeded"]},
        },
    },
    "logs": {
        "logs_collected": {
            "files": {"collect_list": [{"file_path": "/var/log/messages", "log_group_name": "/aws/pc/c"}]}
        },
        "metrics_collected": {"prometheus": {"log_group_name": "g", "prometheus_config_path": "/p"}},
    },
}
NCCL_RUN = {
    "stage": "two_nodes",
    "partition": "gpu",
    "instance_type": "p5.48xlarge",
    "nodes": ["a", "b"],
    "ranks": 16,
    "collective": "all_reduce",
    "container": False,
    "log": "nccl.log",
    "nccl": "2.28.3",
    "version": "2.17",
    "rows": [
        {
            "size": size,
            "count": 1,
            "type": "float",
            "in_place": None,
            "out_of_place": {"time_us": 1.0, "algbw": 2.0, "busbw": 300.0, "wrong": 0},
        }
        for size in (2**30,)
    ],
    "expectation": {
        "points": [{"size": 2**30, "busbw": 400.0, "and_up": True, "source": "https://a.b/c"}],
        "limit": {"busbw": 480.0, "why": "the network", "source": "https://a.b/d"},
    },
    "judgement": {"status": "short", "message": "300 of 400"},
    "network": {"hosts": {"a": ["efa"]}, "provider": "efa", "nics": 32},
}
VERIFIED = {
    "ok": False,
    "verdict": "1 of 2 checks failed",
    "cluster": "east",
    "region": "us-east-1",
    "user": "ubuntu",
    "started": "2026-11-20T09:00:00Z",
    "finished": "2026-11-20T09:21:00Z",
    "versions": {"slurm": "25.05"},
    "checks": [
        {
            "stage": "fabric",
            "name": "EFA",
            "subject": "gpu",
            "status": "failed",
            "message": "31",
            "details": {"a": ["b"]},
        },
    ],
    "runs": [NCCL_RUN],
    "pairs": [{"nodes": ["a", "b"], "busbw": 300.0, "status": "ok", "size": 1024, "collective": "all_reduce"}],
    "findings": [
        {"node": "a", "finding": "gpu_diag", "class": "replace", "subject": "GPU 1", "evidence": "e", "source": "s"}
    ],
}
IMAGES = {
    "seen": {"settings": "x"},
    "problems": ["the list is empty"],
    "updated": NOW,
    "images": {"a:1": {"state": "failed", "why": "404", "time": NOW}, "b:1": {"state": "importing", "why": ""}},
}
MANIFEST = {
    "schemaVersion": 2,
    "layers": [{"digest": f"sha256:{'1' * 64}", "size": 10}],
}
RELEASE = {
    "schema": 1,
    "release": "2.28.3",
    "key": "cuda13-x86_64",
    "serial": 3,
    "builder": "head",
    "inputs": {"version": "2.28.3", "flags": ["-O2"]},
    "files": {"lib/a.so": {"size": 3, "mode": "0644"}},
}
FOUND = {"kind": "k", "level": "fault", "what": "w", "line": "l", "file": "f", "todo": "t", "page": "p"}
LISTED = {"files": [{"name": "a", "bytes": 3}], "left": ["b"], "redacted": {"token": 1}, "findings": [FOUND]}
DASHBOARD = {
    "meta": {"folderUid": "f", "provisioned": False},
    "dashboard": {"uid": "u", "title": "t", "panels": [{"id": 1}]},
}
SOURCE = {
    "name": "p",
    "uid": "u",
    "type": "prometheus",
    "url": "http://a",
    "jsonData": {"sigV4AuthType": "default"},
    "readOnly": False,
}
FLEET = {"q": {"p5": {"CapacityType": "capacity-block", "CapacityReservationId": "cr-1"}}}
ICE = {
    "datetime": "2026-11-22T00:00:00",
    "detail": {"ice-failures": 1, "error-details": {"e": {"nodes": [{"name": "q-st-a-1"}]}}},
}


def at(folder: Path, path: str, content: bytes | str | dict[str, Any]) -> Path:
    """Put a file in place below the folder."""
    file = folder / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content) if isinstance(content, dict) else content
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def on_hyperpod(path: str) -> Any:
    def read(folder: Path, content: bytes) -> object:
        at(folder, hyperpod.ROUTES, "|-- 10.1.4.190\n     /32 host LOCAL\n")
        for name, good in (
            (hyperpod.RESOURCES, RESOURCES),
            (hyperpod.GROUPS, PUBLISHED),
            (hyperpod.PARAMETERS[0], PARAMETERS),
        ):
            if not (path == hyperpod.PARAMETERS[0] and name == hyperpod.GROUPS):
                at(folder, name, content if name == path else good)
        if path == hyperpod.PARAMETERS[0]:
            (folder / hyperpod.GROUPS.lstrip("/")).unlink(missing_ok=True)
        return json.dumps(vars(platforms.identify(Tree(str(folder)), "ubuntu2404")))

    return read


def on_parallelcluster(path: str) -> Any:
    def read(folder: Path, content: bytes) -> object:
        at(folder, parallelcluster.CFNCONFIG, CFNCONFIG)
        at(folder, parallelcluster.DNA, content if path == parallelcluster.DNA else DNA)
        at(folder, parallelcluster.NODE_SPEC, content if path == parallelcluster.NODE_SPEC else SPEC)
        return json.dumps(vars(platforms.identify(Tree(str(folder)), "ubuntu2404")))

    return read


def receipt_of_node(folder: Path, content: bytes) -> object:
    at(folder, f"{software.RECEIPTS}/nccl.json", content)
    at(folder, "/usr/local/cuda/version.json", content)
    return json.dumps(software.read_components(Tree(str(folder)), None))


def daemon_json(folder: Path, content: bytes) -> object:
    path = str(at(folder, "daemon.json", content))
    there = docker.read(path)[1]
    found = docker.choose_root("auto", {}, there, path, None)
    wanted = {"features": {"cdi": True}, "runtimes": {"nvidia": {"args": []}}, "default-runtime": None}
    docker.require_local(found, None, {})
    return docker.text_of(docker.with_root(docker.merged(there, wanted), found)).encode()


def agents_files(folder: Path, content: bytes) -> object:
    at(folder, "etc/amazon-cloudwatch-agent.json", AGENT)
    at(folder, "etc/amazon-cloudwatch-agent.d/file_other.json", content)
    wanted = cloudwatch.Wanted(
        metrics=("host", "prometheus"),
        measurements={"disk": ["used_percent"], "net": [{"name": "err_in"}]},
        logs=("/a",),
        scrapes=(cloudwatch.Scrape("j", "t", ("m",)),),
    )
    others = cloudwatch.merged(agent.Agent(agent.Request(home=str(folder))).others())
    alone = cloudwatch.merged(dict(list(agent.Agent(agent.Request(home=str(folder))).others().items())[1:]))
    both = [cloudwatch.fit(wanted, config, "1.300068.0", "head", "other") for config in (others, alone)]
    return json.dumps([agent.summary(fitted, "present") for fitted in both])


def own_agent_config(_folder: Path, content: bytes) -> object:
    config = json.loads(content)
    return keys.problems(config, "cloudwatch_agent_config") if isinstance(config, dict) else None


def diagnosis(_folder: Path, content: bytes) -> object:
    found = health_dcgm.read(content.decode("utf-8", "replace"))
    return json.dumps([found._asdict(), [(one.class_, one.source, one.evidence) for one in found.worst]])


def neuron_ls(_folder: Path, content: bytes) -> object:
    return neuron._listed({"code": ["0"], "told": [content.decode("utf-8", "replace")]})


def nodes_own_checks(folder: Path, content: bytes) -> object:
    at(folder, f"{health.STATES}/q-st-p5-1.json", content)
    context: Any = SimpleNamespace(options=SimpleNamespace(slurm=str(folder)))
    some: Any = [SimpleNamespace(name="q-st-p5-1"), SimpleNamespace(name="q-st-p5-2")]
    return json.dumps([one.message for one in health._states(context, some)])


def last_run(_folder: Path, content: bytes) -> object:
    values = {"n": {"report": [content.decode("utf-8", "replace")]}}
    options = SimpleNamespace(
        versions={"": {"nccl_version": "2.29"}}, exporters=[{"unit": "u", "component": "nccl", "where": "all"}]
    )
    return json.dumps([check._asdict() for check in nodes._judge("q", values, {"n": "p5.48xlarge"}, options)])  # type: ignore[arg-type]


def packed_report(_folder: Path, content: bytes) -> object:
    line = f"{rollout.MARK} 1 - a b {base64.b64encode(gzip.compress(content, 1)).decode()}\nthe end\n"
    node = Node("i-1", "us-east-1", "n", "c", "compute", "q")  # type: ignore[call-arg]
    told = [rollout.judge(node, Answer(word, "", line), 3.0).report for word in ("success", "failed")]
    shown = [*site_report.table(told, 80), *site_report.notes(told), *site_report.summaries(told)]
    return "\n".join([*shown, site_report.last_line(told, 3.0), json.dumps(site_report.in_order(told))]).encode()


def verify_page(_folder: Path, content: bytes) -> object:
    told = json.loads(content)
    return render(told).encode() if isinstance(told, dict) else None


def finders(folder: Path, content: bytes) -> object:
    text = content.decode("utf-8", "replace")
    names = ("report.json", "progress.json", "lock", "fleet-status.json", "bootstrap_error_msg", "facts.json")
    evidence = Evidence("n", "head", dict.fromkeys(names, text), now=NOW, running=False)
    found = judge.judge(evidence)
    assert not [one for one in found if one.kind.startswith("finder-")], found
    return json.dumps(found)


def node_part(folder: Path, content: bytes) -> object:
    path, packed = folder / "part.tar.gz", io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for name in (diagnose_fleet.LISTED, diagnose_fleet.REPORT, diagnose_fleet.LOCK):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(packed.getvalue())
    node = model.Node("n", file=str(path))
    diagnose_archive.read(node)
    diagnose_fleet._versions([node])
    diagnose_fleet._killed_here(node)
    return json.dumps([group.finding.what for group in model.groups([node])])


def importers_state(folder: Path, content: bytes) -> object:
    at(folder, images.STATE, content)
    at(folder, "settings.json", "{}")
    outlook = images.look(str(folder), str(folder / "settings.json"))
    found = state.read_state(str(folder))
    return json.dumps([outlook.summary, outlook.complaint, state.is_settled(found), state.failures_of(found)])


def manifest(_folder: Path, content: bytes) -> object:
    asked = registry.Registry(Settings("/d"), {})
    asked._get = lambda *_words: content  # type: ignore[method-assign]
    return asked.manifest(image_of("a:1"))


def index(folder: Path, content: bytes) -> object:
    with contextlib.suppress(ImageError):  # the sample is of another architecture
        return manifest(folder, content)
    return None


def token(_folder: Path, content: bytes) -> object:
    asked = registry.Registry(Settings("/d"), {})
    asked._get = lambda *_words: content  # type: ignore[method-assign]
    return asked._authorization('Bearer realm="https://a.b/c"', "https://a.b")


def shared_release(folder: Path, content: bytes) -> object:
    at(folder, "2.28.3/manifest.json", content)
    at(folder, "2.28.3/lib/a.so", "abc")
    return json.dumps(
        [release.survey(str(folder), "2.28.3", {"version": "2.28.3"}, "NCCL"), release.all_in(str(folder), ["k"])]
    )


def manifest_of_pyxis(folder: Path, content: bytes) -> object:
    at(folder, "manifest.json", content)
    at(folder, "spank_pyxis.so", "")
    return pyxis.manifest_of(str(folder))


def own_notes(folder: Path, content: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "STATE_DIR", str(folder))
        for name in (devices.RECORD, "packages/a.json", "report.json"):
            at(folder, name, content)
        known = plan.noted(plan.Request("apt", ("a",)))
        return [devices.read_record(), plan.is_ours("1", known), host_report._versions({"components": []})]


def held_packages(folder: Path, content: bytes) -> object:
    at(folder, "holds.json", content)
    return holds.Holds(holds.AptHolds(), str(folder)).recorded()


def setup_check(folder: Path, content: bytes) -> object:
    at(folder, "state/report.json", content)
    at(folder, "run/progress.json", content)
    at(folder, "run/lock", content)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(check_compute_setup, "STATE", str(folder / "state"))
        patch.setattr(check_compute_setup, "RUN", str(folder / "run"))
        patch.setattr(check_compute_setup, "PCI", str(folder / "none"))
        patch.setattr(check_compute_setup, "ask", lambda *_line: (0, "said"))
        check_compute_setup.main("/fsx", "docker")
    return out.getvalue().encode(errors="backslashreplace")


def aws_said(name: str) -> Any:
    def read(folder: Path, content: bytes) -> object:
        text = content.decode("utf-8", "replace")
        at(folder, "fleet-config.json", content if name == "fleet" else json.dumps(FLEET))
        at(folder, "events", content.replace(b"\n", b" ") + b"\n")
        options = argparse.Namespace(
            fleet_config=str(folder / "fleet-config.json"),
            events=str(folder / "events"),
            region="r",
            timeout=1,
            cluster="c",
            aws="/bin/true",
            fleet_status="s",
            slurm="/s",
        )
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
            patch.setattr(aws_events, "run", lambda *_words: text)
            return aws_events.render(aws_events.look(aws_events.Cluster(options, NOW), {}))

    return read


def login_entry(folder: Path, content: bytes) -> object:
    import os

    at(folder, "login-1.json", content)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return prometheus_targets.read_entry(descriptor, "login-1.json", NOW, 1e12)
    finally:
        os.close(descriptor)


def targets(folder: Path, content: bytes) -> object:
    groups = prometheus_targets.read_groups(str(at(folder, "targets.json", content)))
    # What render() does with what was there.
    kept = [group for group in groups if group["labels"].get("pc_node_type") in ("login",)]
    with contextlib.redirect_stdout(io.StringIO()):
        prometheus_targets.update(str(folder / "out.json"), groups, kept)
    return None


def instances(folder: Path, content: bytes) -> object:
    return prometheus_targets.neuron_addresses(str(at(folder, "resource_config.json", content)))


def history(folder: Path, content: bytes) -> object:
    found = records.History(str(at(folder, "history.json", content)))
    found.open()
    found.save(NOW)
    return decider.metrics(found, [], [], {}, NOW)


def states_of_nodes(folder: Path, content: bytes) -> object:
    at(folder, "q-st-p5-1.json", content)
    return json.dumps(records.scan(str(folder), {}, CLOCK, 0.0)[0])


class Grafana:
    """A Grafana that gives the same answer to all questions."""

    url = "http://a"

    def __init__(self, content: bytes) -> None:
        try:
            self.said = document.parse(content)
        except ValueError as error:
            raise Problem("no JSON") from error

    def ask(self, *_words: object) -> GrafanaAnswer:
        return GrafanaAnswer(200, self.said)


def grafana(_folder: Path, content: bytes) -> object:
    source = dashboards.Source("p", "u", "http://a", "auto", "us-east-1", "", "60s", "auto")
    request = dashboards.Request(
        source=source, folder="F", folder_uid="f", dashboards=({"uid": "u", "title": "t"},), check=False
    )
    client: Any = Grafana(content)
    return [change._asdict() for change in dashboards.Importer(client, request).run()]


def docker_info(_folder: Path, content: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch:
        response = SimpleNamespace(status=200, read=lambda: content)
        patch.setattr(engine._Local, "request", lambda *_words: None)
        patch.setattr(engine._Local, "getresponse", lambda *_words: response)
        patch.setattr(engine, "_start_of", lambda _pid: 0.0)
        real = open
        names = {engine.PID_FILE: io.StringIO("1"), "/proc/1/comm": io.StringIO("dockerd")}
        patch.setattr(engine, "open", lambda path, **more: names.get(path) or real(path, **more), raising=False)
        now = engine.running()
    return [engine.may_restart("auto", now, True, "/a"), engine.may_replace("auto", now)]


def secret_of(_folder: Path, content: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret, "find_aws", lambda: "aws")
        patch.setattr(secret, "run", lambda *_words: SimpleNamespace(out=content.decode("utf-8", "replace"), code=0))
        return secret.from_aws("n", "token", "r", "dashboards_token_secret")


READERS = (
    Reader("resource_config.json", on_hyperpod(hyperpod.RESOURCES), RESOURCES),
    Reader("hyperpod.json", on_hyperpod(hyperpod.GROUPS), PUBLISHED),
    Reader("provisioning_parameters.json", on_hyperpod(hyperpod.PARAMETERS[0]), PARAMETERS),
    Reader("dna.json", on_parallelcluster(parallelcluster.DNA), DNA),
    Reader("slurm_node_spec.json", on_parallelcluster(parallelcluster.NODE_SPEC), SPEC),
    Reader("receipt in facts", receipt_of_node, {"version": "1", "cuda": {"version": "13.0"}}),
    Reader(
        "daemon.json",
        daemon_json,
        {"data-root": "/d", "features": {"cdi": True}, "runtimes": {"nvidia": {"path": "p"}}},
        (Problem,),
    ),
    Reader("CloudWatch agent's files", agents_files, AGENT, (Problem,)),
    Reader(
        "cloudwatch_agent_config", own_agent_config, AGENT, (ValueError, RecursionError)
    ),  # Ansible has read it before
    Reader("dcgmi diag", diagnosis, json.loads((FIXTURES / "dcgm/r2-failed.json").read_text())),
    Reader("neuron-ls", neuron_ls, [{"nc_count": 2, "logical_neuroncore_config": 1}]),
    Reader("node states in verify", nodes_own_checks, STATE),
    Reader("report in verify", last_run, REPORT),
    Reader("report in fleet", packed_report, REPORT),
    Reader("page of verify", verify_page, VERIFIED, (ValueError, RecursionError)),  # Ansible has read it before
    Reader("diagnose", finders, {**REPORT, **PROGRESS, "status": "PROTECTED", "detail": {"error": {"stderr": "a"}}}),
    Reader("a node's part of diagnose", node_part, {**LISTED, **REPORT, **LOCK}, (Problem,)),
    Reader("state of container_images", importers_state, IMAGES),
    Reader("manifest of a registry", manifest, MANIFEST, (ImageError,)),
    Reader(
        "index of a registry",
        index,
        {"manifests": [{"digest": "sha256:0", "platform": {"architecture": "m68k", "os": "linux"}}]},
    ),
    Reader("token of a registry", token, {"token": "t"}, (ValueError,)),
    Reader("manifest of a shared build", shared_release, RELEASE),
    Reader(
        "holder of a shared build",
        lambda _folder, content: root._holder(content),
        {"node": "n", "pid": 1, "token": "t", "since": "s"},
    ),
    Reader("manifest of Pyxis", manifest_of_pyxis, {"sha256": "0", "version": "1"}),
    Reader(
        "notes of packages and EFA",
        own_notes,
        {"version": "1", "done": True, "was": "", "options": ["-y"], "reboot": "", "versions": {}},
    ),
    Reader("holds.json", held_packages, {"held": ["a"], "original": ""}, (Problem,)),
    Reader("check-compute-setup", setup_check, {**REPORT, **LOCK}),
    Reader("clustermgtd's fleet configuration", aws_said("fleet"), FLEET),
    Reader(
        "AWS' answers in aws_events",
        aws_said("ec2"),
        {
            **ICE,
            "status": "PROTECTED",
            "CapacityReservations": [
                {"CapacityReservationId": "cr-1", "EndDate": "2026-11-22T00:00:00Z", "State": "active"}
            ],
            "InstanceStatuses": [
                {
                    "InstanceId": "i-1",
                    "Events": [{"Code": "c", "NotBefore": "2026-11-22T00:00:00Z", "Description": "d"}],
                }
            ],
            "Reservations": [
                {"Instances": [{"InstanceId": "i-1", "PrivateIpAddress": "10.0.0.1", "PrivateDnsName": "a.b"}]}
            ],
        },
    ),
    Reader(
        "registration of a login node",
        login_entry,
        {"name": "login-1", "address": "10.0.0.5", "time": NOW},
        (ValueError, OSError),
    ),
    Reader("Prometheus' targets", targets, [{"targets": ["a"], "labels": {"pc_node": "n", "pc_node_type": "login"}}]),
    Reader("resource_config.json in prometheus_targets", instances, RESOURCES, (prometheus_targets.TargetError,)),
    Reader("history of the decider", history, HISTORY, (ValueError, TypeError)),
    Reader(
        "cache of the decider",
        lambda folder, content: decider.remembered(str(at(folder, "c", content)), CLOCK),
        decider.Cache()._asdict(),
    ),
    Reader("states in the decider", states_of_nodes, STATE),
    Reader("Grafana's answers", grafana, {**DASHBOARD, **SOURCE, "version": "11.6.0"}, (Problem,)),
    Reader(
        "Docker's info",
        docker_info,
        {"ContainersRunning": 1, "ContainersPaused": 0, "LiveRestoreEnabled": True, "DockerRootDir": "/d"},
    ),
    Reader("secret of AWS", secret_of, {"SecretString": '{"token": "t"}'}, (Problem,)),
    Reader("boot error", lambda folder, content: boot_error(folder, content), {"message": "m"}),
    Reader("lock", lambda folder, content: lock_of(folder, content), LOCK),
)


def boot_error(folder: Path, content: bytes) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "_ROOT", str(folder))
        patch.setattr(head, "run", lambda *_words: SimpleNamespace(out=content.decode("utf-8", "replace")))
        at(folder, head.ERROR, content)
        return [head._boot_error(), head._fleet(1.0)]


def lock_of(folder: Path, content: bytes) -> object:
    at(folder, "lock", content)
    outcome = lock.Lock(str(folder)).look(60.0, lock.Holder("me"))
    return outcome.holder.sentence(outcome.age) if outcome.holder else ""


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_good_document_is_read(reader: Reader, tmp_path: Path) -> None:
    """The samples are what the readers read: else nothing below would be tested."""
    reader.read(tmp_path, json.dumps(reader.sample).encode())


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@given(data=st.data())
def test_any_document_is_read_or_refused(reader: Reader, tmp_path: Path, data: st.DataObject) -> None:
    reader.check(tmp_path, data.draw(documents(reader.sample)))


@pytest.mark.long
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_each_odd_value_in_each_place(reader: Reader, tmp_path: Path) -> None:
    assert not complaints(reader, tmp_path, odd_documents(reader.sample))

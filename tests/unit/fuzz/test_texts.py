# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Readers of text that programs and people write end with a value or a message of one line, whatever the text holds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.pcluster.postboot.plugins.module_utils import _enroot, _prometheus_load
from ansible_collections.pcluster.postboot.plugins.module_utils._boot import head, record
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import judge
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import Evidence
from ansible_collections.pcluster.postboot.plugins.module_utils._docker import config as docker
from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts, parallelcluster, storage
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds, openpgp, records, repository
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import load, plugstack
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import metrics, names
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import nodes as slurm_nodes
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster, nccl_results, neuron
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session_command
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import xml
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import advisories
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status import stages, words
from ansible_collections.pcluster.postboot.roles.container_images.files.container_images import names as image_names
from ansible_collections.pcluster.postboot.roles.container_images.files.container_images.errors import ImageError
from ansible_collections.pcluster.postboot.roles.node_exporter.files import aws_events
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import exporter, kernel_log
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import storage as health_storage
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health.look import Look
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health_decider import slurm as decider
from ansible_collections.pcluster.postboot.roles.prometheus.files import prometheus_targets
from ansible_collections.pcluster.postboot.tests.unit.fuzz.shapes import Reader, complaints, encoded, odd_texts, texts

FIXTURES = Path(__file__).parents[1] / "fixtures"
NOW = 1_795_400_000.0

NODES = (
    "NodeName=q-st-p5-1 Arch=x86_64 CPUTot=192 CPUEfctv=192 AvailableFeatures=static,p5.48xlarge,p5,efa,gpu "
    "Gres=gpu:h100:8(S:0-1),shard:8 NodeAddr=10.0.0.5 State=IDLE+CLOUD+DRAIN Partitions=q,other "
    "BootTime=2026-11-22T10:00:00 InstanceId=i-0123 Reason=(Code:Insufficient)Failure [root@2026-11-22T11:00:00]\n"
)
CONFIG = "SLURM_VERSION           = 25.11.5\nSlurmctldPort           = 6820-6829\nMetricsType = metrics/openmetrics\n"
PAGE = (
    "# HELP DCGM_FI_DEV_GPU_TEMP t\nslurm_jobs 3\n"
    'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",UUID="GPU-1",pci_bus_id="00000000:53:00.0",Hostname="n"} 1\n'
    'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-1",pci_bus_id="00000000:53:00.0",xid="79"} 2\n'
    'DCGM_EXP_GPU_HEALTH_STATUS{gpu="0",UUID="GPU-1",pci_bus_id="0",health_error_code="E",health_watch="NVLINK"} 10\n'
)
KMSG = "6,7,1,-;NVRM: Xid (PCI:0000:53:00): 154, pid=1, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)\n"
NVSWITCH = "3,8,2,-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate\n"
RECORD = (
    "node q-st-p5-1\ninstance i-1\nstage site\ncomponent nccl\nnumber 3\nof 9\nsince 1795399990\ndeadline 1795400100\n"
)
CLUSTERMGTD = (
    "2026-11-22 11:00:00,1 - [m:f] - WARNING - Partitions bootstrap failure count: {'q': {'a': 2}}, cluster has a "
    "threshold 10\n"
    "2026-11-22 11:00:01 x - INFO - Found the following bootstrap failure nodes: (x1) ['q-st-a-1(10.0.0.5)']\n"
    "2026-11-22 11:00:02 x - Placing bootstrap failure partitions to INACTIVE: ['q']\n"
)
CLUSTER_CONFIG = "DevSettings:\n  Timeouts:\n    HeadNodeBootstrapTimeout: 1800\n    ComputeNodeBootstrapTimeout: 900\n"
DPKG = (
    "Package: docker-ce\nStatus: install ok installed\nVersion: 5:29.1-1~ubuntu\n\n"
    "Package: a\nStatus: install ok half-installed\n\n"
)
DNF = "[main]\ngpgcheck=1\nexcludepkgs=kernel*,\n  lustre*\n[other]\na=b\n"
SOURCES = (
    "# a\nTypes: deb\nURIs: https://a.b/c\nSuites: noble\nEnabled: no\n\ndeb [signed-by=/k] https://a.b/c noble main\n"
)
PLUGSTACK = "# a\ninclude /opt/slurm/etc/plugstack.conf.d/*.conf\nrequired /a/spank_pyxis.so runtime_path=/run # b\n"
ENROOT = "ENROOT_RUNTIME_PATH /run/enroot/$(id -u)\nENROOT_DATA_PATH=/scratch/enroot\nNVIDIA_VISIBLE_DEVICES all\n"
MOUNTS = "10.0.0.1:/home /home nfs4 rw 0 0\n1@tcp:/m /fsx\\040a lustre rw,flock 0 0\n/dev/a / ext4 rw 0 0\n"
MOUNTINFO = "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root ro\n23 1 0:5 / /fsx\\040a rw - lustre 1@tcp:/m rw\n"
OS_RELEASE = 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\nID_LIKE=debian\n'
CFNCONFIG = "cfn_node_type=ComputeFleet\nexport a='b c'\narr=( x \"y z\" ) # w\n"
INSTANCES = (
    '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item><instancesSet>'
    "<item><instanceId>i-1</instanceId><instanceState><code>16</code><name>running</name></instanceState>"
    "<networkInterfaceSet><item/></networkInterfaceSet><tagSet><item><key>a</key><value>b</value></item></tagSet>"
    "</item></instancesSet></item></reservationSet><nextToken>t</nextToken></DescribeInstancesResponse>"
)
LOGS = (
    "Nov 22 10:00:00 n kernel: [ 1.5] NVRM: Xid (PCI:0000:53:00): 79, pid=1, GPU has fallen off the bus.\n"
    "2026-11-22 10:00:00,123 - [slurm_plugin] - ERROR - Encountered exception when launching instances for nodes (x1) "
    "['q-dy-a-1']: An error occurred (InsufficientInstanceCapacity) when\n"
    "2026-11-22T10:00:00Z pull: site begins: phase boot\n2026-11-22T10:00:01Z pull: failed: nccl failed: no room\n"
    "[2026-11-22T10:00:00.162] fatal: no such file\nGPU 0: NVIDIA H100\nGres=gpu:h100:8(S:0-1)\n"
    "Current compute fleet status: PROTECTED\n2026-11-22 10:00:00.123456+00:00\nLustreError: 1-1: rc = -5\n"
    "/dev/a 100G 99G 1G 99% /\n('q-st-a-1', EC2Instance(id='i-0123', private_ip='10.0.0.5', hostname='ip-10-0-0-5',\n"
)
NCCOM = "size(B) count(elems) type time:avg(us) algbw(GB/s) busbw(GB/s)\n1048576 262144 fp32 100.5 10.1 19.5\n"
FI_INFO = "provider: efa\n    fabric: efa\n    domain: rdmap16s27-rdm\n    domain: efa_0-rdm\n"
CREDENTIALS = "machine nvcr.io login $oauthtoken password a$b\n# b\n"
AWS_CREDENTIALS = "[default]\naws_access_key_id = A\naws_secret_access_key = %(b\nregion=r\n"
SQUEUE = "q,other|Resources\n"
PROM = 'pcluster_protected_mode{queue="q"} 1\npcluster_capacity{a="b"} 1e9\n'
NCCL = "\n".join((FIXTURES / "nccl/2.17-timestamps.txt").read_text().splitlines()[:40]) + "\n"
ANSWER = f"{rollout.MARK} 1 - a b -\nthe end\npcluster-postboot: done\n"
SESSION = "Starting session\npcluster-postboot-command 1 ended 0 H4sIAAAAAAACA0tMBgBH1AnGAwAAAA== .\nExiting\n"
SYSTEMCTL = (
    "ExecStart={ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// $A ${B} ; ignore_errors=no }\n"
    "Environment=A='x y' B=1\nEnvironmentFiles=/nowhere/docker (ignore_errors=yes)\n"
)


def text(read: Any) -> Any:
    """Return a reader of text, as what comes of a program is decoded."""
    return lambda _folder, content: read(content.decode("utf-8", "replace"))


def on_disk(read: Any, name: str = "file") -> Any:
    def reader(folder: Path, content: bytes) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return read(str(path))

    return reader


def scontrol_nodes(shown: str) -> object:
    _prometheus_load.parse(shown)
    cluster.parse_nodes(shown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus_targets, "say", lambda *_line: None)
        try:
            prometheus_targets.parse_nodes(shown)
        except prometheus_targets.TargetError:
            pass
    events = aws_events.Cluster.__new__(aws_events.Cluster)
    events._slurm = {"nodes": shown, "partitions": shown}
    events.refused = set  # type: ignore[method-assign]
    events.insufficient_capacity()
    return json.dumps(head.states(shown))


def boot_records(content: str) -> object:
    told = record.parse(content)
    answer = {**RECORDS, "records": [told]}
    instance = {
        "instance_id": "i-1",
        "node_type": "compute",
        "state": "running",
        "launch_time": "2026-11-22T10:00:00+00:00",
    }
    seen = stages.judge("main", [instance], answer, "", NOW, {}, 1.0)
    words.News().of(seen)
    assert record.parse(record.text(told)) == record.parse(record.text(record.parse(record.text(told))))
    return json.dumps([words.table(seen), words.as_json(seen), words.complaint(seen, 1.0)])


RECORDS = {
    "booted": True,
    "boot_error": "",
    "timeouts": {},
    "fleet": "RUNNING",
    "inactive": [],
    "failures": {},
    "off": 0,
    "failures_most": 0,
    "heartbeat": 10.0,
    "problems": [],
    "nodes": [
        {"name": "q-st-p5-1", "state": ["DOWN", "CLOUD"], "instance": "i-1"},
        {"name": "q-dy-p5-1", "state": ["IDLE", "POWERED_DOWN"]},
    ],
}


def hostlists(content: str) -> object:
    some = content.splitlines()
    assert names.ranges(some) == names.ranges(sorted(some, key=names.natural))
    return names.shown(some)


def logs(content: str) -> object:
    stems = (
        "syslog",
        "clustermgtd",
        "slurm_resume.log",
        "slurmctld.log",
        "pull.log",
        "nvidia-smi-list.txt",
        "df.txt",
        "kernel.txt",
        "scontrol-node.txt",
        "clustermgtd_heartbeat",
        "mounts.txt",
        "efa.txt",
        "systemctl-failed.txt",
        "chronyc.txt",
        "journal.txt",
    )
    found = judge.judge(Evidence("n", "head", dict.fromkeys(stems, content), now=NOW, running=False))
    assert not [one for one in found if one.kind.startswith("finder-")], found
    return json.dumps(found)


def kernel(path: str) -> object:
    wanted: dict[str, Any] = {
        "xids": {"79": "replace"},
        "xids_none": [],
        "sxids_none": [],
        "ignored": [],
        "classes": {},
    }
    look = Look(wanted, {}, str(Path(path).parent))
    kernel_log.check(look, path)
    return look.result()


def apt_sources(folder: Path, content: bytes) -> object:
    for name in ("a.list", "b.sources"):
        (folder / "etc/apt/sources.list.d").mkdir(parents=True, exist_ok=True)
        (folder / f"etc/apt/sources.list.d/{name}").write_bytes(content)
    (folder / "etc/yum.repos.d").mkdir(parents=True, exist_ok=True)
    (folder / "etc/yum.repos.d/b.repo").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository, "ROOT", str(folder))
        request = repository.Request("a", "apt", url="https://a.b/c")
        dnf = repository.Request("a", "dnf", url="https://a.b/c")
        urls = {"https://a.b/c"}
        return [
            repository._provided_by(request, "https://a.b/c"),
            *repository._conflicts(request, urls),
            *repository._conflicts(dnf, urls),
        ]


def dnf_conf(path: str) -> object:
    """What is held is released, and the file is as it was before."""
    before = Path(path).read_bytes()
    manager = holds.DnfHolds(path)
    original = manager.original()
    manager.hold(["postboot-test"])
    held = manager._excluded()
    manager.release(["postboot-test"], original)
    assert "postboot-test" in held
    assert "postboot-test" not in manager._excluded()
    return before


def plugstack_files(folder: Path, content: bytes) -> object:
    (folder / "etc/plugstack.conf.d").mkdir(parents=True, exist_ok=True)
    (folder / "etc/plugstack.conf").write_bytes(content)
    (folder / "etc/plugstack.conf.d/a.conf").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "refusal_of_lines", lambda *_words: "")
        patch.setattr(load, "refusal", lambda *_words: "")
        request = plugstack.Request(str(folder), "/p/spank_pyxis.so", version="0.20")
        wanted = plugstack._wanted(request)[0]
        plugstack.prunable(str(folder), "/p/spank_pyxis.so")
        diff = [plugstack._difference(path, text) for path, text in wanted.items()]
        return [
            plugstack._judge_strays(request),
            diff,
            *(text.encode("utf-8", "surrogateescape") for text in wanted.values()),
        ]


def enroot_conf(content: str) -> object:
    request = _enroot.Request(config=content)
    _enroot._refuse_unknown_keys(request)
    return _enroot._refuse_shared(request)


def enroot_sysctl(folder: Path, content: bytes) -> object:
    (folder / _enroot.SYSCTL).parent.mkdir(parents=True, exist_ok=True)
    (folder / _enroot.SYSCTL).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_enroot, "ETC", str(folder))
        return _enroot.kernel_settings({"user.max_user_namespaces": 1})


def docker_unit(content: str) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docker, "run", lambda *_words, **_more: SimpleNamespace(out=content))
        return docker.unit_flags()


def docker_environment(path: str) -> object:
    return docker._environment(path)


def instances(_folder: Path, content: bytes) -> object:
    response, found = {"status_code": 200, "body": content}, dict[str, Any]()
    xml.handle(response, found)
    try:
        return xml.read_instances(content)
    except xml.Unfamiliar:
        assert response["body"] == content
        return None


def components(content: str) -> object:
    versions = dict(zip(("docker", "nccl", "grafana", "enroot", "slurm_exporter", "dcgm_exporter"), [content] * 6))
    return advisories.told({"components": versions, "gpus": {"driver": content}})


def nccl(content: str) -> object:
    return [(nccl_results.why(result), result.rows) for result in nccl_results.parse(content.splitlines())]


def fleet_answer(content: str) -> object:
    return [rollout.read(content), rollout.enough(content)]


READERS = (
    Reader("scontrol show nodes", text(scontrol_nodes), NODES),
    Reader("scontrol show nodes in the decider", text(decider.parse_nodes), NODES),
    Reader(
        "gres",
        text(lambda shown: [slurm_nodes.gpus_of(shown), prometheus_targets.gpus_of(shown)]),
        "gpu:h100:8(S:0-1),shard:8",
    ),
    Reader(
        "scontrol show config",
        text(
            lambda shown: [
                metrics.parse_config(shown),
                metrics._port_of(metrics.parse_config(shown)),
                metrics.version_of(shown),
            ]
        ),
        CONFIG,
    ),
    Reader("names of nodes", text(hostlists), "q-st-p5-1\nq-st-p5-02\nlogin-1\nhead\n"),
    Reader("boot records", text(boot_records), RECORD),
    Reader("clustermgtd's counts", text(lambda shown: head.counts(shown, NOW)), CLUSTERMGTD),
    Reader("cluster configuration", text(head.timeouts), CLUSTER_CONFIG),
    Reader("logs in diagnose", text(logs), LOGS + CLUSTERMGTD),
    Reader("metrics of DCGM", text(lambda page: [vars(gpu) for gpu in exporter.parse(page).values()]), PAGE),
    Reader("kernel's log", on_disk(kernel), KMSG + NVSWITCH),
    Reader("mountinfo", text(health_storage.mounts), MOUNTINFO),
    Reader("mounts", text(storage.parse_mounts), MOUNTS),
    Reader("os-release", text(facts.parse_os_release), OS_RELEASE),
    Reader("cfnconfig", text(parallelcluster.parse_cfnconfig), CFNCONFIG),
    Reader("dpkg's status", lambda _folder, content: records.dpkg_packages([content], ["docker-ce", "a"]), DPKG),
    Reader(
        "rpm's answer",
        text(lambda shown: records.rpm_packages(shown, ["docker"])),
        "docker\t29.1\na is not installed\n",
    ),
    Reader("dnf.conf", on_disk(dnf_conf), DNF, (Problem,)),
    Reader("repository files", apt_sources, SOURCES),
    Reader(
        "OpenPGP keys",
        lambda _folder, content: openpgp.fingerprints(content),
        (FIXTURES / "keys/one.asc").read_text(),
        (openpgp.BadKey,),
    ),
    Reader("plugstack", plugstack_files, PLUGSTACK, (Problem,)),
    Reader("enroot.conf", text(enroot_conf), ENROOT, (Problem,)),
    Reader("sysctl of Enroot", enroot_sysctl, "user.max_user_namespaces = 1\n"),
    Reader("docker.service", text(docker_unit), SYSTEMCTL),
    Reader("environment of docker.service", on_disk(docker_environment), 'OPTIONS="--a b"\n# c\n'),
    Reader("EC2's answer", instances, INSTANCES),
    Reader("versions and advisories", text(components), "28.0.1"),
    Reader("nccl-tests", text(nccl), NCCL),
    Reader("nccom-test", text(lambda shown: neuron.table(shown.splitlines())), NCCOM),
    Reader("fi_info", text(devices.domains), FI_INFO),
    Reader("answer of Run Command", text(fleet_answer), ANSWER),
    Reader("output of a session", text(session_command.read), SESSION),
    Reader(
        "name of an image",
        text(lambda name: str(image_names.parse(name))),
        "nvcr.io#nvidia/pytorch:25.01-py3",
        (ImageError,),
    ),
    Reader("metrics of aws_events", on_disk(aws_events.before), PROM),
    Reader(
        "what jobs say",
        text(lambda shown: [cluster.values_of(shown), cluster.telling(shown)]),
        f"{cluster.MARK}|n|k|v\nsrun: error: a\n",
    ),
)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_good_text_is_read(reader: Reader, tmp_path: Path) -> None:
    """The samples are what the readers read: else nothing below would be tested."""
    reader.read(tmp_path, encoded(reader.sample))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@given(data=st.data())
def test_any_text_is_read_or_refused(reader: Reader, tmp_path: Path, data: st.DataObject) -> None:
    reader.check(tmp_path, data.draw(texts(reader.sample)))


@pytest.mark.long
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_each_odd_word_in_each_place(reader: Reader, tmp_path: Path) -> None:
    assert not complaints(reader, tmp_path, odd_texts(reader.sample))

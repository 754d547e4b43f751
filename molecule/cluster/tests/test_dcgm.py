# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""DCGM and its exporter: every GPU is seen, a job's GPUs carry its id, and no node is lost for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from testinfra.host import Host

from .helpers import Command, Killed, Nodes, On, Play, exposure, failure, ok, process, said, until, variables

NODE = "gpu-st-p5-1"
ONLY = ("--tags", "dcgm,dcgm_exporter", "--limit", NODE)
PACKAGES = [f"datacenter-gpu-manager-4-{part}" for part in ("core", "cuda13", "proprietary", "proprietary-cuda13")]
EXPORTER = "datacenter-gpu-manager-exporter"
RECORD = f"/var/lib/pcluster-postboot/packages/{PACKAGES[0]}.json"
REPOSITORIES = "http://mirror/developer.download.nvidia.com/compute/cuda/repos"
JOBS = "/run/dcgm-exporter/jobs"
# A container image that tells how it was called, and serves what does not change.
IMAGE = """mkdir image && cd image && curl -sf http://mirror/sandbox/busybox.tar | tar x
mkdir www && echo OK > www/health
for gpu in 0 1 2 3 4 5 6 7; do echo "DCGM_FI_DEV_GPU_TEMP{gpu=\\"$gpu\\"} 30" >> www/metrics; done
printf '%s\\n' '#!/bin/sh' 'echo "called with $*"; busybox id -u; ls /run/dcgm-exporter/jobs' \\
  'exec busybox httpd -f -p 9400 -h /www' > entry.sh
chmod 0755 entry.sh
tar c . | docker import --change 'ENTRYPOINT ["/entry.sh"]' - exporter:1
cd .. && rm -r image"""
SMI = Path(__file__).resolve().parent.parent / "templates/nvidia-smi"


def scrape(host: Host, node: str = NODE) -> str:
    """What Prometheus gets, from where it runs."""
    return str(host.check_output(f"curl -sf http://{node}:9400/metrics"))


def jobs_of(text: str) -> dict[str, set[str]]:
    """The jobs of each GPU, which all of its series must carry."""
    series = re.findall(r'^DCGM_\w+\{gpu="(\d+)"(?:.*?hpc_job="(\d+)")?.*\} ', text, re.MULTILINE)
    assert series
    return {gpu: {job for other, job in series if other == gpu} for gpu, _job in series}


def installed(host: Host) -> dict[str, str]:
    shown = "${db:Status-Status} ${Package} ${Version}\\n"
    lines = host.check_output(f"dpkg-query -W -f '{shown}' 'datacenter-gpu-*' | grep '^installed '").splitlines()
    return {line.split()[1]: line.split()[2] for line in lines}


def test_dcgm_sees_every_gpu(gpu: Host, nodes: Nodes) -> None:
    assert f"{nodes[NODE]['gpus']} GPUs found" in gpu.check_output("dcgmi discovery -l")
    service = gpu.service("nvidia-dcgm")
    assert service.is_running
    assert service.is_enabled
    assert installed(gpu) == {**dict.fromkeys(PACKAGES, "1:4.6.0-1"), EXPORTER: "4.8.2-1"}


def test_nothing_else_can_come_from_nvidias_repository(gpu: Host) -> None:
    """Drivers are in it too, and an upgrade would take them."""
    assert gpu.run("grep -r compute/cuda /etc/apt/sources.list.d /etc/apt/sources.list").stdout == ""


def test_only_the_metrics_are_reached_from_outside(gpu: Host, on: On) -> None:
    listening = gpu.check_output("ss -Hltn").splitlines()
    assert [line.split()[3] for line in listening if ":5555" in line] == ["127.0.0.1:5555"]
    assert on("head").run(f"curl -sf http://{NODE}:9400/health").rc == 0


def test_the_exporter_may_do_little(gpu: Host) -> None:
    pid = process(gpu, "nvidia-dcgm-exporter")
    assert gpu.check_output(f"stat --format=%U /proc/{pid}") == "dcgm-exporter"
    assert set(gpu.check_output(f"grep Cap /proc/{pid}/status").split()[1::2]) == {"0000000000000000"}
    assert exposure(gpu, "nvidia-dcgm-exporter") <= 1.9


def test_every_gpu_has_every_metric(gpu: Host, on: On, nodes: Nodes) -> None:
    text = scrape(on("head"))
    rows = gpu.file("/etc/dcgm-exporter/pcluster-postboot.csv").content_string.splitlines()
    counters = {row.split(",")[0]: row.split(",")[1] for row in rows if not row.startswith("#")}
    assert len(counters) > 30
    gpus = sorted(map(str, range(nodes[NODE]["gpus"])))
    for name, kind in counters.items():
        found = re.findall(rf'^{name}{{gpu="(\d+)".*modelName="NVIDIA H100 80GB HBM3"', text, re.MULTILINE)
        # An H100 has NVLink 4, which counts none of what NVLink 5 does.
        assert sorted(found) == ([] if kind == "label" or "_NVLINK_COUNT_" in name else gpus), name
    assert text.count('DCGM_FI_DRIVER_VERSION="595.112.07"') == sum(
        " " in row for row in text.splitlines() if "{" in row
    )
    # Prometheus reads it; 3 is what promtool says of names that it finds ugly.
    checked = on("head").run(f"curl -sf http://{NODE}:9400/metrics | /usr/local/bin/promtool check metrics")
    assert checked.rc in (0, 3), checked.stderr


def test_a_job_is_on_its_gpus_and_on_no_other(gpu: Host, on: On) -> None:
    head = on("head")
    before = gpu.check_output("ls -A /tmp")
    submit = f"cd /home/alice && sbatch --parsable --partition gpu -w {NODE} --output /home/alice/job.out"
    assert all(ids == {""} for ids in jobs_of(scrape(head)).values())
    plain = head.check_output(f"su - alice -c '{submit} --wrap \"sleep 600\"'")
    job = head.check_output(f"su - alice -c '{submit} --gpus=3 --wrap \"sleep 600\"'")
    try:
        until(lambda: head.check_output(f"/opt/slurm/bin/squeue -h -j {job} -o %T") == "RUNNING", 30, "the job runs")
        until(lambda: {job} in jobs_of(scrape(head)).values(), 30, "the job is on a GPU")
        shown = head.check_output(f"/opt/slurm/bin/scontrol --details show job {job}")
        first, last = re.search(r"GRES=gpu:h100:3\(IDX:(\d+)-(\d+)\)", shown).groups()
        own = {str(index) for index in range(int(first), int(last) + 1)}
        assert len(own) == 3
        assert jobs_of(scrape(head)) == {str(i): {job} if str(i) in own else {""} for i in range(8)}
    finally:
        head.check_output(f"/opt/slurm/bin/scancel {job} {plain}")
    until(lambda: not any(job in ids for ids in jobs_of(scrape(head)).values()), 30, "the job is gone")
    until(
        lambda: head.check_output(f"/opt/slurm/bin/sinfo -h -n {NODE} -p gpu -o %T") == "idle",
        30,
        "the node is idle, and not drained",
    )
    assert gpu.check_output("ls -A /tmp") == before


def test_what_notes_jobs_is_written_by_the_head_alone(on: On) -> None:
    for part, others in (("prolog", ["90_pcluster_noop"]), ("epilog", ["60_node_health", "90_pcluster_noop"])):
        folder = on("head").check_output(f"ls -A /opt/slurm/etc/scripts/{part}.d").split()
        assert folder == ["50_dcgm_jobs", *others]
        file = on(NODE).file(f"/opt/slurm/etc/scripts/{part}.d/50_dcgm_jobs")
        assert (file.user, file.mode) == ("root", 0o755)


def test_the_folder_of_jobs_comes_back_after_a_boot(gpu: Host) -> None:
    gpu.check_output("rm -r /run/dcgm-exporter; systemd-tmpfiles --create /etc/tmpfiles.d/nvidia-dcgm-exporter.conf")
    assert gpu.file(JOBS).mode == 0o755


@pytest.fixture
def amis_own(gpu: Host) -> Iterator[None]:
    """A node with A100 GPUs and the two packages of DCGM that ParallelCluster's recipes install."""
    smi = "/usr/bin/nvidia-smi"
    gpu.check_output(
        f"cp -p {smi} /root/smi && sed -i 's/H100 80GB HBM3/A100-SXM4-80GB/; s/echo 9.0/echo 8.0/' {smi} "
        f"&& dpkg --remove {PACKAGES[3]} {PACKAGES[2]} && mv {RECORD} {RECORD}.away && systemctl restart nvidia-dcgm"
    )
    yield
    gpu.check_output(f"mv /root/smi {smi}; [ -e {RECORD} ] || mv {RECORD}.away {RECORD}; rm -f {RECORD}.away")
    gpu.check_output("systemctl restart nvidia-dcgm")
    # The exporter finds out when it is asked, and starts anew.
    until(lambda: gpu.run("curl -sf http://localhost:9400/metrics").succeeded, 30, "the exporter")


@pytest.mark.long
@pytest.mark.usefixtures("amis_own")
def test_the_amis_own_dcgm_stays_and_gets_the_module_without_which_older_gpus_are_not_profiled(
    gpu: Host, play: Play
) -> None:
    done = play(*ONLY)
    assert "DCGM 4.6.0, the node had it; 8 GPUs" in done.stdout
    assert "8 GPUs with 33 of 37 metrics" in done.stdout
    assert installed(gpu) == {**dict.fromkeys(PACKAGES, "1:4.6.0-1"), EXPORTER: "4.8.2-1"}


@pytest.mark.long
@pytest.mark.usefixtures("as_before", "amis_own")
def test_a_module_that_cannot_be_had_costs_profiling_alone(gpu: Host, play: Play) -> None:
    gpu.check_output("systemctl stop nvidia-dcgm")
    done = play(*ONLY, "-e", "dcgm_base_url=http://none.example")
    assert f"failed on {NODE}: dcgm: Add NVIDIA's repository: key_url: http://mirror/none.example/" in said(done)
    assert gpu.service("nvidia-dcgm").is_running
    assert "8 GPUs with 24 of 37 metrics, none of them of profiling (DCGM_FI_PROF_*)" in said(done)


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_an_exporter_with_a_known_flaw_is_replaced_and_told_where_it_is_asked_for(gpu: Host, play: Play) -> None:
    asked = play(*ONLY, "-e", "dcgm_exporter_version=4.8.1")
    assert "8 GPUs with 33 of 37 metrics; /debug/pprof/ answers everybody who reaches the exporter" in said(asked)
    assert installed(gpu)[EXPORTER] == "4.8.1-1"
    assert "pprof" not in said(play(*ONLY))
    assert installed(gpu)[EXPORTER] == "4.8.2-1"


@pytest.mark.long
def test_an_exporter_that_cannot_be_had_costs_no_node(play: Play) -> None:
    done = ok(play(*ONLY, "-e", "dcgm_exporter_version=4.99"))
    line = failure(done, NODE, "dcgm_exporter")
    assert f"apt-get could not install {EXPORTER}=4.99.*" in line


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_a_failing_exporter_is_reported_and_the_node_stays(gpu: Host, on: On, play: Play) -> None:
    wrong = [{"name": "DCGM_FI_DEV_NO_SUCH_FIELD", "type": "gauge", "help": "None"}]
    done = ok(play(*ONLY, *variables(dcgm_exporter_extra_counters=wrong)))
    line = failure(done, NODE, "dcgm_exporter")
    assert "dcgm_exporter: Run the exporter: nvidia-dcgm-exporter.service" in line
    assert "unknown ExporterCounter field 'DCGM_FI_DEV_NO_SUCH_FIELD'" in gpu.check_output(
        "journalctl --unit nvidia-dcgm-exporter --lines 20"
    )
    assert on("head").check_output(f"/opt/slurm/bin/sinfo -h -n {NODE} -p gpu -o %T") == "idle"


def test_the_exporter_is_back_after_the_host_engine(gpu: Host) -> None:
    gpu.check_output("systemctl restart nvidia-dcgm")
    gpu.run("curl -s http://localhost:9400/metrics")  # it finds out when it is asked
    until(lambda: gpu.run("curl -sf http://localhost:9400/metrics").rc == 0, 30, "the exporter answers again")


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_dcgm_3_makes_way(gpu: Host, play: Play) -> None:
    legacy = f"{REPOSITORIES}/ubuntu2404/$(uname -m)/datacenter-gpu-manager_3.3.6-1_$(dpkg --print-architecture).deb"
    gpu.check_output(
        f"apt-get remove -y {PACKAGES[0]} && rm -f {RECORD} && cd /root && curl -sfo old.deb {legacy} "
        "&& dpkg -i old.deb && rm old.deb && systemctl daemon-reload && systemctl start nvidia-dcgm"
    )
    assert set(installed(gpu)) == {"datacenter-gpu-manager"}
    checked = play("--check", *ONLY)
    assert "DCGM 4.6.0" in checked.stdout
    assert set(installed(gpu)) == {"datacenter-gpu-manager"}
    done = play(*ONLY)
    assert "0 failed" in done.stdout, done.stdout[-3000:]
    assert "8 GPUs" in done.stdout
    assert installed(gpu) == {**dict.fromkeys(PACKAGES, "1:4.6.0-1"), EXPORTER: "4.8.2-1"}


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_a_killed_installation_is_finished(gpu: Host, play: Play, command: Command, killed: Killed) -> None:
    gpu.check_output(f"apt-get remove -y {PACKAGES[0]} && rm -f {RECORD}")
    killed(command("ansible-playbook", "pcluster.postboot.site", *ONLY), 3, 12)
    assert "0 failed" in play(*ONLY).stdout
    assert installed(gpu) == {**dict.fromkeys(PACKAGES, "1:4.6.0-1"), EXPORTER: "4.8.2-1"}
    test_nothing_else_can_come_from_nvidias_repository(gpu)


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_in_a_container(gpu: Host, play: Play) -> None:
    gpu.check_output(f"cd /root && cat > image.sh << 'END'\n{IMAGE}\nEND\nsh -eu image.sh && rm image.sh")
    try:
        done = play(*ONLY, "-e", "dcgm_exporter_method=container", "-e", "dcgm_exporter_image=exporter:1")
        assert "0 failed" in done.stdout, done.stdout[-3000:]
        assert "8 GPUs with 1 of 37 metrics" in done.stdout
        logs = gpu.check_output("docker logs nvidia-dcgm-exporter 2>&1")
        assert "--remote-hostengine-info=localhost:5555 --no-hostname" in logs
        assert "65534" in logs.split()
        shown = json.loads(gpu.check_output("docker inspect nvidia-dcgm-exporter"))[0]["HostConfig"]
        assert (shown["NetworkMode"], shown["CapDrop"], shown["ReadonlyRootfs"]) == ("host", ["ALL"], True)
        assert (shown["DeviceRequests"], shown["Privileged"]) == (None, False)
        again = play(*ONLY, "-e", "dcgm_exporter_method=container", "-e", "dcgm_exporter_image=exporter:1")
        assert "1 node, 0 changed, 0 failed" in again.stdout
    finally:
        gpu.run("systemctl stop nvidia-dcgm-exporter; docker rmi --force exporter:1")


@pytest.mark.long
def test_amazon_linux(on: On, play: Play) -> None:
    """On a node that has DCGM 3, and one GPU for as long as this takes."""
    name = "el-cpu-st-c5-1"
    legacy = f"{REPOSITORIES}/amzn2023/$(uname -m)/datacenter-gpu-manager-3.3.6-1.$(uname -m).rpm"
    node, facts = on(name), {"common_node_overrides": {"gpus": {"count": 1, "driver": "570.172.08"}}}
    arguments = ("--limit", name, "--tags", "dcgm,dcgm_exporter", *variables(**facts))
    node.check_output(
        f"rpm -i {legacy} && systemctl daemon-reload && systemctl start nvidia-dcgm "
        "&& mknod -m 666 /dev/nvidiactl c 1 3 && mknod -m 666 /dev/nvidia0 c 1 3"
    )
    try:
        node.check_output(f"cat > /usr/bin/nvidia-smi << 'END'\n{SMI.read_text()}\nEND\nchmod 755 /usr/bin/nvidia-smi")
        done = play(*arguments)
        assert "0 failed" in done.stdout, done.stdout[-3000:]
        assert "DCGM 4.6.0; 1 GPU\n" in done.stdout
        assert "1 GPU with 33 of 37 metrics" in done.stdout
        found = node.check_output("rpm -qa --qf '%{NAME}-%{VERSION}\\n' 'datacenter-gpu-manager*' | sort").split()
        wanted = [package.replace("13", "12") + "-4.6.0" for package in PACKAGES]
        assert found == sorted([*wanted, f"{EXPORTER}-4.8.2"])
        assert node.run("grep -r compute/cuda /etc/yum.repos.d").stdout == ""
        assert "1 node, 0 changed, 0 failed" in play(*arguments).stdout
    finally:
        node.check_output(
            "systemctl disable --now nvidia-dcgm-exporter nvidia-dcgm; rpm -e $(rpm -qa 'datacenter-gpu-manager*'); "
            "rm -f /usr/bin/nvidia-smi /dev/nvidiactl /dev/nvidia0 /etc/systemd/system/nvidia-dcgm-exporter.service "
            "; rm -rf /etc/dcgm-exporter /run/dcgm-exporter; systemctl daemon-reload; "
            f"rm -f {RECORD} {RECORD.replace(PACKAGES[0], EXPORTER)}"
        )

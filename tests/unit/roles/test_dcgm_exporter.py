# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dcgm and dcgm_exporter work out for a node, and what Slurm runs before and after a job."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.waiting import until

Value = Callable[[str], Any]
Variables = Callable[..., Value]
SHELLS = [shell for shell in ("dash", "bash") if any(Path(f, shell).exists() for f in ("/bin", "/usr/bin"))]


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(os name, architecture, **more) returns a function that works out a variable or a template."""

    def make(system: str = "ubuntu2404", architecture: str = "x86_64", gpus: int = 8, **more: Any) -> Value:
        facts = {
            "os": {"name": system},
            "architecture": architecture,
            "node_type": "compute",
            "gpus": {"count": gpus},
            **more.pop("facts", {}),
        }
        return work_out("common dcgm dcgm_exporter", facts, **more)

    return make


@pytest.mark.parametrize("role", ["dcgm", "dcgm_exporter"])
@pytest.mark.parametrize(
    ("system", "architecture", "place"),
    [
        ("ubuntu2204", "x86_64", "ubuntu2204/x86_64"),
        ("ubuntu2404", "aarch64", "ubuntu2404/sbsa"),
        ("alinux2023", "x86_64", "amzn2023/x86_64"),
        ("rhel9", "x86_64", "rhel9/x86_64"),
        ("rocky9", "aarch64", "rhel9/sbsa"),
    ],
)
def test_each_system_has_its_repository(
    variables: Variables, role: str, system: str, architecture: str, place: str
) -> None:
    value = variables(system, architecture)
    assert value(f"__{role}_repository_url") == f"https://developer.download.nvidia.com/compute/cuda/repos/{place}"


@pytest.mark.parametrize(
    ("facts", "gpus", "wanted", "here"),
    [
        ({}, 8, True, True),
        ({}, 0, False, False),
        ({"node_type": "head"}, 0, True, False),
        ({"node_type": "head"}, 1, True, True),
        ({"node_type": None, "image_build": True}, 0, True, True),
        ({"node_type": "login"}, 0, False, False),
    ],
)
def test_who_gets_it(variables: Variables, facts: dict[str, Any], gpus: int, wanted: bool, here: bool) -> None:
    value = variables(gpus=gpus, facts=facts)
    assert value("dcgm_exporter_enabled") is wanted
    assert value("__dcgm_exporter_here") is here


def test_the_command_line(variables: Variables) -> None:
    assert variables()("__dcgm_exporter_arguments") == [
        "--collectors=/etc/dcgm-exporter/pcluster-postboot.csv",
        "--address=:9400",
        "--remote-hostengine-info=localhost:5555",
        "--no-hostname",
        "--collect-interval=15000",
        "--hpc-job-mapping-dir=/run/dcgm-exporter/jobs",
    ]
    value = variables(dcgm_exporter_jobs="false", dcgm_exporter_interval="5", dcgm_exporter_flags=["--debug"])
    assert value("__dcgm_exporter_arguments")[4:] == ["--collect-interval=5000", "--debug"]


@pytest.mark.parametrize(
    ("address", "local"), [(":9400", "127.0.0.1:9400"), ("0.0.0.0:1", "127.0.0.1:1"), ("10.0.0.9:9400",) * 2]
)
def test_where_it_is_asked(variables: Variables, address: str, local: str) -> None:
    assert variables(dcgm_exporter_listen_address=address)("__dcgm_exporter_local_address") == local


# The metrics


def test_the_counters_are_fields_of_dcgm(variables: Variables, repo: Path) -> None:
    known = set((repo / "molecule/cluster/standins/dcgm/fields.txt").read_text().split())
    names = [counter["name"] for counter in variables()("__dcgm_exporter_counters")]
    assert len(names) == len(set(names))
    assert {name for name in names if not name.startswith("DCGM_EXP_")} <= known
    without = [counter["name"] for counter in variables(dcgm_exporter_profiling=False)("__dcgm_exporter_counters")]
    assert set(names) - set(without) == {name for name in names if name.startswith("DCGM_FI_PROF_")} != set()


def test_errors_of_every_generation_of_nvlink_are_told(variables: Variables) -> None:
    """H100 and older tell the first, B200 and newer the second."""
    names = {counter["name"] for counter in variables()("__dcgm_exporter_counters")}
    for some in (r"DCGM_FI_DEV_NVLINK_\w+_ERROR_COUNT_TOTAL", r"DCGM_FI_DEV_NVLINK_COUNT_\w+_(ERRORS|EVENTS)"):
        assert len([name for name in names if re.fullmatch(some, name)]) >= 4


# What nobody asks for, and is told: a label costs no series.
UNASKED = {"DCGM_FI_DRIVER_VERSION"}


def test_every_counter_is_one_that_a_panel_a_rule_or_the_nodes_health_asks_for(
    variables: Variables, repo: Path
) -> None:
    files = [*repo.glob("roles/grafana/files/dashboards/*.json"), *repo.glob("roles/prometheus/files/rules/*.yml")]
    files += repo.glob("roles/node_health/files/node_health/*.py")
    text = "".join(path.read_text().replace("\\\\", "\\") for path in files)
    asked = set(re.findall(r"\bDCGM_\w+", text))
    patterns = re.findall(r'__name__=~\\?"([^"\\]*)\\?"', text)
    names = {counter["name"] for counter in variables()("__dcgm_exporter_counters")}
    unasked = {name for name in names - asked if not any(re.fullmatch(pattern, name) for pattern in patterns)}
    assert unasked <= UNASKED


def test_the_counters_file_is_what_go_reads(variables: Variables) -> None:
    own = {"name": "DCGM_FI_DEV_FAN_SPEED", "type": "gauge", "help": 'Fans, "loud" ones (in %)'}
    value = variables(dcgm_exporter_extra_counters=[own])
    text = value("counters.csv.j2")
    rows = list(csv.reader(line for line in text.splitlines() if not line.startswith("#")))
    assert [{"name": n, "type": t, "help": h} for n, t, h in rows] == value("__dcgm_exporter_counters")
    assert rows[-1] == list(own.values())
    # Go refuses a quotation mark after a blank.
    assert len(re.findall(r'^\w+,\w+,"', text, re.MULTILINE)) == len(rows)


def check(value: Value, path: Path) -> subprocess.CompletedProcess[str]:
    line = ["/bin/sh", "-euc", value("__dcgm_exporter_counters_check"), "counters", str(path)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP is there twice"),
        ("dcgm_fi_dev_fan", "'dcgm_fi_dev_fan,gauge,\"Fan\"' is no field of DCGM"),
        ("DCGM_FI_dev_fan", "'DCGM_FI_dev_fan,gauge,\"Fan\"' is no field of DCGM"),
        ("DCGM_FI_A,B", "'DCGM_FI_A,B,gauge,\"Fan\"' is no field of DCGM"),
    ],
)
def test_counters_that_would_cost_the_others_are_refused(
    variables: Variables, tmp_path: Path, name: str, wrong: str
) -> None:
    (tmp_path / "good.csv").write_text(variables()("counters.csv.j2"))
    assert check(variables(), tmp_path / "good.csv").returncode == 0
    value = variables(dcgm_exporter_extra_counters=[{"name": name, "type": "gauge", "help": "Fan"}])
    (tmp_path / "bad.csv").write_text(value("counters.csv.j2"))
    refused = check(value, tmp_path / "bad.csv")
    assert (refused.returncode, refused.stderr) == (1, f"{tmp_path}/bad.csv: {wrong}\n")


# Which job has which GPU


class Jobs:
    """A node's folder of jobs, and the scripts that Slurm runs."""

    def __init__(self, top: Path, value: Value, shell: str) -> None:
        self.top, self.folder, self.shell = top, top / "jobs of this node", shell
        self.folder.mkdir()
        for part in ("prolog", "epilog"):
            text = value(f"{part}.sh.j2")
            assert "flock -w 5 " in text
            (top / part).write_text(text.replace("flock -w 5 ", "flock -w 1 "))

    def run(self, part: str, job: object = 7, gpus: str | None = None) -> subprocess.CompletedProcess[str]:
        # Slurm gives them no PATH, and shells have different ones for that case.
        given = {"PATH": "/none", "SLURM_JOB_ID": str(job), **({} if gpus is None else {"SLURM_JOB_GPUS": gpus})}
        line = [f"/bin/{self.shell}", str(self.top / part)]
        return subprocess.run(line, capture_output=True, text=True, check=False, env=given, umask=0o077)

    def prolog(self, job: object, gpus: str | None, part: str = "prolog") -> None:
        done = self.run(part, job, gpus)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def epilog(self, job: object) -> None:
        self.prolog(job, None, "epilog")

    @property
    def now(self) -> dict[str, list[str]]:
        files = sorted(path for path in self.folder.iterdir() if path.name != ".lock")
        return {path.name: path.read_text().split() for path in files}


@pytest.fixture(params=SHELLS)
def jobs(request: pytest.FixtureRequest, tmp_path: Path, variables: Variables) -> Jobs:
    value = variables(
        dcgm_exporter_jobs_dir=str(tmp_path / "jobs of this node"),
        __dcgm_exporter_instances=f"{tmp_path}/capabilities/gpu*/mig/gi*",
        __dcgm_exporter_driver=f"{tmp_path}/gpus/*/information",
    )
    return Jobs(tmp_path, value, request.param)


def test_a_job_is_noted_and_forgotten(jobs: Jobs) -> None:
    jobs.prolog(7, "0,1,10")
    assert jobs.now == {"0": ["7"], "1": ["7"], "10": ["7"]}
    assert (jobs.folder / "10").stat().st_mode & 0o777 == 0o644, "the exporter has to read it"
    jobs.epilog(7)
    # The files stay, because the exporter fails where one vanishes between its looking and its reading.
    assert jobs.now == {"0": [], "1": [], "10": []}


def test_jobs_that_share_a_gpu(jobs: Jobs) -> None:
    jobs.prolog(7, "0")
    jobs.prolog(71, "0,1")
    jobs.prolog(71, "0,1")
    assert jobs.now == {"0": ["7", "71"], "1": ["71"]}
    jobs.epilog(7)
    assert jobs.now == {"0": ["71"], "1": ["71"]}


@pytest.mark.parametrize("gpus", [None, "", "MIG-4f0b,..,../x,-1,a0"])
def test_a_job_without_gpus_is_not_noted(jobs: Jobs, gpus: str | None) -> None:
    jobs.prolog(7, gpus)
    assert jobs.now == {}
    jobs.epilog(7)
    assert jobs.now == {}


# As driver 535.129.03 writes it for an H100 (kernel-open/nvidia/nv-procfs.c).
INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 10
GPU UUID: \t GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b
Video BIOS: \t 96.00.99.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Firmware: \t 535.129.03
GPU Excluded:\t {excluded}
"""


def driver(top: Path, minors: dict[str, int], excluded: str = "") -> None:
    for bus, minor in minors.items():
        text = INFORMATION.format(bus=bus, minor=minor, excluded="Yes" if bus == excluded else "No")
        (top / "gpus" / bus).mkdir(parents=True, exist_ok=True)
        (top / "gpus" / bus / "information").write_text(text)


def test_slurms_number_is_the_minor_and_dcgms_the_place_on_the_bus(jobs: Jobs) -> None:
    """PrincetonUniversity/jobstats#34: otherwise the metrics are those of another job's GPU."""
    minors = {"0000:53:00.0": 1, "0000:64:00.0": 0, "0000:a8:00.0": 10, "0000:b9:00.0": 2}
    driver(jobs.top, minors)
    jobs.prolog(7, "1")
    jobs.prolog(8, "0,2")
    jobs.prolog(9, "10")
    assert jobs.now == {"0": ["7"], "1": ["8"], "3": ["8"], "2": ["9"]}
    jobs.epilog(8)
    assert jobs.now == {"0": ["7"], "1": [], "3": [], "2": ["9"]}


def test_a_gpu_that_the_driver_excludes_or_does_not_have_is_no_other(jobs: Jobs) -> None:
    minors = {"0000:53:00.0": 0, "0000:64:00.0": 1, "0000:a8:00.0": 2}
    driver(jobs.top, minors, excluded="0000:53:00.0")
    jobs.prolog(7, "2,1,0,5")
    assert jobs.now == {"0": ["7"], "1": ["7"]}


def test_without_the_minors_slurms_number_is_dcgms(jobs: Jobs) -> None:
    """A driver that reports none, or no driver."""
    (jobs.top / "gpus/0000:53:00.0").mkdir(parents=True)
    (jobs.top / "gpus/0000:53:00.0/information").write_text("Model: \t\t NVIDIA A10G\n")
    jobs.prolog(7, "3")
    assert jobs.now == {"3": ["7"]}


def test_a_list_of_minors_with_a_gap_is_not_used(jobs: Jobs) -> None:
    driver(jobs.top, {"0000:53:00.0": 2, "0000:64:00.0": 1, "0000:a8:00.0": 0})
    (jobs.top / "gpus/0000:53:00.0/information").unlink()
    (jobs.top / "gpus/0000:53:00.0/information").mkdir()  # it cannot be read
    jobs.prolog(7, "0")
    assert jobs.now == {"0": ["7"]}


def test_numbers_of_a_node_with_divided_gpus_name_no_gpu(jobs: Jobs) -> None:
    """With MIG, Slurm's number 1 may be the second instance of the first GPU."""
    mig = jobs.top / "capabilities/gpu0/mig"
    (mig / "gi1").mkdir(parents=True)
    jobs.prolog(7, "1")
    assert jobs.now == {}
    (mig / "gi1").rename(mig / "config")
    jobs.prolog(7, "1")
    assert jobs.now == {"1": ["7"]}
    mig.rename(mig.parent / "none")
    (jobs.top / "capabilities/gpu0/mig/gi3").mkdir(parents=True)
    jobs.epilog(7)
    assert jobs.now == {"1": []}, "one that was noted before is forgotten"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("systemd-tmpfiles"), reason="needs root and systemd-tmpfiles")
def test_jobs_that_a_reboot_has_ended_are_forgotten(variables: Variables, tmp_path: Path) -> None:
    """Also where the folder is on a disk. A run on a node with jobs takes nothing."""
    folder = tmp_path / "jobs"
    config = tmp_path / "jobs.conf"
    config.write_text(variables(dcgm_exporter_jobs_dir=str(folder))("__dcgm_exporter_tmpfiles"))

    def tmpfiles(*flags: str) -> None:
        subprocess.run(["systemd-tmpfiles", *flags, str(config)], check=True)

    tmpfiles("--create")
    assert folder.stat().st_mode & 0o777 == 0o755
    for name in ("0", "10", ".lock"):
        (folder / name).write_text("7\n")
    tmpfiles("--create")
    assert {path.name for path in folder.iterdir()} == {"0", "10", ".lock"}
    tmpfiles("--create", "--remove", "--boot")
    assert [path.name for path in folder.iterdir()] == [".lock"]


@pytest.mark.parametrize("job", ["", "7; touch here", "../x"])
def test_what_is_no_job_is_left_alone(jobs: Jobs, job: str) -> None:
    jobs.prolog(7, "0")
    jobs.prolog(job, "0")
    jobs.epilog(job)
    assert jobs.now == {"0": ["7"]}


def test_a_node_without_the_folder_runs_its_jobs(jobs: Jobs) -> None:
    jobs.folder.rename(jobs.top / "gone")
    jobs.prolog(7, "0")
    jobs.epilog(7)
    assert not jobs.folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that root cannot replace")
def test_a_folder_that_cannot_be_written_fails_no_job(jobs: Jobs) -> None:
    jobs.prolog(7, "0")
    try:
        for name in ("0", ".lock"):
            (jobs.folder / name).unlink()
            (jobs.folder / name).mkdir()
        (jobs.folder / "0/full").touch()
        assert jobs.run("prolog", 8, "0").returncode == 0
        assert jobs.run("epilog", 8).returncode == 0
    finally:
        (jobs.folder / ".lock").rmdir()


@pytest.mark.parametrize("jobs", SHELLS[:1], indirect=True)
def test_a_lock_that_is_held_delays_a_job_by_seconds(jobs: Jobs) -> None:
    jobs.prolog(7, "0")
    with subprocess.Popen(["flock", str(jobs.folder / ".lock"), "sleep", "30"]) as holder:
        until(lambda: subprocess.run(["flock", "--nonblock", jobs.folder / ".lock", "true"], check=False).returncode)
        begun = time.monotonic()
        jobs.prolog(8, "0")
        assert time.monotonic() - begun > 0.9
        holder.terminate()
    assert jobs.now == {"0": ["7"]}


def test_many_at_once_lose_nothing_and_a_reader_sees_whole_files(jobs: Jobs) -> None:
    stop, torn = threading.Event(), []

    def reader() -> None:
        while not stop.is_set():
            for name in ("0", "1"):
                try:
                    text = (jobs.folder / name).read_text()
                except FileNotFoundError:
                    continue
                torn.extend([text] if text and not re.fullmatch(r"(1\d\d\n)+", text) else [])

    watcher = threading.Thread(target=reader)
    watcher.start()
    numbers = range(100, 106)  # each waits for the others at most as long as a prolog may
    for part in ("prolog", "epilog"):
        threads = [threading.Thread(target=jobs.run, args=(part, number, "0,1")) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wanted = [str(number) for number in numbers] if part == "prolog" else []
        assert jobs.now == {"0": wanted, "1": wanted}
    stop.set()
    watcher.join()
    assert not torn


def test_no_prolog_ends_with_anything_but_0(variables: Variables) -> None:
    for part in ("prolog", "epilog"):
        text = variables()(f"{part}.sh.j2")
        assert text.startswith("#!/bin/sh\n")
        assert text.endswith("\nexit 0\n")
        assert set(re.findall(r"exit (\S+)", text)) == {"0"}
        assert "/tmp" not in text


@pytest.mark.parametrize("method", ["package", "container"])
def test_the_units(variables: Variables, method: str) -> None:
    text = variables()(f"{method}.service.j2")
    assert '    "--address=:9400" \\\n' in text
    assert "User=root" not in text
    if method == "container":
        assert "@sha256:" in text
        assert "--cap-drop ALL" in text
        assert "--volume /run/dcgm-exporter/jobs:/run/dcgm-exporter/jobs:ro" in text
        assert "--volume /run/dcgm" not in variables(dcgm_exporter_jobs=False)("container.service.j2")
        assert "--gpus" not in text
    else:
        assert "CapabilityBoundingSet=\n" in text
        assert "SYS_ADMIN" not in text


@pytest.mark.parametrize(("noted", "jobs"), [("/run/slurm/dcgm-job-mapping", True), (None, False)])
def test_on_hyperpod_jobs_are_those_that_its_own_prolog_notes(work_out: Variables, noted: Any, jobs: bool) -> None:
    facts = {"platform": "hyperpod", "gpu_jobs_dir": noted, "gpus": {"count": 8}, "node_type": "compute"}
    value = work_out("common dcgm_exporter", facts)
    assert value("dcgm_exporter_enabled") is True
    mapping = [word for word in value("__dcgm_exporter_arguments") if word.startswith("--hpc-job-mapping-dir")]
    assert mapping == ([f"--hpc-job-mapping-dir={noted}"] if jobs else [])
    head = {**facts, "gpus": {"count": 0}, "node_type": "head"}
    assert work_out("common dcgm_exporter", head)("dcgm_exporter_enabled") is False

# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Jobs in containers: Pyxis is built once, loads everywhere, and goes out of the way when it does not load."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]
Command = Callable[..., list[str]]

ENTRY = "/opt/slurm/etc/plugstack.conf.d/pyxis.conf"
STORE = "/opt/slurm/pyxis"
SOURCE = "/var/cache/pcluster-postboot/pyxis"
IMAGE = "/fsx/containers/test-pyxis.sqsh"
USERS = ("alice", "bob")
INSIDE = "NAME=in-the-container"
MISFIT = "/tmp/test-pyxis-misfit"
SHOW = f"--container-image={IMAGE} cat /etc/os-release"
ONE = ("--tags", "pyxis", "--limit", "head,login,cpu-st-c5-1,gpu-st-p5-1")


def as_user(host: Host, user: str, line: str, timeout: int = 60) -> Any:
    return host.run(f"timeout {timeout} su - {user} -c %s", line)


def plugin(host: Host) -> str:
    """What the entry loads."""
    (line,) = [line for line in host.file(ENTRY).content_string.splitlines() if line.startswith("required ")]
    return line.split()[1]


def wait(what: str, done: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def builder(on: On) -> Host:
    return on("head")


@pytest.fixture(scope="module")
def image(builder: Host) -> Iterator[str]:
    """An image that says what it is."""
    builder.check_output(
        "d=$(mktemp -d) && curl -sf http://mirror/sandbox/busybox.tar | tar x -C $d && cd $d "
        f"&& mkdir -p etc tmp proc sys dev run && chmod 1777 tmp && echo {INSIDE} > etc/os-release "
        f"&& mksquashfs . {IMAGE} -noappend -quiet && chmod 644 {IMAGE} && rm -r $d"
    )
    yield IMAGE
    builder.run(f"rm -f {IMAGE}")


@pytest.fixture
def mended(builder: Host, play: Play) -> Iterator[None]:
    """Whatever a test did to Slurm's plugstack, the next run puts it right."""
    yield
    builder.run(f"rm -rf {MISFIT}")
    done = play(*ONE)
    assert done.returncode == 0, done.stdout


def misfit(builder: Host) -> str:
    """Build Pyxis as if for a Slurm of another version; return where it is."""
    number = "s/SLURM_VERSION_NUMBER 0x.*/SLURM_VERSION_NUMBER 0x150808/"
    builder.check_output(
        f"rm -rf {MISFIT} && mkdir {MISFIT} && cp -r /opt/slurm/include {SOURCE} {MISFIT} "
        f"&& sed -i '{number}' {MISFIT}/include/slurm/slurm*.h "
        f"&& CPPFLAGS=-I{MISFIT}/include make -C {MISFIT}/pyxis > /dev/null 2>&1"
    )
    return f"{MISFIT}/pyxis/spank_pyxis.so"


# What there is


def test_every_node_has_the_option_as_an_ordinary_user(on: On, node: str) -> None:
    done = as_user(on(node), "alice", "srun --help")
    assert done.rc == 0, done.stderr
    assert "--container-image=" in done.stdout
    assert done.stderr == ""


def test_the_head_node_alone_has_built_it(on: On, nodes: dict[str, dict[str, Any]]) -> None:
    for name, one in nodes.items():
        host = on(name)
        assert host.file(SOURCE).exists == (one["type"] == "HeadNode"), name
        slurm = host.check_output("/opt/slurm/bin/srun --version").split()[-1]
        manifest = json.loads(host.file(f"{plugin(host).rpartition('/')[0]}/manifest.json").content_string)
        assert manifest["slurm"] == slurm
        assert plugin(host) == f"{STORE}/{manifest['pyxis']}-slurm{slurm}/spank_pyxis.so"
        assert host.file(plugin(host)).sha256sum == manifest["sha256"]


def test_nothing_else_is_in_plugstack_conf_d(on: On) -> None:
    for name in ("head", "el-head"):
        assert on(name).check_output("ls -A /opt/slurm/etc/plugstack.conf.d") == "pyxis.conf"
        assert "make" not in on(name).check_output(f"ls -A {STORE}")


def test_slurmd_finds_scontrol(on: On, compute: str) -> None:
    host = on(compute)
    pid = host.check_output("systemctl show --value --property=MainPID slurmd")
    path = host.check_output(f"tr '\\0' '\\n' < /proc/{pid}/environ | sed -n s/^PATH=//p")
    assert host.check_output(f"PATH={path} command -v scontrol") == "/opt/slurm/bin/scontrol"


# What a user does


def test_srun_on_two_nodes_from_the_head_and_the_login_node(on: On, image: str) -> None:
    for name in ("head", "login"):
        done = as_user(on(name), "alice", f"srun -N2 {SHOW}")
        assert done.rc == 0, done.stderr
        assert done.stdout.splitlines() == [INSIDE] * 2


def test_two_users_run_the_same_image_from_a_registry_at_once(on: On) -> None:
    """Each has layers of their own, on a node that has none of them yet."""
    node = on("cpu-st-c5-1")
    caches = " ".join(f"/var/lib/enroot/cache/user-{node.user(user).uid}" for user in USERS)
    node.check_output(f"rm -rf {caches}")
    run = "srun -w cpu-st-c5-1 --container-image=registry:5000#library/tiny:1.0 cat /etc/os-release"
    with ThreadPoolExecutor() as users:
        jobs = {user: users.submit(as_user, on("login"), user, run) for user in USERS}
    for job in jobs.values():
        assert job.result().rc == 0, job.result().stderr
        assert "NAME=" in job.result().stdout
    for user, cache in zip(USERS, caches.split()):
        assert {node.file(cache).user, *node.check_output(f"find {cache} -printf '%u\\n'").split()} == {user}
        assert len(node.file(cache).listdir()) > 1


def test_sbatch(on: On, image: str) -> None:
    script = f"#!/bin/sh\n#SBATCH --output=test-pyxis.out --container-image={image}\ncat /etc/os-release\n"
    host = on("login")
    try:
        done = as_user(
            host, "alice", f"printf %b {script!r} > test-pyxis.sh && sbatch --wait test-pyxis.sh; cat test-pyxis.out"
        )
        assert INSIDE in done.stdout, done.stdout + done.stderr
        done = as_user(host, "alice", f"sbatch --wait --output=test-pyxis.out --wrap 'srun {SHOW}'; cat test-pyxis.out")
        assert INSIDE in done.stdout, done.stdout + done.stderr
    finally:
        host.run("rm -f /home/alice/test-pyxis.*")


@pytest.fixture
def mounting(builder: Host) -> Iterator[None]:
    """Every job has images mounted, for as long as a test runs. Whatever lies beside the entry is read by every job."""
    before = builder.file(ENTRY).content_string
    replace = f"cat > {STORE}/aside.conf && chmod 644 {STORE}/aside.conf && mv {STORE}/aside.conf {ENTRY}"
    builder.check_output(f"sed '/^required/s/$/ use_squashfuse=1/' {ENTRY} | ({replace})")
    yield
    builder.check_output(f"printf %s | ({replace})", before)


# In the container: say what it is, write into it, and wait until somebody has looked from outside.
STEP = "cat /etc/os-release && echo x > /written && : > /share/started && until [ -e /share/end ]; do sleep 0.2; done"
LOOK = """#!/bin/sh
mkdir {folder} && cd {folder}
srun --container-image={image} {option} --container-mounts={folder}:/share sh -c '{step}' &
until [ -e started ]; do sleep 0.2; kill -0 $! || exit 1; done
echo "unpacked: $(enroot list | grep -c ^pyxis_)"
echo "mounted: $(pgrep -u alice -f -c '^squashfuse .*{image}')"
touch end && wait $!
"""


def looks(on: On, image: str, option: str = "") -> list[str]:
    """Run a container on a node as alice; return what it said, and what was there of it while it ran."""
    folder = "/home/alice/test-pyxis-look"
    script = LOOK.format(folder=folder, image=image, option=option, step=STEP)
    try:
        submit = "cat > test-pyxis.sh && sbatch --wait --nodelist=cpu-st-c5-1 --output=test-pyxis.out test-pyxis.sh"
        done = on("login").run(
            f"printf %s | timeout 60 su - alice -c '{submit}'; cat /home/alice/test-pyxis.out", script
        )
        return str(done.stdout).splitlines()[1:]  # after what sbatch says
    finally:
        on("login").run(f"rm -rf {folder} /home/alice/test-pyxis.*")
        on("cpu-st-c5-1").run("su - alice -c 'enroot list | grep ^pyxis_ | xargs --no-run-if-empty enroot remove -f'")


def test_an_image_is_unpacked_on_the_node_before_it_starts(on: On, image: str) -> None:
    assert sorted(looks(on, image)) == [INSIDE, "mounted: 0", "unpacked: 1"]


@pytest.mark.usefixtures("mounting")
def test_an_image_is_mounted_where_that_is_asked_for(on: On, image: str) -> None:
    assert sorted(looks(on, image)) == [INSIDE, "mounted: 1", "unpacked: 0"]
    # What mounts it ends with the step.
    wait("the end of squashfuse", lambda: on("cpu-st-c5-1").run("pgrep -u alice -x squashfuse").rc == 1, 10)


@pytest.mark.usefixtures("mounting")
def test_a_named_container_is_unpacked_all_the_same(on: On, image: str) -> None:
    assert sorted(looks(on, image, "--container-name=kept")) == [INSIDE, "mounted: 0", "unpacked: 1"]


@pytest.mark.long
@pytest.mark.usefixtures("mended")
def test_images_are_mounted_by_an_option_where_a_node_can(on: On, builder: Host, play: Play, image: str) -> None:
    mounting = ("-e", '{"pyxis_options": {"use_squashfuse": true}}')
    done = play(*ONE, *mounting)
    assert done.returncode == 0, done.stdout
    assert builder.file(ENTRY).content_string.split()[-1] == "use_squashfuse=1"
    assert sorted(looks(on, image)) == [INSIDE, "mounted: 1", "unpacked: 0"]
    assert ", 0 changed, 0 failed" in play(*ONE, *mounting).stdout
    # Amazon Linux has no squashfuse.
    before = on("el-head").check_output(f"ls -lR --full-time {STORE} {ENTRY}")
    done = play("--tags", "pyxis", "--limit", "el-head", *mounting)
    assert done.returncode != 0
    assert (
        "pyxis_options has use_squashfuse, and this node has no squashfuse, with which images are mounted"
        in " ".join(done.stdout.split())
    )
    assert on("el-head").check_output(f"ls -lR --full-time {STORE} {ENTRY}") == before


def test_a_container_that_does_not_start_runs_nothing_on_the_host(on: On) -> None:
    done = as_user(on("login"), "alice", "srun --container-image=/fsx/containers/none.sqsh cat /etc/os-release")
    assert done.rc != 0
    assert done.stdout == ""


def test_it_works_after_a_reboot(on: On, image: str) -> None:
    for name in ("cpu-st-c5-1", "gpu-st-p5-1"):
        host = on(name)
        host.check_output("systemctl stop slurmd && rm -rf /run/pyxis /run/enroot")
        # What happens at every boot, in its order.
        host.check_output("systemd-tmpfiles --create && systemctl start slurmd")
        assert host.file("/run/pyxis").mode == 0o755
    wait(
        "idle",
        lambda: "idle" in on("head").check_output("/opt/slurm/bin/sinfo --noheader --nodes=cpu-st-c5-1 --format=%T"),
    )
    done = as_user(on("login"), "alice", f"srun -N2 {SHOW}")
    assert done.stdout.splitlines() == [INSIDE] * 2, done.stderr


# What goes wrong


@pytest.mark.long
@pytest.mark.usefixtures("mended")
def test_one_that_slurm_does_not_load_any_more_is_withdrawn_and_built_anew(
    on: On, builder: Host, play: Play, image: str
) -> None:
    built = plugin(builder)
    builder.check_output(f"cp {misfit(builder)} {built}")
    assert as_user(on("login"), "alice", "srun true").rc != 0  # a required plugin that does not load stops every job
    builder.check_output("systemctl restart slurmctld")
    assert not builder.file(ENTRY).exists
    told = builder.check_output("journalctl --no-pager --unit slurmctld --grep 'pyxis-check: ' --output cat --lines 1")
    assert f"{built} does not load in the Slurm that is installed" in told
    wait("slurmctld", lambda: builder.run("/opt/slurm/bin/scontrol ping").rc == 0)
    done = as_user(on("login"), "alice", "srun -N2 hostname")
    assert done.rc == 0, done.stderr
    assert "unrecognized option '--container-image" in as_user(on("login"), "alice", f"srun {SHOW}").stderr

    done = play(*ONE)
    assert done.returncode == 0, done.stdout
    assert plugin(builder) == built
    done = as_user(on("login"), "alice", f"srun -N2 {SHOW}")
    assert done.stdout.splitlines() == [INSIDE] * 2, done.stderr


@pytest.mark.usefixtures("mended")
@pytest.mark.long
def test_slurmctld_starts_whatever_happens_to_the_check(builder: Host) -> None:
    program = "/usr/local/libexec/pcluster-postboot/pyxis-check"
    builder.check_output(f"echo 'import sys; sys.exit(1)' > {program}")
    builder.check_output("systemctl restart slurmctld")
    assert builder.service("slurmctld").is_running
    builder.check_output(f"rm {program} && systemctl restart slurmctld")
    assert builder.service("slurmctld").is_running


@pytest.mark.long
@pytest.mark.usefixtures("mended")
def test_a_build_that_was_killed_is_finished_by_the_next_run(
    on: On, builder: Host, play: Play, command: Command
) -> None:
    built = plugin(builder)
    builder.check_output(f"rm -r {built.rpartition('/')[0]} {ENTRY}")
    builder.check_output(
        "printf '#!/bin/sh\\nsleep 61\\n' > /usr/local/bin/gcc && chmod +x /usr/local/bin/gcc "
        "&& ln -s gcc /usr/local/bin/cc"
    )
    line = command("ansible-playbook", "pcluster.postboot.site", "--tags", "pyxis", "--limit", "head")
    try:
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            wait("make", lambda: builder.run("pgrep -x make").rc == 0)
            make = builder.check_output("pgrep -x make").split()[0]
            module = builder.check_output(f"ps -o ppid= -p {make}").strip()
            builder.check_output(f"kill -9 {module} {make}")
            run.wait(timeout=120)
        assert run.returncode != 0
    finally:
        builder.run("rm -f /usr/local/bin/gcc /usr/local/bin/cc; pkill -x -f 'sleep 61'")
    assert not builder.file(ENTRY).exists
    assert builder.check_output(f"find {STORE} -name '*.so'") == ""
    done = as_user(on("login"), "alice", "srun hostname")
    assert done.rc == 0, done.stderr
    done = play(*ONE)
    assert done.returncode == 0, done.stdout
    assert plugin(builder) == built
    assert builder.check_output(f"ls -A {STORE}").split() == [built.split("/")[-2]]


@pytest.mark.long
@pytest.mark.usefixtures("mended")
def test_a_stray_file_is_named(builder: Host, play: Play) -> None:
    stray = "/opt/slurm/etc/plugstack.conf.d/notes.conf"
    try:
        builder.check_output(f"echo '# nothing' > {stray}")
        done = play(*ONE)
        assert done.returncode == 0, done.stdout
        assert f"{stray} is not of this collection, and Slurm reads it for every job" in " ".join(
            (done.stdout + done.stderr).split()
        )
        done = play(*ONE, "-e", '{"pyxis_plugstack_others": ["notes.*"]}')
        assert stray not in done.stdout + done.stderr
        builder.check_output(f"chmod 600 {stray}")
        done = play(*ONE)
        assert done.returncode != 0
        assert (
            f"{stray} is included by /opt/slurm/etc/plugstack.conf, and no job starts while it is there" in done.stdout
        )
        assert builder.file(stray).exists
    finally:
        builder.run(f"rm -f {stray}")


@pytest.mark.usefixtures("mended")
@pytest.mark.long
def test_slurmd_is_not_restarted_under_a_job(on: On, builder: Host, play: Play) -> None:
    host = on("cpu-st-c5-1")
    before = host.check_output("systemctl show --value --property=MainPID slurmd")
    controller = builder.check_output("systemctl show --value --property=MainPID slurmctld")
    job = as_user(
        on("login"), "alice", "sbatch --parsable --output=/dev/null --nodelist=cpu-st-c5-1 --wrap 'sleep 600'"
    ).stdout.strip()
    try:
        wait(
            "the job",
            lambda: builder.check_output(f"/opt/slurm/bin/squeue --noheader --job {job} --format=%T") == "RUNNING",
        )
        done = play(*ONE, "-e", '{"pyxis_options": {"container_scope": "job"}}')
        assert done.returncode == 0, done.stdout
        assert f"slurmd.service was not restarted: it is in use ({job})" in " ".join(
            (done.stdout + done.stderr).split()
        )
        assert "restart of slurmd.service pending" in done.stdout
        assert host.check_output("systemctl show --value --property=MainPID slurmd") == before
        assert builder.check_output(f"/opt/slurm/bin/squeue --noheader --job {job} --format=%T") == "RUNNING"
        # The plugstack changed, and the controller was told without a restart.
        assert "container_scope=job" in builder.file(ENTRY).content_string
        assert builder.check_output("systemctl show --value --property=MainPID slurmctld") == controller
    finally:
        builder.run(f"/opt/slurm/bin/scancel {job}")
    wait("the job's end", lambda: not builder.check_output("/opt/slurm/bin/squeue --noheader"))
    done = play(*ONE, "-e", '{"pyxis_options": {"container_scope": "job"}}')
    assert done.returncode == 0, done.stdout
    assert host.check_output("systemctl show --value --property=MainPID slurmd") != before


@pytest.mark.usefixtures("mended")
@pytest.mark.long
def test_a_node_before_its_head_node_goes_on(builder: Host, play: Play) -> None:
    builder.check_output(f"mv {ENTRY} {STORE}/aside.conf")
    try:
        done = play("--tags", "pyxis", "--limit", "cpu-st-c5-1")
        assert done.returncode == 0, done.stdout
        assert f"{ENTRY} is not there yet: jobs run here, but none in a container" in " ".join(
            (done.stdout + done.stderr).split()
        )
        assert "no Pyxis yet: the head node has to provide it" in done.stdout
    finally:
        builder.run(f"rm -f {STORE}/aside.conf")


@pytest.mark.usefixtures("mended")
@pytest.mark.long
def test_the_image_s_own_is_kept(builder: Host, play: Play) -> None:
    """As on the official AMI: its plugin fits, and nothing is built; then it does not fit, and one is built."""
    shipped, built = "/usr/local/lib/slurm/spank_pyxis.so", plugin(builder)
    slurm = builder.check_output("/opt/slurm/bin/srun --version").split()[-1]
    try:
        builder.check_output(
            f"mkdir -p /usr/local/lib/slurm && cp {built} {shipped} && rm -r {built.rpartition('/')[0]}"
        )
        done = play("--tags", "pyxis", "--limit", "head", "-e", '{"pyxis_sha256": {"noarch": ""}}')
        assert done.returncode == 0, done.stdout
        assert re.search(rf"-ami-[0-9a-f]{{8}}-slurm{slurm}/spank_pyxis\.so$", plugin(builder))
        assert "the AMI's own" in done.stdout
        builder.check_output(f"cp {misfit(builder)} {shipped}")
        done = play("--tags", "pyxis", "--limit", "head", "-e", '{"pyxis_prune": true}')
        assert done.returncode == 0, done.stdout
        assert plugin(builder) == built
        assert builder.check_output(f"ls -A {STORE}").split() == [built.split("/")[-2]]
    finally:
        builder.run("rm -rf /usr/local/lib/slurm")


def test_an_image_build_without_slurm_has_nothing_to_do(play: Play) -> None:
    facts = {"image_build": True, "slurm": {"prefix": None, "version": None}}
    done = play("--tags", "pyxis", "--limit", "cpu-st-c5-1", "-e", json.dumps({"common_node_overrides": facts}))
    assert done.returncode == 0, done.stdout
    assert "skipped on cpu-st-c5-1: pyxis" in done.stdout


def test_an_image_build_with_slurm_builds_and_configures_nothing(builder: Host, play: Play) -> None:
    """On the head node, which has a systemd; the fact says that there is none."""
    facts = {"image_build": True, "node_type": None}
    done = play("--tags", "pyxis", "--limit", "head", "-e", json.dumps({"common_node_overrides": facts}))
    assert done.returncode == 0, done.stdout
    assert "Look for a Pyxis that Slurm loads" in done.stdout
    assert "configure |" not in done.stdout

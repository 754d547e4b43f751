# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Jobs in containers: Pyxis is built once, loads everywhere, and goes out of the way when it does not load."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from testinfra.host import Host

from .helpers import (
    Command,
    Nodes,
    On,
    Play,
    as_user,
    ended,
    failed,
    image_of_busybox,
    ok,
    process,
    said,
    until,
    variables,
)

ENTRY = "/opt/slurm/etc/plugstack.conf.d/pyxis.conf"
STORE = "/opt/slurm/pyxis"
SOURCE = "/var/cache/pcluster-postboot/pyxis"
IMAGE = "/fsx/containers/test-pyxis.sqsh"
USERS = ("alice", "bob")
INSIDE = "NAME=in-the-container"
MISFIT = "/tmp/test-pyxis-misfit"
SHOW = f"--container-image={IMAGE} cat /etc/os-release"
ONLY = ("--tags", "pyxis", "--limit", "head,login,cpu-st-c5-1,gpu-st-p5-1")


def plugin(host: Host) -> str:
    """What the entry loads."""
    (line,) = [line for line in host.file(ENTRY).content_string.splitlines() if line.startswith("required ")]
    return line.split()[1]


@pytest.fixture(scope="module")
def builder(on: On) -> Host:
    return on("head")


@pytest.fixture(scope="module")
def image(builder: Host) -> Iterator[str]:
    """An image that says what it is."""
    image_of_busybox(builder, IMAGE, f"echo {INSIDE} > etc/os-release")
    yield IMAGE
    builder.run(f"rm -f {IMAGE}")


@pytest.fixture
def as_before(as_before: None, builder: Host) -> Iterator[None]:
    yield
    builder.run(f"rm -rf {MISFIT}")


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


def test_the_head_node_alone_has_built_it(on: On, nodes: Nodes) -> None:
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
    pid = process(host, "slurmd")
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
        host.check_output(f"printf %b {script!r} > /home/alice/test-pyxis.sh")
        for submit in (
            "sbatch --parsable test-pyxis.sh",
            f"sbatch --parsable --output=test-pyxis.out --wrap 'srun {SHOW}'",
        ):
            done = as_user(host, "alice", submit)
            assert ended(host, done.stdout) == 0, done.stdout + done.stderr
            assert INSIDE in host.check_output("cat /home/alice/test-pyxis.out && rm /home/alice/test-pyxis.out")
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
        submit = "cat > test-pyxis.sh && sbatch --parsable --nodelist=cpu-st-c5-1 --output=test-pyxis.out test-pyxis.sh"
        job = on("login").check_output(f"printf %s | su - alice -c '{submit}'", script)
        ended(on("login"), job)
        return str(on("login").check_output("cat /home/alice/test-pyxis.out")).splitlines()
    finally:
        on("login").run(f"rm -rf {folder} /home/alice/test-pyxis.*")
        on("cpu-st-c5-1").run("su - alice -c 'enroot list | grep ^pyxis_ | xargs --no-run-if-empty enroot remove -f'")


def test_an_image_is_unpacked_on_the_node_before_it_starts(on: On, image: str) -> None:
    assert sorted(looks(on, image)) == [INSIDE, "mounted: 0", "unpacked: 1"]


@pytest.mark.usefixtures("mounting")
def test_an_image_is_mounted_where_that_is_asked_for(on: On, image: str) -> None:
    assert sorted(looks(on, image)) == [INSIDE, "mounted: 1", "unpacked: 0"]
    # What mounts it ends with the step.
    until(lambda: on("cpu-st-c5-1").run("pgrep -u alice -x squashfuse").rc == 1, 10, "the end of squashfuse")


@pytest.mark.long
@pytest.mark.usefixtures("mounting")
def test_a_named_container_is_unpacked_all_the_same(on: On, image: str) -> None:
    assert sorted(looks(on, image, "--container-name=kept")) == [INSIDE, "mounted: 0", "unpacked: 1"]


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_images_are_mounted_by_an_option_where_a_node_can(on: On, builder: Host, play: Play, image: str) -> None:
    mounting = ("-e", '{"pyxis_options": {"use_squashfuse": true}}')
    done = ok(play(*ONLY, *mounting))
    assert builder.file(ENTRY).content_string.split()[-1] == "use_squashfuse=1"
    assert sorted(looks(on, image)) == [INSIDE, "mounted: 1", "unpacked: 0"]
    assert ", 0 changed, 0 failed" in play(*ONLY, *mounting).stdout
    # Amazon Linux has no squashfuse.
    before = on("el-head").check_output(f"ls -lR --full-time {STORE} {ENTRY}")
    done = failed(play("--tags", "pyxis", "--limit", "el-head", *mounting))
    assert "pyxis_options has use_squashfuse, and this node has no squashfuse, with which images are mounted" in said(
        done
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
    until(
        lambda: "idle" in on("head").check_output("/opt/slurm/bin/sinfo --noheader --nodes=cpu-st-c5-1 --format=%T"),
        60,
        "idle",
    )
    done = as_user(on("login"), "alice", f"srun -N2 {SHOW}")
    assert done.stdout.splitlines() == [INSIDE] * 2, done.stderr


# What goes wrong


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
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
    until(lambda: builder.run("/opt/slurm/bin/scontrol ping").rc == 0, 60, "slurmctld")
    done = as_user(on("login"), "alice", "srun -N2 hostname")
    assert done.rc == 0, done.stderr
    assert "unrecognized option '--container-image" in as_user(on("login"), "alice", f"srun {SHOW}").stderr

    done = ok(play(*ONLY))
    assert plugin(builder) == built
    done = as_user(on("login"), "alice", f"srun -N2 {SHOW}")
    assert done.stdout.splitlines() == [INSIDE] * 2, done.stderr


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_slurmctld_starts_whatever_happens_to_the_check(builder: Host) -> None:
    program = "/usr/local/libexec/pcluster-postboot/pyxis-check"
    builder.check_output(f"echo 'import sys; sys.exit(1)' > {program}")
    builder.check_output("systemctl restart slurmctld")
    assert builder.service("slurmctld").is_running
    builder.check_output(f"rm {program} && systemctl restart slurmctld")
    assert builder.service("slurmctld").is_running


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
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
            until(lambda: builder.run("pgrep -x make").rc == 0, 60, "make")
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
    done = ok(play(*ONLY))
    assert plugin(builder) == built
    assert builder.check_output(f"ls -A {STORE}").split() == [built.split("/")[-2]]


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_stray_file_is_named(builder: Host, play: Play) -> None:
    stray = "/opt/slurm/etc/plugstack.conf.d/notes.conf"
    try:
        builder.check_output(f"echo '# nothing' > {stray}")
        done = ok(play(*ONLY))
        assert f"{stray} is not of this collection, and Slurm reads it for every job" in said(done)
        done = play(*ONLY, "-e", '{"pyxis_plugstack_others": ["notes.*"]}')
        assert stray not in done.stdout + done.stderr
        builder.check_output(f"chmod 600 {stray}")
        done = failed(play(*ONLY))
        assert (
            f"{stray} is included by /opt/slurm/etc/plugstack.conf, and no job starts while it is there" in done.stdout
        )
        assert builder.file(stray).exists
    finally:
        builder.run(f"rm -f {stray}")


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_slurmd_is_not_restarted_under_a_job(on: On, builder: Host, play: Play) -> None:
    host = on("cpu-st-c5-1")
    before = process(host, "slurmd")
    controller = process(builder, "slurmctld")
    job = as_user(
        on("login"), "alice", "sbatch --parsable --output=/dev/null --nodelist=cpu-st-c5-1 --wrap 'sleep 600'"
    ).stdout.strip()
    try:
        until(
            lambda: builder.check_output(f"/opt/slurm/bin/squeue --noheader --job {job} --format=%T") == "RUNNING",
            60,
            "the job",
        )
        done = ok(play(*ONLY, "-e", '{"pyxis_options": {"container_scope": "job"}}'))
        assert f"slurmd.service was not restarted: it is in use ({job})" in said(done)
        assert "restart of slurmd.service pending" in done.stdout
        assert process(host, "slurmd") == before
        assert builder.check_output(f"/opt/slurm/bin/squeue --noheader --job {job} --format=%T") == "RUNNING"
        # The plugstack changed, and the controller was told without a restart.
        assert "container_scope=job" in builder.file(ENTRY).content_string
        assert process(builder, "slurmctld") == controller
    finally:
        builder.run(f"/opt/slurm/bin/scancel {job}")
    until(lambda: not builder.check_output("/opt/slurm/bin/squeue --noheader"), 60, "the job's end")
    done = ok(play(*ONLY, "-e", '{"pyxis_options": {"container_scope": "job"}}'))
    assert process(host, "slurmd") != before


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_a_node_before_its_head_node_goes_on(builder: Host, play: Play) -> None:
    builder.check_output(f"mv {ENTRY} {STORE}/aside.conf")
    try:
        done = ok(play("--tags", "pyxis", "--limit", "cpu-st-c5-1"))
        assert f"{ENTRY} is not there yet: jobs run here, but none in a container" in said(done)
        assert "no Pyxis yet: the head node has to provide it" in done.stdout
    finally:
        builder.run(f"rm -f {STORE}/aside.conf")


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_the_image_s_own_is_kept(builder: Host, play: Play) -> None:
    """The official AMI has a plugin: while that fits, nothing is built; once it does not fit, a plugin is built."""
    shipped, built = "/usr/local/lib/slurm/spank_pyxis.so", plugin(builder)
    slurm = builder.check_output("/opt/slurm/bin/srun --version").split()[-1]
    try:
        builder.check_output(
            f"mkdir -p /usr/local/lib/slurm && cp {built} {shipped} && rm -r {built.rpartition('/')[0]}"
        )
        done = ok(play("--tags", "pyxis", "--limit", "head", "-e", '{"pyxis_sha256": {"noarch": ""}}'))
        assert re.search(rf"-ami-[0-9a-f]{{8}}-slurm{slurm}/spank_pyxis\.so$", plugin(builder))
        assert "the AMI's own" in done.stdout
        builder.check_output(f"cp {misfit(builder)} {shipped}")
        done = ok(play("--tags", "pyxis", "--limit", "head", "-e", '{"pyxis_prune": true}'))
        assert plugin(builder) == built
        assert builder.check_output(f"ls -A {STORE}").split() == [built.split("/")[-2]]
    finally:
        builder.run("rm -rf /usr/local/lib/slurm")


@pytest.mark.long
def test_an_image_build_without_slurm_has_nothing_to_do(play: Play) -> None:
    facts = {"image_build": True, "slurm": {"prefix": None, "version": None}}
    done = ok(play("--tags", "pyxis", "--limit", "cpu-st-c5-1", *variables(common_node_overrides=facts)))
    assert "skipped on cpu-st-c5-1: pyxis" in done.stdout


def test_an_image_build_with_slurm_builds_and_configures_nothing(builder: Host, play: Play) -> None:
    """On the head node, which has a systemd; the fact says that there is none."""
    facts = {"image_build": True, "node_type": None}
    done = ok(play("--tags", "pyxis,nccl", "--limit", "head", *variables(common_node_overrides=facts)))
    assert "skipped on head: nccl" in done.stdout
    assert "Look for a Pyxis that Slurm loads" in done.stdout
    assert "configure |" not in done.stdout

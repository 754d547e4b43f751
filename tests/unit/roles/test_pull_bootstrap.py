# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""bootstrap.sh as it is, on a node that is a folder: its programs and what it installs are small fakes."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import record
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

SCRIPT = Path(__file__).resolve().parents[3] / "roles/pull/files/bootstrap.sh"
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
HEX = "0123456789abcdef" * 4
URL = "s3://bucket/prefix/pcluster-postboot.tar.gz"

# What the bundle's own Python runs: it notes how it was called, and ends as the test says.
PULL = """
import fcntl, json, os, sys
try:
    with open(os.environ["PCLUSTER_POSTBOOT_ROOT"] + "/run/pcluster-postboot/bootstrap.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    locked = False
except BlockingIOError:
    locked = True
call = {"args": sys.argv[1:], "env": dict(os.environ), "python": sys.executable, "locked": locked}
with open(os.environ["PCLUSTER_POSTBOOT_ROOT"] + "/called", "a") as stream:
    stream.write(json.dumps(call) + "\\n")
told = os.environ["PCLUSTER_POSTBOOT_ROOT"] + "/fails"
if os.path.exists(told):
    sys.exit(print("pcluster-postboot: docker failed", file=sys.stderr) or 1)
"""
# It makes environments as uv does: a link to a Python beside pyvenv.cfg, without a network and without starting one.
UV = f"""#!/bin/sh
set -e
echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/uv.log"
env | grep ^UV_ | sort > "$PCLUSTER_POSTBOOT_ROOT/uv.env"
if [ -e "$PCLUSTER_POSTBOOT_ROOT/uv.fails" ]; then echo 'error: No space left on device (os error 28)' >&2; exit 2; fi
case $1 in
  venv)
    mkdir -p "$4/bin"
    ln -s {os.path.realpath(sys.executable)} "$4/bin/python"
    echo 'home = {os.path.dirname(os.path.realpath(sys.executable))}' > "$4/pyvenv.cfg" ;;
  pip) mkdir -p "${{5%/bin/python}}/lib/python{VERSION}/site-packages/ansible" ;;
esac
"""
PROGRAMS = {
    "systemctl": 'cd "$PCLUSTER_POSTBOOT_ROOT"; echo "$@" >> systemctl.log; cat state 2> /dev/null || echo inactive',
    "ps": 'cat "$PCLUSTER_POSTBOOT_ROOT/since"',
    "aws": """echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/aws.log"; for file; do :; done
if [ -e "$PCLUSTER_POSTBOOT_ROOT/aws.sh" ]; then . "$PCLUSTER_POSTBOOT_ROOT/aws.sh"; fi
cp "$PCLUSTER_POSTBOOT_ROOT/s3.tar.gz" "$file" """,
    "sleep": 'echo "$1" >> "$PCLUSTER_POSTBOOT_ROOT/sleep.log"; exec /bin/sleep 0.1',
    # The metadata service, version 2: it answers who has a token. Without identity.json it does not answer at all.
    "curl": """echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/curl.log"
imds=http://169.254.169.254/latest identity=$PCLUSTER_POSTBOOT_ROOT/identity.json
case "$*" in *$imds/*) [ -e "$identity" ] || exit 28 ;; *) exec /usr/bin/curl "$@" ;; esac
case "$*" in
  *"--request PUT --header X-aws-ec2-metadata-token-ttl-seconds: "*" $imds/api/token") echo secret ;;
  *"--header X-aws-ec2-metadata-token: secret $imds/dynamic/instance-identity/document") cat "$identity" ;;
  *) exit 22 ;;
esac""",
}

# What the CLI of ParallelCluster writes of a configuration, on the shared file system: the part that matters here.
CONFIGS = {
    "": "DeploymentSettings: null\nDevSettings: null\nDirectoryService: null\nHeadNode:\n  CustomActions: null\n",
    "3.13.2": """DeploymentSettings: null
DevSettings:
  AmiSearchFilters: null
  AwsBatchCliPackage: null
  ClusterTemplate: null
  ComputeStartupTimeMetricEnabled: false
  Cookbook: null
  InstanceTypesData: null
  NodePackage: null
  Timeouts:
    ComputeNodeBootstrapTimeout: 2400
    HeadNodeBootstrapTimeout: 3600
DirectoryService: null
""",
    "3.16.1": """DeploymentSettings: null
DevSettings:
  AmiSearchFilters: null
  ClusterTemplate: null
  ComputeStartupTimeMetricEnabled: false
  Cookbook: null
  EfaInterfaceType: null
  InstanceTypesData: null
  NodePackage: null
  Timeouts:
    ComputeInstanceInfoTimeout: 90
    ComputeNodeBootstrapTimeout: 2400
    HeadNodeBootstrapTimeout: 3600
DirectoryService: null
""",
}
# What dna.json says of time: on a head node how long a compute node may take, and on the others nothing.
DNA = {
    "HeadNode": {"node_type": "HeadNode", "compute_node_bootstrap_timeout": 9000},
    "ComputeFleet": {"node_type": "ComputeFleet"},
    "LoginNode": {"node_type": "LoginNode"},
}


def wheel() -> bytes:
    """Return uv's wheel."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("uv-1.0.data/scripts/uv", UV)
    return stream.getvalue()


class Node:
    """A node, and what lies in its S3 bucket."""

    def __init__(self, root: Path) -> None:
        self.root, self.opt = root, root / "opt/pcluster-postboot"
        for name, code in PROGRAMS.items():
            self.program(name, code)
        self.program("python3", f'exec "{sys.executable}" "$@"')
        (root / "since").write_text("    42\n")
        self.sha256 = self.publish()

    def program(self, name: str, code: str) -> Path:
        return lab.program(self.root / "bin" / name, f"#!/bin/bash\n{code}\n")

    def publish(self, version: str = "1.0.0", uv: bool = True, **changes: Any) -> str:
        """Put a bundle into S3 and return its sha256."""
        about = {
            "format": 1,
            "version": version,
            "pythons": [VERSION],
            "architectures": [platform.machine()],
            **changes,
        }
        files = {
            "bundle.json": json.dumps(about).encode(),
            "requirements.txt": b"",
            "bootstrap.sh": SCRIPT.read_bytes(),
            "ansible_collections/pcluster/postboot/roles/pull/files/pull.py": PULL.encode(),
        }
        if uv:
            files[f"wheelhouse/uv-1.0-py3-none-manylinux_2_17_{platform.machine()}.whl"] = wheel()
        with tarfile.open(self.root / "s3.tar.gz", "w:gz") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
                archive.addfile(entry, io.BytesIO(content))
        return hashlib.sha256((self.root / "s3.tar.gz").read_bytes()).hexdigest()

    def start(self, *arguments: str, stderr: int = subprocess.PIPE, **environment: str) -> subprocess.Popen[str]:
        """Start it as ParallelCluster's executor does: a file in /tmp, no terminal, hardly an environment."""
        script = self.root / "tmpscript"
        shutil.copy(SCRIPT, script)
        script.chmod(0o755)
        return subprocess.Popen(
            [script, *arguments],
            env={"PCLUSTER_POSTBOOT_ROOT": str(self.root), "PATH": "/usr/bin:/bin", **environment},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def install(self, *arguments: str, sha256: str = "", **environment: str) -> tuple[int, str, str]:
        return self.run("--bundle", URL, "--sha256", sha256 or self.sha256, *arguments, **environment)

    def fails(self, *arguments: str, **more: str) -> str:
        """Run it, and return the one line that it ends with, which the log has as well. Nothing half-done is left."""
        code, out, err = self.install(*arguments, **more)
        assert code == 1
        assert out.endswith(err)
        assert err.count("\n") == 1, err
        assert err.startswith("pcluster-postboot: ")
        assert err.endswith(f"; see {self.log}\n")
        line = err[len("pcluster-postboot: ") : -len(f"; see {self.log}\n")]
        assert self.log.read_text().splitlines()[-1].endswith(f"failed: {line}")
        assert not self.called()
        assert [path.name for path in self.opt.glob(".incoming.*")] == []
        return line

    @property
    def log(self) -> Path:
        return self.root / "var/log/pcluster-postboot/pull.log"

    def called(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines("called")]

    def lines(self, name: str) -> list[str]:
        return lab.lines(self.root / name)

    def installed(self) -> list[str]:
        return sorted(path.name for path in self.opt.glob("*-*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def test_it_installs_the_bundle_and_runs_it(node: Node) -> None:
    code, out, err = node.install("--mode", "cpu", "--budget", "500")
    assert (code, err) == (0, "")
    home = node.opt / f"1.0.0-{node.sha256[:12]}"
    assert re.fullmatch(rf"pcluster-postboot: the bundle {home.name} is here after \d+\.\d s\n", out)
    (call,) = node.called()
    args = call["args"]
    rest = "--mode cpu --stopped no --defer yes --budget 500 --elapsed"
    assert args[:-1] == ["boot", "--home", str(home), *rest.split()]
    assert 0 < int(args[-1]) < 3000
    assert call["python"] == str(home / "venv/bin/python")
    assert os.readlink(node.opt / "current") == home.name
    assert (home.stat().st_mode & 0o777, (home / ".complete").exists()) == (0o700, True)
    assert (node.opt / "mode").read_text() == "cpu\n"
    assert node.log.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in node.opt.iterdir()) == [home.name, "current", "mode"]


def test_only_what_the_bundle_has_is_installed(node: Node) -> None:
    node.install(UV_DEFAULT_INDEX="https://example.com")
    home = node.opt / os.readlink(node.opt / "current")
    install = node.lines("uv.log")[1]
    assert install == (
        f"pip install --offline --python {home}/venv/bin/python --no-index --find-links {home}/wheelhouse "
        f"--require-hashes --requirement {home}/requirements.txt"
    )
    cache, *settings = node.lines("uv.env")
    assert cache.startswith(f"UV_CACHE_DIR={node.opt}/.incoming.")
    assert settings == ["UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never"]


def test_a_check_changes_nothing_of_what_is_installed(node: Node) -> None:
    node.install("--mode", "cpu")
    paths = [node.opt / name for name in ("current", "mode", "current/.complete", "current/venv")]
    before = [(path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths]
    assert node.run("--installed", "--check")[0] == 0
    assert [(path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths] == before


def test_what_is_installed_is_not_fetched_or_made_again(node: Node) -> None:
    node.install()
    before = node.lines("aws.log"), node.lines("uv.log")
    assert len(before[0]) == 1
    code, out, err = node.install()
    assert (code, out, err) == (0, "", "")
    assert (node.lines("aws.log"), node.lines("uv.log")) == before
    assert len(node.called()) == 2


def test_an_environment_that_does_not_start_is_made_again_without_the_network(node: Node) -> None:
    node.install()
    home = node.opt / os.readlink(node.opt / "current")
    (home / "venv/bin/python").unlink()
    assert node.install()[0] == 0
    assert len(node.lines("aws.log")) == 1
    assert (home / "venv/bin/python").exists()


def test_what_surrounds_it_does_not_matter(node: Node) -> None:
    noise = {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere", "ANSIBLE_STRATEGY": "debug", "UV_INDEX_URL": "x"}
    assert node.install(**noise, VIRTUAL_ENV="/nowhere", HOME="/nowhere", LC_ALL="C", https_proxy="http://p:1")[0] == 0
    env = node.called()[0]["env"]
    assert not {"PYTHONHOME", "ANSIBLE_STRATEGY", "UV_INDEX_URL", "VIRTUAL_ENV"} & set(env)
    assert (env["HOME"], env["LC_ALL"], env["https_proxy"]) == ("/root", "C.UTF-8", "http://p:1")
    assert env["PYTHONPATH"] == os.path.dirname(os.path.dirname(os.path.dirname(node.called()[0]["python"])))


def test_the_proxy_of_login_shells_counts_however_careless_its_script_is(node: Node) -> None:
    (node.root / "etc/profile.d").mkdir(parents=True)
    script = 'export https_proxy=http://proxy:3128 no_proxy="$NOBODY_SET_THIS,x"\n[ -n "$NOR_THIS" ]\n'
    (node.root / "etc/profile.d/proxy.sh").write_text(script)
    assert node.install()[::2] == (0, "")
    env = node.called()[0]["env"]
    assert (env["https_proxy"], env["no_proxy"]) == ("http://proxy:3128", ",x")


@pytest.mark.parametrize(
    ("text", "environment", "region"),
    [
        ("stack_name=x\ncfn_region=cn-north-1\n", {}, "cn-north-1"),
        ('cfn_region="us-gov-west-1"\n', {}, "us-gov-west-1"),
        ("cfn_region=cn-north-1\n", {"AWS_REGION": "eu-west-1"}, None),
        ("cfn_region=cn-north-1\n", {"AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-1"),
        ("cfn_regions=x\n", {}, None),
    ],
)
def test_the_clusters_region_is_asked_where_none_is_set(
    node: Node, text: str, environment: dict[str, str], region: str | None
) -> None:
    (node.root / "etc/parallelcluster").mkdir(parents=True)
    (node.root / "etc/parallelcluster/cfnconfig").write_text(text)
    (node.root / "aws.sh").write_text('echo "${AWS_DEFAULT_REGION-}" > "$PCLUSTER_POSTBOOT_ROOT/region"')
    assert node.install(**environment)[0] == 0
    assert node.lines("region") == [region or ""]
    assert node.called()[0]["env"].get("AWS_DEFAULT_REGION") == region


def test_hyperpods_region_and_its_time(node: Node) -> None:
    (node.root / "opt/ml/config").mkdir(parents=True)
    arn = "arn:aws-us-gov:sagemaker:us-gov-west-1:123456789012:cluster/abc123def456"
    text = json.dumps({"ClusterConfig": {"ClusterArn": arn, "ClusterName": "x"}, "InstanceGroups": []})
    (node.root / "opt/ml/config/resource_config.json").write_text(text)
    assert node.install()[0] == 0
    (call,) = node.called()
    assert call["env"]["AWS_DEFAULT_REGION"] == "us-gov-west-1"
    assert call["args"][call["args"].index("--budget") + 1] == "3600"
    assert node.lines("curl.log") == []


@pytest.mark.parametrize("mode", ["none", ""])
def test_mode_none_does_nothing(node: Node, mode: str) -> None:
    code, out, err = node.run("--mode", mode)
    assert (code, out, err) == (0, "pcluster-postboot: --mode is none: nothing is done\n", "")
    assert not node.opt.exists()
    assert node.lines("systemctl.log") == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--sha255", HEX], "argument --sha255 is unknown; there are --bundle "),
        (["--mode"], "--mode has no value"),
        (["--mode", "fast"], "--mode is fast; needed: auto, gpu, cpu or none"),
        (["--budget", "10m"], "--budget is 10m; needed: a number of seconds"),
        (["--defer", "true"], "--defer is true; needed: yes or no"),
        (["--hold", "1"], "argument 1 is unknown; there are --bundle "),
        (["--check"], "--check needs --installed"),
        (["--installed", "--bake"], "--bake with --installed needs --check"),
        (["--sha256", "abc"], "--sha256 is 'abc'; needed: the 64 hexadecimal digits"),
        (["--bundle", "bucket/key"], "--bundle is 'bucket/key'; needed: a URL that begins with s3://"),
        (["--bundle", "/nowhere.tar.gz"], "--bundle is /nowhere.tar.gz, which is not there"),
    ],
)
def test_a_wrong_argument_is_one_line(node: Node, arguments: list[str], line: str) -> None:
    assert node.fails(*arguments).startswith(line)


@pytest.mark.parametrize("arguments", [["--hold", "yes"], ["--hold", "no"], ["--hold"], ["--release"]])
def test_what_earlier_versions_took_is_told_and_fails_no_boot(node: Node, arguments: list[str]) -> None:
    code, out, err = node.install(*arguments, "--mode", "cpu")
    assert (code, err) == (0, "")
    told, bundle = out.splitlines()
    assert told.startswith(f"pcluster-postboot: {arguments[0]} does nothing any more: ParallelCluster 3.13 to 3.15 ")
    assert " is here after " in bundle
    assert node.called()[0]["args"][4] == "cpu"


def test_the_unit_of_an_earlier_version_ends_well(node: Node) -> None:
    node.install()
    code, out, err = node.run("--release")
    assert (code, err, out.count("\n"), len(node.called())) == (0, "", 1, 1)
    assert " --release does nothing any more: " in out


def test_a_reservation_of_an_earlier_version_is_ended(node: Node) -> None:
    note = node.root / "var/lib/pcluster-postboot/reservation"
    note.parent.mkdir(parents=True)
    note.write_text("postboot-gpu-st-p5-1\n")
    scontrol = node.program("../opt/slurm/bin/scontrol", 'echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/scontrol.log"')
    assert node.install()[::2] == (0, "")
    assert (node.lines("scontrol.log"), note.exists()) == (["delete ReservationName=postboot-gpu-st-p5-1"], False)
    note.write_text("postboot-gpu-st-p5-1\n")
    scontrol.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert node.install()[::2] == (0, "")
    assert "ends by itself, an hour after it was made: Unable to contact slurm controller" in node.log.read_text()
    assert not note.exists()


def test_where_both_streams_are_one_log_the_line_is_there_once(node: Node) -> None:
    out, _err = node.start("--mode", "fast", stderr=subprocess.STDOUT).communicate(timeout=60)
    assert out == f"pcluster-postboot: --mode is fast; needed: auto, gpu, cpu or none; see {node.log}\n"


def test_numbers_are_decimal(node: Node) -> None:
    node.install("--budget", "0900")
    args = node.called()[0]["args"]
    assert args[args.index("--budget") + 1] == "900"


def test_a_wrong_sha256_is_one_line_and_the_next_run_completes(node: Node) -> None:
    size = (node.root / "s3.tar.gz").stat().st_size
    line = node.fails(sha256=HEX)
    assert line == (f"{URL} is not what --sha256 says: its {size} bytes have the sha256 {node.sha256}; needed: {HEX}")
    assert node.installed() == []
    assert node.install()[0] == 0


def told(node: Node) -> dict[str, str]:
    """What others can read of the node while it boots."""
    (path,) = (node.root / "opt/slurm/pcluster-postboot/boots").iterdir()
    return {"file": path.name, **record.parse(path.read_text())}


def test_others_can_read_how_far_it_is_and_why_it_failed(node: Node) -> None:
    (node.root / "opt/slurm").mkdir(parents=True)
    for path, text in (
        ("etc/parallelcluster/slurm_plugin/slurm_nodename", "cpu-st-c5-1\n"),
        ("var/lib/cloud/data/instance-id", "i-0123456789abcdef0\n"),
    ):
        (node.root / path).parent.mkdir(parents=True, exist_ok=True)
        (node.root / path).write_text(text)
    line = node.fails(sha256=HEX)
    assert (told(node)["stage"], told(node)["why"]) == ("failed", line)
    assert node.run("--sha256", "x")[0] == 1
    assert told(node)["why"].startswith("--sha256 is 'x'; needed: the 64 hexadecimal digits")
    begin = int(time.time())
    assert node.install("--budget", "500")[0] == 0
    found = told(node)
    assert (found["file"], found["node"], found["stage"]) == ("cpu-st-c5-1", "cpu-st-c5-1", "bundle")
    assert found["instance"] == "i-0123456789abcdef0"
    # The deadline is set first.
    assert begin <= int(found["deadline"]) - 500 <= int(found["since"]) <= time.time()


@pytest.mark.parametrize("how", ["none", "read-only", "hangs"])
def test_a_boot_does_not_need_anybody_to_read_it(node: Node, how: str) -> None:
    if how == "read-only":
        (node.root / "opt/slurm").mkdir(parents=True)
        (node.root / "opt/slurm/pcluster-postboot").write_text("a file in the way, which root cannot pass either")
    if how == "hangs":
        (node.root / "opt/slurm").mkdir(parents=True)
        node.program("mkdir", 'case "$*" in */boots) exec /bin/sleep 600 ;; *) exec /bin/mkdir "$@" ;; esac')
    start = time.monotonic()
    assert node.install(PATH=f"{node.root}/bin:/usr/bin:/bin")[0] == 0
    assert time.monotonic() - start < PATIENCE
    assert ("cannot be told" in node.log.read_text()) is (how != "none")
    assert len(node.called()) == 1


def test_a_bundle_that_is_none_is_refused(node: Node) -> None:
    (node.root / "s3.tar.gz").write_bytes(b"no archive")
    sha256 = hashlib.sha256(b"no archive").hexdigest()
    assert node.fails(sha256=sha256).startswith("the bundle cannot be unpacked: tar: ")


FATAL = "echo 'fatal error: An error occurred (%s' >&2; exit 1"


@pytest.mark.parametrize(
    ("code", "told", "lasts"),
    [
        (FATAL % "403) when calling the HeadObject operation: Forbidden", "(403)", True),
        (FATAL % "404) when calling the HeadObject operation: Key x does not exist", "(404)", True),
        (FATAL % "AccessDenied) when calling the GetObject operation: Access Denied", "(AccessDenied)", True),
        (
            "head -c 100 /dev/zero > \"$file\"; echo '[Errno 28] No space left on device' >&2; exit 1",
            "No space left",
            True,
        ),
        (FATAL % "503) when calling the HeadObject operation (reached max retries: 2): Slow Down", "(503)", False),
        ("echo; echo 'fatal error: Unable to locate credentials' >&2; exit 1", "Unable to locate credentials", False),
        ("exit 1", "no message", False),
    ],
)
def test_a_download_that_fails_is_tried_again_and_then_one_line(node: Node, code: str, told: str, lasts: bool) -> None:
    """For a quarter of the budget, but thrice where nothing gets better by itself."""
    (node.root / "aws.sh").write_text(code)
    start = time.monotonic()
    line = node.fails("--budget", "900" if lasts else "8")
    assert line.startswith(f"{URL} cannot be read: ")
    assert told in line
    assert line.endswith(f" MB are free in {node.opt})")
    tries = len(node.lines("aws.log"))
    if lasts:
        assert tries == 3
    else:
        assert tries >= 3
        assert time.monotonic() - start >= 2
    (node.root / "aws.sh").unlink()
    assert node.install()[0] == 0


def test_s3_that_is_busy_for_a_while_costs_no_node(node: Node) -> None:
    busy = 'echo . >> "$PCLUSTER_POSTBOOT_ROOT/tries"; [ "$(wc -l < "$PCLUSTER_POSTBOOT_ROOT/tries")" -gt 6 ] || '
    (node.root / "aws.sh").write_text(busy + "{ echo 'Could not connect to the endpoint URL' >&2; exit 255; }")
    assert node.install()[::2] == (0, "")
    assert len(node.lines("aws.log")) == 7
    assert "download, attempt 6: Could not connect to the endpoint URL" in node.log.read_text()
    pauses = [int(one) for one in node.lines("sleep.log")]
    limits = ((1, 2), (2, 5), (4, 11), (8, 23), (16, 47), (16, 47))
    assert len(pauses) == len(limits)
    assert all(low <= one <= high for one, (low, high) in zip(pauses, limits)), pauses


def test_a_download_that_fails_once_is_no_failure(node: Node) -> None:
    (node.root / "aws.sh").write_text('rm -f "$PCLUSTER_POSTBOOT_ROOT/aws.sh"; exit 1')
    assert node.install()[::2] == (0, "")
    assert len(node.lines("aws.log")) == 2


def test_a_download_that_takes_too_long_ends_within_the_budget(node: Node) -> None:
    (node.root / "aws.sh").write_text('head -c 300000 /dev/zero > "$file"; exec /bin/sleep 600')
    start = time.monotonic()
    line = node.fails("--budget", "4")
    assert time.monotonic() - start < PATIENCE
    assert line.startswith(f"{URL} could not be read within the budget of 4 s; ")
    assert int(line.split("; ")[1].split(" KB")[0]) >= 293
    (node.root / "aws.sh").unlink()
    assert node.install()[0] == 0


def test_a_download_that_outlives_a_killed_run_holds_no_lock(node: Node) -> None:
    (node.root / "aws.sh").write_text("for file in 4 9; do [ ! -e /proc/$$/fd/$file ] || exit 1; done; file=$last")
    aws = (node.root / "bin/aws").read_text()
    (node.root / "bin/aws").write_text(aws.replace("do :; done", "do last=$file; done"))
    assert node.install()[::2] == (0, "")
    assert len(node.lines("aws.log")) == 1


def test_all_tries_of_a_download_have_the_budget_together(node: Node) -> None:
    (node.root / "aws.sh").write_text("/bin/sleep 1; exit 1")
    assert "could not be read within the budget of 2 s" in node.fails("--budget", "2")
    assert len(node.lines("aws.log")) <= 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with lab.serving_files(tmp_path / "web") as url:
        yield url


def test_a_bundle_comes_over_http_or_from_a_file(node: Node, tmp_path: Path, server: str) -> None:
    line = node.fails("--bundle", f"{server}/b.tar.gz?X-Amz-Signature=secret")
    assert line.startswith(f"{server}/b.tar.gz cannot be read: curl: (22) ")
    assert "secret" not in node.log.read_text()
    shutil.copy(node.root / "s3.tar.gz", tmp_path / "web/b.tar.gz")
    assert node.install("--bundle", f"{server}/b.tar.gz?X-Amz-Signature=secret")[0] == 0
    shutil.rmtree(node.opt)
    shutil.copy(node.root / "s3.tar.gz", tmp_path / "web/b[1-2].tar.gz")
    assert node.install("--bundle", f"{server}/b[1-2].tar.gz")[0] == 0
    other = node.publish("2.0.0")
    assert node.install("--bundle", str(node.root / "s3.tar.gz"), sha256=other)[0] == 0
    assert (node.root / "s3.tar.gz").exists()
    assert [name.split("-")[0] for name in node.installed()] == ["1.0.0", "2.0.0"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 2}, "the bundle has format 2; needed: 1, or the bootstrap.sh that was published with it"),
        ({"architectures": ["s390x"]}, f"the bundle is for s390x; needed: one for {platform.machine()}"),
        ({"pythons": ["3.99"]}, "no Python fits ("),
    ],
)
def test_a_bundle_for_other_nodes_is_refused(node: Node, changes: dict[str, Any], told: str) -> None:
    assert told in node.fails(sha256=node.publish(**changes))


# Only who asks for the version is told another.
PYTHON = f'case "$*" in *version_info*) echo {{}}; exit ;; esac; exec "{sys.executable}" "$@"'


def test_the_system_is_asked_for_a_python_before_parallelcluster(node: Node) -> None:
    own = node.root / "opt/parallelcluster/pyenv/versions/3.14.10/bin/python3"
    for path, prints in ((node.root / "bin/python3", "3.9"), (own, VERSION)):
        node.program(os.path.relpath(path, node.root / "bin"), PYTHON.format(prints))
    for version in ("3.11", "3.12", "3.13", "3.14"):
        node.program(f"python{version}", "echo 3.9")
    assert node.install()[0] == 0
    assert f"an environment of {own} is there" in node.log.read_text()
    node.program("python3.11", PYTHON.format(VERSION))
    shutil.rmtree(node.opt)
    assert node.install()[0] == 0
    assert f"an environment of {node.root}/bin/python3.11 is there" in node.log.read_text()


def test_where_no_python_fits_all_that_were_found_are_named(node: Node) -> None:
    for version in ("3", "3.11", "3.12", "3.13", "3.14"):
        node.program(f"python{version}", PYTHON.format("3.9"))
    line = node.fails()
    assert line.startswith("no Python fits (")
    assert f"{node.root}/bin/python3 is 3.9" in line
    assert line.endswith(f"); needed: one of {VERSION}, in the image or named by --python")
    line = node.fails("--python", "/nowhere/python")
    assert line == f"--python: /nowhere/python is none; needed: one of {VERSION}"


def test_on_hyperpod_the_system_brings_a_python_that_fits(node: Node) -> None:
    bundle = node.publish(pythons=["3.99"])
    brought = f'case "$*" in *version_info*) echo 3.99 ;; *) exec "{sys.executable}" "$@" ;; esac'
    node.program("new-python", brought)
    install = "case $3 in install) cp bin/new-python bin/python3.11 ;; esac"
    node.program("apt-get", f'cd "$PCLUSTER_POSTBOOT_ROOT"\necho "$@" >> apt.log\n{install}')
    assert node.fails(sha256=bundle).startswith("no Python fits (")
    assert node.lines("apt.log") == []
    (node.root / "opt/ml/config").mkdir(parents=True)
    (node.root / "opt/ml/config/resource_config.json").write_text("{}")
    code, out, _err = node.install(sha256=bundle)
    assert (code, "apt-get has brought python3.11 after" in out) == (0, True)
    assert node.lines("apt.log") == [
        "--option DPkg::Lock::Timeout=300 update",
        "--option DPkg::Lock::Timeout=300 install --yes --no-install-recommends python3.11",
    ]


def test_on_hyperpod_a_system_without_a_python_that_fits_says_why(node: Node) -> None:
    (node.root / "opt/ml/config").mkdir(parents=True)
    (node.root / "opt/ml/config/resource_config.json").write_text("{}")
    node.program("apt-get", "echo 'E: Unable to locate package python3.11' >&2; exit 100")
    line = node.fails(sha256=node.publish(pythons=["3.99"]))
    assert line.endswith("), and apt-get brings no python3.11: E: Unable to locate package python3.11")


def test_without_uv_pythons_own_venv_and_pip_do(node: Node) -> None:
    # Nothing is to be installed, so pip needs nothing of a wheelhouse that is not there.
    assert node.install(sha256=node.publish(uv=False))[0] == 0
    assert (node.opt / "current/venv/bin/pip").exists()
    assert node.lines("uv.log") == []


def test_a_full_disk_is_one_line_and_the_next_run_completes(node: Node) -> None:
    (node.root / "uv.fails").touch()
    line = node.fails()
    assert "No space left on device (os error 28) (" in line
    assert not (node.opt / "current").exists()
    (node.root / "uv.fails").unlink()
    assert node.install()[0] == 0
    assert len(node.lines("aws.log")) == 2  # what is not known to be whole is not believed


@pytest.mark.parametrize("at", ["aws", "ln"])
def test_a_run_that_was_killed_is_finished_by_the_next(node: Node, at: str) -> None:
    hang = 'touch "$PCLUSTER_POSTBOOT_ROOT/hangs"; exec /bin/sleep 60'
    if at == "aws":
        (node.root / "aws.sh").write_text(hang)
    else:
        node.program("ln", hang)
    process = node.start("--bundle", URL, "--sha256", node.sha256)
    until((node.root / "hangs").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (node.opt / "current").exists()
    assert len(list(node.opt.glob(".incoming.*"))) == 1
    for name in ("aws.sh", "bin/ln"):
        (node.root / name).unlink(missing_ok=True)
    assert node.install()[0] == 0
    assert sorted(path.name for path in node.opt.iterdir()) == [*node.installed(), "current", "mode"]


def test_from_one_version_to_the_next_and_back(node: Node) -> None:
    old = node.sha256
    assert node.install()[0] == 0
    new = node.publish("1.1.0")
    assert node.install(sha256=new)[0] == 0
    assert os.readlink(node.opt / "current") == f"1.1.0-{new[:12]}"
    fetched = node.lines("aws.log")
    assert node.install(sha256=old)[0] == 0
    assert os.readlink(node.opt / "current") == f"1.0.0-{old[:12]}"
    assert node.lines("aws.log") == fetched
    assert len(node.installed()) == 2


def test_a_file_that_others_can_change_is_verified_as_it_is_used(node: Node, tmp_path: Path) -> None:
    shared, good = tmp_path / "shared.tar.gz", node.sha256
    shutil.copy(node.root / "s3.tar.gz", shared)
    node.publish("6.6.6")
    # Somebody puts another archive in its place as soon as it was read.
    code = f'/usr/bin/sha256sum "$@"; cp "$PCLUSTER_POSTBOOT_ROOT/s3.tar.gz" {shared}'
    node.program("sha256sum", code)
    assert node.install("--bundle", str(shared), sha256=good)[0] == 0
    assert node.installed() == [f"1.0.0-{good[:12]}"]


def test_nobody_else_can_hold_its_lock(node: Node) -> None:
    node.install()
    assert (node.root / "run/pcluster-postboot/bootstrap.lock").stat().st_mode & 0o777 == 0o600
    assert node.log.parent.stat().st_mode & 0o777 == 0o755


def test_who_starts_it_decides_no_modes(node: Node) -> None:
    before = os.umask(0o077)
    try:
        assert node.install()[0] == 0
    finally:
        os.umask(before)
    paths = (node.opt, node.log.parent, node.root / "run/pcluster-postboot", node.opt / "mode")
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o755, 0o755, 0o755, 0o644]


def test_an_environment_counts_once_it_is_on_the_disk(node: Node) -> None:
    node.program("sync", 'test ! -e "$2/.complete" && echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/sync.log"')
    assert node.install()[0] == 0
    assert node.install()[0] == 0
    assert node.lines("sync.log") == [f"--file-system {node.opt}/1.0.0-{node.sha256[:12]}"]


def test_what_the_system_prints_by_itself_is_no_part_of_the_bundle(node: Node) -> None:
    noise = 'case "$*" in *" -S "*) ;; *) echo "Error processing line 1 of /x.pth:" >&2 ;; esac'
    node.program("python3", f'{noise}\nexec "{sys.executable}" "$@"')
    assert node.install()[::2] == (0, "")


def test_an_environment_that_was_half_made_again_is_not_believed(node: Node) -> None:
    node.install()
    home = node.opt / os.readlink(node.opt / "current")
    (home / "venv/bin/python").unlink()
    (node.root / "uv.fails").touch()
    assert node.run("--installed")[0] == 1
    assert not (home / ".complete").exists()
    (node.root / "uv.fails").unlink()
    made = len(node.lines("uv.log"))
    assert node.run("--installed")[0] == 0
    assert (home / ".complete").exists()
    assert node.run("--installed")[0] == 0
    assert len(node.lines("uv.log")) == made + 2


def test_what_a_crash_has_left_is_fetched_again(node: Node) -> None:
    home = node.opt / f"1.0.0-{node.sha256[:12]}"
    mine = node.opt / "my-notes"
    for path in (home, node.opt / "0.9.0-000000000000", mine):
        path.mkdir(parents=True)
        (path / "bundle.json").touch()
    assert node.install()[0] == 0
    assert node.installed() == [home.name, mine.name]
    assert (home / ".complete").exists()


def test_a_clock_that_is_wrong_removes_other_bundles_only(node: Node) -> None:
    for version in ("1", "2", "3"):
        assert node.install(sha256=node.publish(version))[0] == 0
    ahead = time.time() + 1e6
    for path in sorted(node.opt.glob("[1-3]*/.complete")):
        os.utime(path, (ahead, ahead))
        ahead += 1
    assert node.install(sha256=node.publish("4"))[0] == 0
    assert [name.split("-")[0] for name in node.installed()] == ["2", "3", "4"]


def test_three_versions_stay_those_that_were_used_last(node: Node) -> None:
    first = node.sha256
    assert node.install()[0] == 0
    for version in ("2", "3", "4"):
        assert node.install(sha256=node.publish(version))[0] == 0
        if version == "3":
            assert node.install(sha256=first)[0] == 0
    assert [name.split("-")[0] for name in node.installed()] == ["1.0.0", "3", "4"]


def test_the_service_is_stopped_first(node: Node) -> None:
    node.install()
    assert not [line for line in node.lines("systemctl.log") if line.startswith("stop")]
    (node.root / "state").write_text("activating\n")
    assert node.install()[0] == 0
    assert "stop pcluster-postboot.service" in node.lines("systemctl.log")


def test_a_service_that_was_stopped_for_nothing_goes_on(node: Node) -> None:
    node.install()
    (node.root / "state").write_text("active\n")
    (node.root / "aws.sh").write_text(FATAL % "404) when calling the HeadObject operation: Not Found")
    code, _out, err = node.install(sha256=node.publish("2"))
    assert (code, err.count("\n")) == (1, 1)
    assert node.lines("systemctl.log")[-1] == "start --no-block pcluster-postboot.service"
    # The first has not touched it, and the second leaves it to the run, which is told.
    (node.root / "systemctl.log").unlink()
    (node.root / "aws.sh").unlink()
    assert node.install("--budget", "x")[0] == 1
    (node.root / "fails").touch()
    assert node.install()[0] == 1
    assert not [line for line in node.lines("systemctl.log") if line.startswith("start")]
    assert " --stopped yes " in " ".join(node.called()[-1]["args"])


def test_a_service_that_another_run_has_started_is_stopped_too(node: Node) -> None:
    lock = node.root / "run/pcluster-postboot/bootstrap.lock"
    lock.parent.mkdir(parents=True)
    node.program("flock", 'touch "$PCLUSTER_POSTBOOT_ROOT/waits"; exec /usr/bin/flock "$@"')
    with open(lock, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        process = node.start("--bundle", URL, "--sha256", node.sha256)
        until((node.root / "waits").exists)
        (node.root / "state").write_text("active\n")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert node.lines("systemctl.log")[-1] == "stop pcluster-postboot.service"


def test_the_service_runs_what_is_installed(node: Node) -> None:
    code, _out, err = node.run("--installed")
    assert code == 1
    assert "nothing is installed in " in err
    node.install("--mode", "gpu")
    home = str(node.opt / os.readlink(node.opt / "current"))
    assert node.run("--installed")[0] == 0
    assert node.run("--installed", "--check")[0] == 0
    assert [call["args"] for call in node.called()[1:]] == [
        ["later", "--home", home, "--mode", "gpu"],
        ["check", "--home", home, "--mode", "gpu"],
    ]
    # The service waits for slurmd, and takes the lock again by itself.
    assert [call["locked"] for call in node.called()] == [True, False, True]
    assert not [line for line in node.lines("systemctl.log") if line.startswith("stop")]


def test_an_image_has_the_bundle_that_its_nodes_then_need_not_fetch(node: Node) -> None:
    assert node.install("--bake")[0] == 0
    home = node.opt / f"1.0.0-{node.sha256[:12]}"
    assert os.readlink(node.opt / "current") == home.name
    assert node.run("--installed", "--bake", "--check")[0] == 0
    bake, baked = node.called()
    assert bake["args"][:5] == ["bake", "--home", str(home), "--mode", "auto"]
    assert baked["args"] == ["baked", "--home", str(home), "--mode", "auto"]
    assert node.lines("curl.log") == []  # nobody is asked for the time that a boot has left
    assert node.install()[0] == 0
    assert node.called()[-1]["args"][0] == "boot"
    assert (len(node.lines("aws.log")), len(node.lines("uv.log"))) == (1, 2)


def test_one_at_a_time(node: Node) -> None:
    (node.root / "run/pcluster-postboot").mkdir(parents=True)
    with open(node.root / "run/pcluster-postboot/bootstrap.lock", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert node.fails("--budget", "1") == "another bootstrap.sh is at work, and has not ended within 1 s"
    assert node.install()[0] == 0


def test_it_ends_as_the_run_does(node: Node) -> None:
    (node.root / "fails").touch()
    assert node.install()[::2] == (1, "pcluster-postboot: docker failed\n")


def budget_of(node: Node, kind: str, config: str, up: int, launched: str = "") -> int:
    """Return the budget of a node that is up for so many seconds, and was launched at that time, if EC2 tells."""
    shared = "shared_login_nodes" if kind == "LoginNode" else "shared"
    files = {
        "etc/chef/dna.json": json.dumps({"cluster": DNA[kind]}, indent=2),
        "etc/parallelcluster/cfnconfig": f"cfn_node_type={kind}\n",
        f"opt/parallelcluster/{shared}/cluster-config.yaml": CONFIGS[config],
    }
    for name, text in files.items():
        (node.root / name).parent.mkdir(parents=True, exist_ok=True)
        (node.root / name).write_text(text)
    (node.root / "since").write_text(f"  {up}\n")
    if launched:
        identity = {"instanceType": "p5.48xlarge", "pendingTime": launched, "region": "us-east-1"}
        (node.root / "identity.json").write_text(json.dumps(identity, indent=2).replace('": ', '" : '))
    code, _out, err = node.install()
    assert (code, err) == (0, "")
    args = node.called()[0]["args"]
    return int(args[args.index("--budget") + 1])


@pytest.mark.parametrize(
    ("kind", "config", "up", "budget"),
    [
        ("ComputeFleet", "", 100, 1700),  # 2100 by default
        ("ComputeFleet", "3.13.2", 100, 2000),
        ("ComputeFleet", "3.16.1", 100, 2000),
        ("ComputeFleet", "3.16.1", 2350, 60),
        ("ComputeFleet", "3.16.1", 500000, 2100),  # long after its boot
        ("HeadNode", "", 100, 650),  # half of 2100
        ("HeadNode", "3.16.1", 100, 1400),
        ("HeadNode", "3.16.1", 500000, 1500),  # an update of the cluster
        ("LoginNode", "", 100, 200),  # the launch hook's 600, whatever is configured
        ("LoginNode", "3.16.1", 100, 200),
        ("LoginNode", "3.16.1", 280, 60),
    ],
)
def test_the_budget_is_what_parallelcluster_leaves(node: Node, kind: str, config: str, up: int, budget: int) -> None:
    assert budget_of(node, kind, config, up) == budget


@pytest.mark.parametrize(
    ("kind", "up", "ago", "budget"),
    [
        ("ComputeFleet", 100, 400, 1820),  # a boot that began five minutes after the launch
        ("HeadNode", 100, 160, 1460),
        ("LoginNode", 100, 160, 260),
        ("ComputeFleet", 100, 50, 2000),  # a clock that is behind
        ("ComputeFleet", 100, 90000, 2000),  # a reboot
        ("ComputeFleet", 90000, 90100, 2100),  # long after its boot
    ],
)
def test_the_time_since_the_launch_counts_where_ec2_tells_it(
    node: Node, kind: str, up: int, ago: int, budget: int
) -> None:
    now = 1795341600
    node.program("date", f'if [ "$*" = +%s ]; then echo {now}; else exec /bin/date "$@"; fi')
    launched = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - ago))
    assert budget_of(node, kind, "3.16.1", up, launched) == budget
    assert all("--max-time 2" in line and "--noproxy *" in line for line in node.lines("curl.log"))


def test_a_node_that_nothing_is_known_of_has_the_default(node: Node) -> None:
    node.install()
    args = node.called()[0]["args"]
    assert args[args.index("--budget") + 1] == "1758"


def test_nobody_is_asked_for_the_time_where_a_budget_is_given(node: Node) -> None:
    node.install("--budget", "500")
    assert node.lines("curl.log") == []


@pytest.mark.parametrize(("size", "kept"), [(10_000_000, False), (10_000_001, True)])
def test_a_long_log_is_begun_anew(node: Node, size: int, kept: bool) -> None:
    node.log.parent.mkdir(parents=True)
    node.log.write_bytes(b"x" * size)
    assert node.run("--mode", "none")[0] == 0
    assert (node.log.stat().st_size < 1000) is kept
    assert (node.log.parent / "pull.log.1").exists() is kept


@pytest.fixture
def full() -> Iterator[Path]:
    """This machine's full device, whose mode bootstrap.sh changes where root runs the test."""
    device = Path("/dev/full")
    mode = stat.S_IMODE(device.stat().st_mode)
    yield device
    if stat.S_IMODE(device.stat().st_mode) != mode:
        device.chmod(mode)


def test_a_log_that_cannot_be_written_is_told(node: Node, full: Path) -> None:
    node.log.parent.mkdir(parents=True)
    node.log.symlink_to(full)
    code, _out, err = node.install()
    assert code == 1
    assert err.count("\n") == 1
    assert "cannot be written" in err


def test_parallelclusters_executor_changes_nothing_in_it() -> None:
    content = SCRIPT.read_bytes()
    assert content.startswith(b"#!/usr/bin/env bash\n")
    assert b"\r" not in content
    assert content.isascii()


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
def test_shellcheck_has_nothing_to_say() -> None:
    subprocess.run(["shellcheck", SCRIPT], check=True)

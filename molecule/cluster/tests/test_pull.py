# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node that configures itself: a spare boots with the CustomActions that publish.yml prints, and meets faults."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testinfra.backend.base import CommandResult
from testinfra.host import Host

from .bundles import Bundle, republish
from .helpers import On, Play, joined, ok, variables

SPARE = "burst-dy-c5-1"
OPT, LOG = "/opt/pcluster-postboot", "/var/log/pcluster-postboot/pull.log"
EXECUTOR = "/opt/parallelcluster/scripts/fetch_and_run -postinstall --cluster-configuration /root/actions.json"
PATH = "/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin:/opt/aws/bin"
# Nothing listens there, and no request goes beyond the node.
NOBODY = "127.0.0.1"


@pytest.fixture(scope="module")
def newer(s3: Any, bundle: Bundle) -> Bundle:
    """A newer version. Its node waits for an NCCL that nobody has published yet, and asks again after 3 s."""
    waits = {"nccl_enabled": True, "nccl_dir": "/fsx/late", "nccl_wait": 0, "pull_retry_interval": 3}
    return republish(s3, bundle, "99.0.0", waits)


@pytest.fixture(scope="module")
def spare(on: On, bundle: Bundle) -> Iterator[Host]:
    """The spare: a job asks for it, ParallelCluster launches it, and it boots with the bundle as its custom action."""
    assert bundle.name
    with joined(SPARE):
        yield on(SPARE)


def act(spare: Host, *actions: dict[str, Any]) -> CommandResult:
    """Run custom actions on the spare, as its next boot would."""
    queue = {"Name": "burst", "CustomActions": {"OnNodeConfigured": {"Sequence": list(actions)}}}
    config = {"Scheduling": {"SlurmQueues": [queue]}}
    spare.check_output("printf %%s %s > /root/actions.json", json.dumps(config))
    return spare.run(f"env -i PATH={PATH} {EXECUTOR}")


def report(spare: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(spare.file("/var/lib/pcluster-postboot/report.json").content_string)
    return found


def status(spare: Host) -> dict[str, str]:
    return {entry["name"]: entry["status"] for entry in report(spare)["components"]}


def settle(spare: Host, seconds: float = 120) -> None:
    """Wait until the service has done what a boot had left."""
    end = time.monotonic() + seconds
    while spare.run("systemctl show -p ActiveState --value pcluster-postboot").stdout.strip() != "inactive":
        assert time.monotonic() < end, spare.run(f"tail -n 30 {LOG}").stdout
        time.sleep(0.5)


def test_a_node_boots_configured(spare: Host, bundle: Bundle) -> None:
    """Before slurmd starts, by ParallelCluster's executor; what is deferred comes after it."""
    said = spare.file("/var/log/cloud-init-output.log").content_string
    lines = [line for line in said.splitlines() if line.startswith("pcluster-postboot: ")]
    assert len(lines) == 2, said
    assert re.search(rf"the bundle {bundle.name} is here after \d", lines[0])
    assert re.search(r"deferred: .*node_exporter.*; pcluster-postboot.service goes on", lines[1])
    settle(spare)
    found = report(spare)
    assert (found["outcome"], found["phase"]) == ("ok", "later"), found
    assert set(status(spare).values()) <= {"unchanged", "changed", "skipped"}, found
    log = spare.file(LOG).content_string
    first = re.findall(r"^(\S+) pull: site begins: phase (\w+)", log, re.M)
    up = spare.check_output('date -ud "$(systemctl show -p ActiveEnterTimestamp --value slurmd)" +%FT%TZ')
    assert [phase for _at, phase in first] == ["boot", "later"]
    assert first[0][0] < up
    # With the newest ansible-core, which official images have Python for.
    assert "[core 2.21" in spare.check_output(f"{OPT}/current/venv/bin/ansible --version")
    assert spare.service("docker").is_running
    assert "nodename" in spare.check_output("curl -sf http://localhost:9100/metrics")
    assert spare.service("pcluster-postboot").is_enabled


def test_the_next_boot_changes_nothing(spare: Host, bundle: Bundle) -> None:
    settle(spare)
    before = spare.check_output(f"ls -i --time-style=full-iso -l {OPT}/{bundle.name}/venv/bin")
    done = act(spare, bundle.action())
    assert done.rc == 0, done.stdout
    assert re.search(r"are as they should be, 0 changes, ", done.stdout)
    settle(spare)
    assert report(spare)["changed"] == 0, report(spare)
    assert spare.check_output(f"ls -i --time-style=full-iso -l {OPT}/{bundle.name}/venv/bin") == before


def test_modes_of_the_runbooks(spare: Host, bundle: Bundle) -> None:
    done = act(spare, bundle.action(mode="none"), bundle.action(mode=""))
    assert done.rc == 0
    assert done.stdout.count("--mode is none: nothing is done") == 2
    done = act(spare, bundle.action(mode="gpu"))
    assert done.rc == 1
    assert "common_mode is gpu, and this node has no NVIDIA GPU" in done.stdout


# A server on the node itself, as far as the AWS CLI can tell: one that refuses, and one that takes its time.
SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(403 if sys.argv[1] == "refuse" else 200)
        self.send_header("Content-Length", "1000000" if sys.argv[1] == "slow" else "0")
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Sat, 21 Nov 2026 09:00:00 GMT")
        self.end_headers()
    def do_GET(self):
        self.do_HEAD()
        while sys.argv[1] == "slow":
            self.wfile.write(b"x" * 100)
            time.sleep(0.2)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.fixture
def fault(spare: Host, s3: Any) -> Iterator[Callable[[str], dict[str, Any]]]:
    """A function that makes a custom action which breaks the node, after the downloads and before bootstrap.sh."""
    # The script ends its lines as an editor on Windows does.
    s3.put_object(Key="bundles/fault.sh", Body=b'#!/bin/bash\r\nexec bash -ec "$1"\r\n')
    spare.check_output("cp /etc/hosts /root/hosts; printf %%s %s > /root/server.py", SERVER)

    def action(command: str) -> dict[str, Any]:
        heal(spare)
        return {"Script": f"s3://{s3.name}/bundles/fault.sh", "Args": [command]}

    yield action
    heal(spare)


def heal(spare: Host) -> None:
    spare.check_output("cat /root/hosts > /etc/hosts")
    spare.run("systemctl stop faulty-server")


def points(name: str, address: str) -> str:
    """The command that gives a name another address."""
    return f"sed 's/^.*[[:space:]]{name}$/{address} {name}/' /root/hosts > /etc/hosts"


def serves(how: str, name: str = "aws", port: int = 5000) -> str:
    """The command that puts a server with a fault in another's place."""
    ready = f"timeout 10 sh -c 'until curl -s -o /dev/null -I http://{name}:{port}; do sleep 0.2; done'"
    start = f"systemd-run --quiet --unit=faulty-server python3 /root/server.py {how} {port}"
    return f"{start}; {points(name, NOBODY)}; {ready}"


def fails(spare: Host, *actions: dict[str, Any]) -> str:
    """Run custom actions that fail; return the one line that says why, in each log that ParallelCluster ships once."""
    done = act(spare, *actions)
    assert done.rc == 1, done.stdout
    (told,) = [one for one in done.stdout.splitlines() if f"; see {LOG}" in one]
    error = json.loads(spare.file("/var/log/parallelcluster/bootstrap_error_msg").content_string)
    assert error["detail"]["error"]["stderr"] == f"{told}\n"
    line = told.removeprefix("pcluster-postboot: ").removesuffix(f"; see {LOG}")
    last = spare.check_output(f"tail -n 1 {LOG}")
    assert re.match(rf"\d{{4}}-\d\d-\d\dT\S+Z \S+ failed: {re.escape(line)}$", last), last
    assert spare.run(f"ls -d {OPT}/.incoming.*").rc != 0
    spare.check_output("rm /var/log/parallelcluster/bootstrap_error_msg")
    return line


@pytest.mark.long
def test_faults_of_the_bundle_are_one_line(
    spare: Host, newer: Bundle, s3: Any, fault: Callable[[str], dict[str, Any]]
) -> None:
    """Each fault ends the boot before anything is touched."""
    settle(spare)
    current = spare.file(f"{OPT}/current").linked_to
    url = newer.args[1]
    line = fails(spare, newer.action(sha256="0" * 64))
    assert re.match(
        rf"{url} is not what --sha256 says: its \d+ bytes have the sha256 {newer.sha256}; needed: 0+$", line
    )

    whole = s3.Object(url.split("/", 3)[3]).get()["Body"].read()
    s3.put_object(Key="bundles/cut.tar.gz", Body=whole[: len(whole) // 2])
    line = fails(spare, newer.action(bundle=f"s3://{s3.name}/bundles/cut.tar.gz"))
    assert f"its {len(whole) // 2} bytes have the sha256" in line

    try:
        line = fails(spare, fault(f"mount -t tmpfs -o size={len(whole) // 2} tmpfs {OPT}"), newer.action())
    finally:
        spare.check_output(f"umount {OPT}")
    assert re.search(r"No space left on device.* \(\d+ MB are free in /opt/pcluster-postboot\)$", line), line

    line = fails(spare, fault(points("aws", NOBODY)), newer.action(budget="60"))
    assert re.search(r"cannot be read: .*Could not connect to the endpoint URL", line)

    line = fails(spare, fault(serves("refuse")), newer.action())
    assert re.search(r"cannot be read: .*\(403\).*Forbidden", line)

    line = fails(spare, fault(serves("slow")), newer.action(budget="5"))
    assert re.match(rf"{url} could not be read within the budget of 5 s; \d+ KB were there$", line)
    assert spare.file(f"{OPT}/current").linked_to == current


@pytest.mark.long
def test_a_newer_version_waits_for_the_head_and_the_older_one_comes_back(
    on: On, spare: Host, bundle: Bundle, newer: Bundle
) -> None:
    """What the head node has not published yet is deferred: the boot is well, and the service asks again."""
    head = on("head")
    done = act(spare, newer.action())
    assert done.rc == 0, done.stdout
    assert re.search(r"deferred: .*nccl\b.*; pcluster-postboot.service goes on", done.stdout)
    assert spare.file(f"{OPT}/current").linked_to == f"{OPT}/{newer.name}"
    spare.check_output(f"timeout 90 sh -c 'until grep -q \"deferred: nccl$\" {LOG}; do sleep 0.5; done'")
    assert status(spare)["nccl"] == "deferred"
    head.check_output("ln -s nccl /fsx/late")
    try:
        settle(spare)
    finally:
        head.check_output("rm /fsx/late")
    assert status(spare)["nccl"] in ("changed", "unchanged")
    assert "99.0.0" in spare.check_output("systemctl show -p Description --value node_exporter")
    job = f"/opt/slurm/bin/srun -p burst -w {SPARE} hostname"
    assert head.check_output(f"timeout 60 runuser -u ubuntu -- {job}") == SPARE

    done = act(spare, bundle.action())
    assert done.rc == 0, done.stdout
    settle(spare)
    assert spare.file(f"{OPT}/current").linked_to == f"{OPT}/{bundle.name}"
    assert "99.0.0" not in spare.check_output("systemctl show -p Description --value node_exporter")
    assert "nccl" not in [name for name, one in status(spare).items() if one in ("changed", "unchanged")]
    assert spare.run(f"ls -d {OPT}/{newer.name}").rc == 0


@pytest.mark.long
def test_the_fleet_goes_to_another_version_and_back(spare: Host, bundle: Bundle, s3: Any, play: Play) -> None:
    """From outside, by Run Command: what the node reports is what the table says."""
    settle(spare)
    other = republish(s3, bundle, "100.0.0", {"pull_retries": 25})
    for wanted, description in ((other, True), (bundle, False)):
        where = {"fleet_bundle": f"s3://{s3.name}/bundles/{wanted.name}", "fleet_sha256": wanted.sha256}
        result = ok(play("--limit", SPARE, *variables(**where), name="fleet"))
        assert re.search(r"^bundle +changed$", result.stdout, re.M), result.stdout[-3000:]
        assert re.search(r"^node_exporter +changed \d+s$", result.stdout, re.M), result.stdout[-3000:]
        assert spare.file(f"{OPT}/current").linked_to == f"{OPT}/{wanted.name}"
        assert ("100.0.0" in spare.check_output("systemctl show -p Description --value node_exporter")) is description
        assert report(spare)["phase"] == "all"


# docs/pull.md, "Take it away".
TAKE_AWAY = """
systemctl disable --now pcluster-postboot.service
rm /etc/systemd/system/pcluster-postboot.service
systemctl daemon-reload
rm -rf /opt/pcluster-postboot /var/log/pcluster-postboot
"""


@pytest.mark.long
def test_the_fleet_brings_a_bundle_to_head_and_login_nodes(on: On, bundle: Bundle, s3: Any, play: Play) -> None:
    """They had none; it is taken away again as the documentation says."""
    other = republish(s3, bundle, "101.0.0", {"pull_retries": 25})
    where = {"fleet_bundle": f"s3://{s3.name}/bundles/{other.name}", "fleet_sha256": other.sha256}
    try:
        ok(play("--limit", "head,login", *variables(**where), name="fleet", timeout=900))
        for name in ("head", "login"):
            assert on(name).file(f"{OPT}/current").linked_to == f"{OPT}/{other.name}"
            assert (report(on(name))["outcome"], report(on(name))["phase"]) == ("ok", "all"), report(on(name))
            assert "101.0.0" in on(name).check_output("systemctl show -p Description --value node_exporter")
    finally:
        for name in ("head", "login"):
            on(name).check_output(TAKE_AWAY)
        again = play("--limit", "head,login", "--tags", "node_exporter,pull")
    ok(again)


@pytest.mark.long
def test_a_boot_that_would_take_too_long(spare: Host, bundle: Bundle, fault: Callable[[str], dict[str, Any]]) -> None:
    """A mirror that is slow while Docker is installed: the time is up, and nothing of the run is left."""
    settle(spare)
    spare.check_output("apt-get purge -q -y docker-ce docker-ce-cli containerd.io")
    spare.check_output("rm -f /etc/apt/sources.list.d/docker.*")
    start = time.monotonic()
    line = fails(spare, fault(serves("slow", "mirror", 80)), bundle.action(budget="15"))
    assert time.monotonic() - start < 60
    assert re.match(
        r"the budget of 15 s is used up while docker was running, for \d+ s; .*not done yet: docker, ", line
    )
    needed = "a longer DevSettings/Timeouts/ComputeNodeBootstrapTimeout"
    assert f"; jobs would find the node unfinished; needed: {needed}" in line
    assert report(spare)["outcome"] == "stopped"
    assert not spare.file("/run/pcluster-postboot/lock").exists
    assert spare.run("pgrep -f '[a]nsible|[a]pt-get'").stdout == ""
    heal(spare)
    assert act(spare, bundle.action()).rc == 0
    settle(spare, 300)
    assert report(spare)["outcome"] == "ok", report(spare)
    assert spare.service("docker").is_running

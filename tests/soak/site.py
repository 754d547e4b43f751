# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""kill -9 of site.yml at random moments, then a plain rerun: converged, and each service got the restart it needed.

    .venv/bin/python tests/soak/site.py --rounds 100

Needs the sandbox (make sandbox). Each round takes something away from a node or makes it newer than the process that
uses it, starts site.yml on that node, kills it (in every other round with all that it runs on the node) at a random
moment, runs it again, and once more, which must change nothing. A round that fails names the seed that repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "molecule/cluster"
STATE = ROOT / ".sandbox"
AWS = yaml.safe_load((SCENARIO / "topology.yml").read_text())["services"]["aws"]["address"]
ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_CONFIG": str(SCENARIO / "ansible.cfg"),
    "AWS_ENDPOINT_URL": f"http://{AWS}:5000",
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "CONTAINERS_CONF": str(STATE / "containers.conf"),
}


@dataclass(frozen=True)
class Service:
    """One that must run afterwards, with a process no older than any of its files."""

    node: str
    name: str
    files: tuple[str, ...]
    address: str = ""


NODE_EXPORTER = Service(
    "cpu-st-c5-1",
    "node_exporter",
    ("/usr/local/bin/node_exporter", "/etc/systemd/system/node_exporter.service"),
    "http://localhost:9100/metrics",
)
DOCKER = Service("cpu-st-c5-1", "docker", ("/etc/docker/daemon.json", "/usr/bin/dockerd"))
PROMETHEUS = Service(
    "head",
    "prometheus",
    ("/usr/local/bin/prometheus", "/etc/systemd/system/prometheus.service"),
    "http://localhost:9090/-/ready",
)
RENEW = "cp -p {0} {0}.new && mv {0}.new {0}"
# What is done to a service before the run that will be killed.
DISTURBANCES: tuple[tuple[Service, str], ...] = (
    (NODE_EXPORTER, "systemctl disable --now node_exporter; rm {files}"),
    (NODE_EXPORTER, "rm {files}"),
    (NODE_EXPORTER, RENEW.format("/usr/local/bin/node_exporter")),
    (NODE_EXPORTER, "userdel node_exporter; systemctl kill --signal=KILL node_exporter"),
    (DOCKER, "rm -f /etc/docker/daemon.json"),
    (DOCKER, "DEBIAN_FRONTEND=noninteractive apt-get remove -y -q docker-ce docker-ce-cli containerd.io"),
    (PROMETHEUS, "systemctl disable --now prometheus; rm {files} /etc/prometheus/prometheus.yml"),
    (PROMETHEUS, RENEW.format("/usr/local/bin/prometheus")),
    (PROMETHEUS, "systemctl disable --now prometheus-targets.timer; rm /etc/systemd/system/prometheus-targets.*"),
)


class Broken(Exception):
    """What must hold does not."""


def on(node: str, command: str) -> str:
    line = ["podman", "exec", f"postboot-{node}", "bash", "-c", command]
    done = subprocess.run(line, env=ENVIRONMENT, text=True, capture_output=True, timeout=120, check=False)
    if done.returncode:
        raise Broken(f"{node}: {command}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def site(node: str) -> list[str]:
    program = Path(sys.executable).parent / "ansible-playbook"
    return [str(program), "-i", str(STATE / "inventory"), "pcluster.postboot.site", "--limit", node]


def converge(node: str) -> int:
    """Run site.yml to its end; return how many tasks changed something."""
    done = subprocess.run(site(node), env=ENVIRONMENT, text=True, capture_output=True, timeout=300, check=False)
    last = re.search(r"^pcluster\.postboot: .*?(\d+) changed, 0 failed", done.stdout, re.M)
    if done.returncode or not last:
        raise Broken(f"site.yml ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return int(last[1])


def kill(node: str, after: float, there_too: bool) -> None:
    """Start site.yml and kill it, with its modules on the node or without."""
    with subprocess.Popen(
        site(node), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        try:
            run.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            if there_too:
                # The shells that sudo started, and all that hangs on them: apt and dpkg as well.
                on(
                    node,
                    "for shell in $(pgrep -f 'BECOME-SUCCES[S]'); do pkill -9 -g $(ps -o pgid= -p $shell); done; true",
                )


def holds(service: Service) -> None:
    properties = "ActiveState,UnitFileState,ExecMainStartTimestampMonotonic"
    shown = on(service.node, f"systemctl show -p {properties} {service.name}")
    state = dict(line.split("=", 1) for line in shown.splitlines())
    if (state["ActiveState"], state["UnitFileState"]) != ("active", "enabled"):
        raise Broken(f"{service.node}: {service.name} is {state}")
    if service.address:
        on(service.node, f"curl -sf -o /dev/null {service.address}")
    started = time.time() - time.monotonic() + int(state["ExecMainStartTimestampMonotonic"]) / 1e6
    for line in on(service.node, f"stat --format '%Z %n' {' '.join(service.files)}").splitlines():
        changed, file = line.split()
        # %Z has whole seconds: a restart in the second of the change is a restart after it.
        if int(changed) > started:
            raise Broken(f"{service.node}: {service.name} has not been restarted since {file} changed")


def one_round(dice: random.Random, say: Callable[[str], None]) -> None:
    """Disturb, kill, rerun, and look."""
    service, how = dice.choice(DISTURBANCES)
    after, there_too = dice.uniform(1.0, 9.0), dice.random() < 0.5
    how = how.format(files=" ".join(service.files))
    say(f"{service.node}: {how}; killed after {after:.2f} s{', there too' if there_too else ''}")
    on(service.node, how)
    kill(service.node, after, there_too)
    converge(service.node)
    for one in (NODE_EXPORTER, DOCKER, PROMETHEUS):
        if one.node == service.node:
            holds(one)
    changed = converge(service.node)
    if changed:
        raise Broken(f"the second run after the kill changed {changed} more")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="the first round's seed, to repeat one")
    arguments = parser.parse_args()
    first = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    broken = 0
    for number in range(arguments.rounds):
        seed = first + number
        say = lambda text, seed=seed, number=number: print(  # noqa: E731
            f"{number + 1}/{arguments.rounds} seed {seed}: {text}", flush=True
        )
        try:
            one_round(random.Random(seed), say)
        except Broken as error:
            broken += 1
            say(f"BROKEN: {error}")
    print(f"{arguments.rounds} rounds, {broken} broken")
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())

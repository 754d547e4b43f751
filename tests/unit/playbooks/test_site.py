# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The main job with real Ansible: site.yml and its component.yml as they are, around components that only pretend.

Each host of the big run is one case, so that Ansible starts once for all of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.tests.waiting import until

COMPONENTS = ("alpha", "beta", "gamma")
# An action plugin in the place of a role's modules: it costs a fork, and no Python on a node.
FAKE = """
from __future__ import annotations
import os, time
from ansible.plugins.action import ActionBase

class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args, parent = self._task.args, os.getppid()
        while args.get("until") and not os.path.exists(args["until"]) and os.getppid() == parent:
            time.sleep(0.05)
        if args.get("facts"):
            return {"changed": False, "ansible_facts": {"pcluster": args["facts"]}}
        does = args.get("does")
        if does in ("wait", "lack"):
            return {"changed": False, "failed": does == "wait", "msg": "it broke", "waits_for": "no head yet"}
        msg = "it broke" if does != "steer" else "\\x1b[2Jit broke"
        return {"changed": does == "change", "failed": does in ("fail", "steer"), "msg": msg}
"""
TASKS = """
- name: main | Do the thing
  pcluster.postboot.fake:
    does: "{{ NAME_does }}"
    until: "{{ NAME_until }}"
  register: __NAME_thing
  notify: Restart NAME
- name: Do another
  pcluster.postboot.fake:
    does: nothing
  register: __NAME_other
"""
HANDLERS = """
- name: Restart NAME
  pcluster.postboot.fake:
    does: "{{ 'fail' if NAME_port == 666 else 'change' }}"
  register: __NAME_restart
"""
DEFAULTS = {
    "enabled": True,
    "essential": False,
    "does": "nothing",
    "until": "",
    "port": 1,
    "sha256": {"x86_64": "0" * 64},
}
TYPES = {"enabled": "bool", "essential": "bool", "does": "str", "until": "str", "port": "int", "sha256": "dict"}
NODE = {
    "is_parallelcluster": True,
    "node_type": "compute",
    "node_name": "q1-dy-a-1",
    "cluster": "main",
    "architecture": "x86_64",
    "os": {"family": "debian", "id": "ubuntu", "name": "ubuntu2404", "version": "24.04"},
    "gpus": {"count": 8},
    "efa": {"count": 0},
}


class Site:
    """A collection in which site.yml has the components of this test."""

    def __init__(self, repo: Path, root: Path) -> None:
        self.root, self.node = root, root / "node"
        top = root / "ansible_collections/pcluster/postboot"
        (top / "meta").mkdir(parents=True)
        # Not the real one, which would send node_facts to another action than the fake.
        (top / "meta/runtime.yml").write_text('requires_ansible: ">=2.19"\n')
        for name in ("deprecations.yml", "supported.yml"):
            (top / "meta" / name).symlink_to(repo / "meta" / name)
        shutil.copy(repo / "galaxy.yml", top / "galaxy.yml")
        for folder in ("action", "modules"):
            (top / "plugins" / folder).mkdir(parents=True)
            for name in ("check_variables", "node_run", "report"):
                (top / f"plugins/{folder}/{name}.py").symlink_to(repo / f"plugins/{folder}/{name}.py")
        for folder in ("callback", "filter", "module_utils", "plugin_utils"):
            (top / "plugins" / folder).symlink_to(repo / "plugins" / folder)
        for name in ("fake", "node_facts"):
            (top / f"plugins/action/{name}.py").write_text(FAKE)
            (top / f"plugins/modules/{name}.py").write_text("")
        # Python's own bytecode of a link would be written beside what it leads to.
        shutil.copytree(repo / "roles/common", top / "roles/common")
        for name in COMPONENTS:
            self._role(top / "roles" / name)
        (top / "playbooks/tasks").mkdir(parents=True)
        (top / "playbooks/callback_plugins").symlink_to(repo / "playbooks/callback_plugins")
        for name in ("tasks/component.yml", "find_nodes.yml"):
            shutil.copy(repo / "playbooks" / name, top / "playbooks" / name)
        plays = yaml.safe_load((repo / "playbooks/site.yml").read_text())
        (main,) = (task for task in plays[-1]["tasks"] if "block" in task)
        for task in main["block"]:
            if "pcluster.postboot.node_facts" in task:
                task["pcluster.postboot.node_facts"] = {"facts": "{{ node }}"}
            if "pcluster.postboot.check_variables" in task:
                task["pcluster.postboot.check_variables"]["components"] = list(COMPONENTS)
        real = {"ansible.builtin.import_tasks", "ansible.builtin.include_role"}
        main["block"] = [task for task in main["block"] if not real & set(task)] + [
            {
                "name": name,
                "ansible.builtin.import_tasks": "tasks/component.yml",
                "vars": {"postboot_component": name},
                "tags": [name],
            }
            for name in COMPONENTS
        ]
        (top / "playbooks/site.yml").write_text(yaml.safe_dump(plays, sort_keys=False))

    @staticmethod
    def _role(path: Path) -> None:
        name = path.name
        (path / "meta").mkdir(parents=True)
        defaults = {f"{name}_{key}": value for key, value in DEFAULTS.items()}
        defaults[f"{name}_enabled"] = "{{ node.gpus.count > 0 }}"
        options = {f"{name}_{key}": {"type": kind, "description": "x"} for key, kind in TYPES.items()}
        files: dict[str, Any] = {
            "defaults": defaults,
            "tasks": yaml.safe_load(TASKS.replace("NAME", name)),
            "handlers": yaml.safe_load(HANDLERS.replace("NAME", name)),
        }
        for folder, content in files.items():
            (path / folder).mkdir()
            (path / folder / "main.yml").write_text(yaml.safe_dump(content, sort_keys=False))
        (path / "meta/main.yml").write_text("dependencies: [pcluster.postboot.common]\n")
        (path / "meta/argument_specs.yml").write_text(
            yaml.safe_dump({"argument_specs": {"main": {"options": options}}})
        )

    def start(
        self,
        hosts: dict[str, Any],
        *arguments: str,
        playbooks: tuple[str, ...] = ("pcluster.postboot.site",),
        config: Path | None = None,
        progress: Path | None = None,
        **variables: Any,
    ) -> subprocess.Popen[str]:
        """Start the main job on hosts, each of which is a node with files of its own."""
        inventory: dict[str, Any] = {}
        for name, own in hosts.items():
            python = self.root / f"python-{name}"
            python.write_text(f'#!/bin/sh\nPCLUSTER_POSTBOOT_ROOT="{self.node}/{name}" exec "{sys.executable}" "$@"\n')
            python.chmod(0o755)
            inventory[name] = {"ansible_python_interpreter": str(python), **own}
        general = {"ansible_connection": "local", "ansible_become": False, "node": NODE, "common_hold_packages": []}
        file = self.root / f"inventory-{time.monotonic_ns()}.yml"
        file.write_text(
            yaml.safe_dump({"all": {"hosts": inventory, "vars": {**general, **variables}}}, sort_keys=False)
        )
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(self.root),
            "ANSIBLE_INJECT_FACT_VARS": "False",
            "ANSIBLE_FORKS": "4",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_DEPRECATION_WARNINGS": "False",
            "ANSIBLE_LOCAL_TEMP": str(self.root / "tmp"),
            "ANSIBLE_REMOTE_TEMP": str(self.root / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "200",
        }
        if config:
            environment["ANSIBLE_CONFIG"] = str(config)
        if progress:
            environment["PCLUSTER_POSTBOOT_PROGRESS"] = str(progress)
        command = [sys.executable, "-m", "ansible", "playbook", "-i", str(file), *playbooks, *arguments]
        return subprocess.Popen(
            command, env=environment, cwd=self.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, hosts: dict[str, Any], *arguments: str, **others: Any) -> tuple[int, str]:
        """Run the main job to its end."""
        process = self.start(hosts, *arguments, **others)
        output = process.communicate(timeout=120)[0]
        return process.returncode, output

    def read(self, host: str, path: str) -> Any:
        """Read a JSON file of a node; None when it is not there."""
        file = self.node / host / path
        return json.loads(file.read_text()) if file.exists() else None


LOCK = "run/pcluster-postboot/lock"
REPORT = "var/lib/pcluster-postboot/report.json"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(Path(__file__).resolve().parents[3], tmp_path_factory.mktemp("site"))


HOSTS: dict[str, dict[str, Any]] = {
    "gone": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
    "outside": {"node": {**NODE, "is_parallelcluster": False, "reason": "no cfnconfig"}},
    "fine": {"alpha_does": "change"},
    "cpu": {"node": {**NODE, "gpus": {"count": 0}}, "gamma_enabled": True},
    "reported": {"alpha_does": "fail", "beta_does": "change"},
    "handler": {"alpha_does": "change", "alpha_port": 666},
    "stops": {"beta_does": "fail", "beta_essential": True, "alpha_does": "change"},
    "misspelt": {"alpha_prot": 3, "beta_port": "abc"},
    "unpinned": {"beta_sha256": {"x86_64": ""}, "beta_does": "change", "gamma_does": "change"},
    # What another node has not published yet: a boot goes on without it, any other run stops.
    "waits": {
        "common_phase": "boot",
        "common_deferred": ["reported"],
        "alpha_does": "wait",
        "alpha_essential": True,
        "beta_does": "lack",
        "beta_essential": True,
    },
    "wants": {"beta_does": "wait", "beta_essential": True, "alpha_does": "lack"},
}


NEEDED = "the 64 hexadecimal digits of the sha256 of x86_64 (`make pins` asks for it)"
UNPINNED = f"beta_sha256['x86_64'] is not set; needed: {NEEDED}"


@pytest.fixture(scope="module")
def big(site: Site) -> tuple[int, str]:
    return site.run(HOSTS)


def table_of(output: str) -> dict[str, dict[str, str]]:
    """Return {host: {component: cell}} of the printed table."""
    lines = output.splitlines()
    start = next(n for n, line in enumerate(lines) if re.match(r"\s+cpu\s+fine", line))
    places = [(match[0], match.start()) for match in re.finditer(r"\S+", lines[start])]
    ends = [start for _, start in places[1:]] + [None]
    return {
        host: {line.split()[0]: line[at:end].strip() for line in lines[start + 1 : start + 4]}
        for (host, at), end in zip(places, ends)
    }


def without_seconds(cells: dict[str, str]) -> dict[str, str]:
    return {name: re.sub(r" \d+s$", "", cell) for name, cell in cells.items()}


@pytest.mark.parametrize(
    ("host", "cells"),
    [
        ("gone", ["-", "-", "-"]),
        ("outside", ["-", "-", "-"]),
        ("fine", ["changed", "unchanged", "unchanged"]),
        ("cpu", ["skipped", "skipped", "unchanged"]),
        ("reported", ["failed", "changed", "unchanged"]),
        ("handler", ["failed", "unchanged", "unchanged"]),
        ("stops", ["changed", "failed", "skipped"]),
        ("misspelt", ["-", "-", "-"]),
        ("unpinned", ["unchanged", "failed", "changed"]),
        ("waits", ["deferred", "deferred", "deferred"]),
        ("wants", ["unchanged", "failed", "skipped"]),
    ],
)
def test_the_table_says_what_became_of_each_node(big: tuple[int, str], host: str, cells: list[str]) -> None:
    assert without_seconds(table_of(big[1])[host]) == dict(zip(COMPONENTS, cells))


def test_an_old_word_is_told(big: tuple[int, str]) -> None:
    assert "common_deferred: reported is called non_essential now; the old word works until 0.4.0" in " ".join(
        big[1].split()
    )


@pytest.mark.parametrize(
    "line",
    [
        "skipped on cpu: alpha, beta (not for this node (compute, no GPU, no EFA))",
        "skipped on stops, wants: gamma (beta failed)",
        "deferred on waits: alpha, beta (no head yet)",
        "deferred on waits: gamma (it comes after the boot (common_deferred))",
        "failed on reported: alpha: Do the thing: it broke",
        "failed on handler: alpha: Restart alpha: it broke",
        "failed on stops, wants: beta: Do the thing: it broke",
        "failed on unpinned: beta: Check every variable before anything is touched: " + UNPINNED,
        "stopped on outside: not a ParallelCluster node, nothing was done: no cfnconfig",
        "stopped on misspelt: alpha_prot is no variable of role alpha: did you mean alpha_port?",
        'stopped on misspelt: beta_port is "abc"; needed: a whole number',
    ],
)
def test_what_happened_is_one_line(big: tuple[int, str], line: str) -> None:
    assert big[1].splitlines().count(line) == 1


def test_an_unreachable_node_is_in_the_table(big: tuple[int, str]) -> None:
    assert re.search(r"^unreachable on gone: .*Connection refused$", big[1], re.MULTILINE)


def test_the_last_line_sums_up(big: tuple[int, str]) -> None:
    # Changes: alpha and its handler on fine and stops, beta's on reported, gamma's on unpinned, alpha on handler.
    last = r"^pcluster\.postboot: 11 nodes, 9 changed, 7 failed, 3 deferred, 1 unreachable, \d+ s$"
    assert re.search(last, big[1], re.MULTILINE)


def test_a_whole_run_that_went_well_ends_with_the_commands_that_come_next(site: Site) -> None:
    hosts = {"control": {"node": {**NODE, "node_type": "head"}}}
    _code, output = site.run(hosts)
    lines = output.rstrip().splitlines()
    assert lines[-6].startswith("pcluster.postboot: 1 node, ")
    assert [line.split("pcluster.postboot.")[-1].split()[0] for line in lines[-3:]] == ["verify", "status", "publish"]
    assert output.count("What comes next:") == 1
    for arguments in (("--check",), ("--tags", "alpha")):
        _code, output = site.run(hosts, *arguments)
        assert "What comes next:" not in output
        assert "\npcluster.postboot: 1 node, " in output


def after_the_table(output: str, row: str = "alpha") -> list[str]:
    """Return the lines that follow the row of a component, the report's own aside."""
    rest = output[re.search(rf"^{row}  ", output, re.MULTILINE).start() :].rstrip().splitlines()  # type: ignore[union-attr]
    ours = ("skipped on ", "deferred on ", "failed on ", "stopped on ", "unreachable on ", "pcluster.postboot: ")
    return [line for line in rest if not line.startswith((*ours, *(f"{name}  " for name in COMPONENTS)))]


def test_the_table_stands_after_all_that_ansible_says(big: tuple[int, str]) -> None:
    _code, output = big
    assert after_the_table(output) == []
    assert output.count("\nalpha  ") == 1
    assert output.index("PLAY RECAP") < output.index("\nalpha  ")


def test_a_run_that_comes_after_another_playbook_has_its_table_too(site: Site) -> None:
    """Ansible loads callbacks once, with the first playbook of the command line."""
    (site.root / "first.yml").write_text("- hosts: localhost\n  gather_facts: false\n")
    code, output = site.run({"second": {}}, playbooks=("first.yml", "pcluster.postboot.site"))
    assert code == 0
    assert output.count("\nalpha  unchanged") == 1
    assert output.index("\nalpha  ") < output.index("Fail this node where an essential component failed")


def test_what_playbooks_say_is_shown_where_what_is_ok_is_not(site: Site, repo: Path) -> None:
    """As verify does with its table."""
    tasks = [{"ansible.builtin.debug": {"msg": said}} for said in ("a table\nof lines", ["one", "two"])]
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    (site.root / "ansible_collections/pcluster/postboot/playbooks/say.yml").write_text(yaml.safe_dump([play]))
    config = repo / "inventory/ansible.cfg"
    _code, output = site.run({"head": {}}, playbooks=("pcluster.postboot.say",), config=config)
    assert re.findall(r"^    +(?:- )?(\w.*)$", output, re.MULTILINE) == [
        "msg: |-",
        "a table",
        "of lines",
        "msg:",
        "one",
        "two",
    ]


def test_nodes_that_a_task_has_changed_share_a_line(site: Site, repo: Path) -> None:
    hosts = {**{f"gpu-{number}": {"alpha_does": "change", "alpha_port": 666} for number in range(1, 5)}, "other": {}}
    hosts["gpu-2"]["beta_does"], hosts["gpu-3"]["alpha_does"] = "steer", "fail"
    code, output = site.run(hosts, "--tags", "alpha,beta", config=repo / "inventory/ansible.cfg")
    assert code == 0
    said = re.findall(r"^(included: .*|changed: .*|fatal: \[\S+?\]|ok: .*|skipping: .*)", output, re.MULTILINE)
    all_of_them = "5 hosts, gpu-[1-4],other"
    assert [*said[:3], *sorted(said[3:6]), *said[6:]] == [
        f"included: pcluster.postboot.alpha for {all_of_them}",
        "fatal: [gpu-3]",
        "changed: 3 hosts, gpu-[1-2,4]",
        *(f"fatal: [gpu-{number}]" for number in (1, 2, 4)),  # the handler
        f"included: pcluster.postboot.beta for {all_of_them}",
        "fatal: [gpu-2]",
    ]
    assert len(re.findall(r"^TASK \[.* : main \| Do the thing\]", output, re.MULTILINE)) == 2
    # What a terminal would obey is written out in the table's lines.
    assert "\nfailed on gpu-2: beta: Do the thing: \\x1b[2Jit broke\n" in output


def test_a_run_of_too_many_nodes_says_so_first(site: Site, big: tuple[int, str]) -> None:
    # The quickest of runs: none of them is a node.
    hosts = {f"n{number}": {"node": HOSTS["outside"]["node"]} for number in range(11)}
    _code, output = site.run(hosts, "--forks", "1")
    (line,) = (line for line in output.splitlines() if "forks is " in line)
    told = "forks is 1, so that 11 nodes take each task in 11 turns; needed: forks of at least 2 "
    assert line.startswith(f"[WARNING]: {told}")
    assert line.endswith("or the playbooks publish and fleet, by which nodes configure themselves")
    assert output.index(told) < output.index("TASK [Read what this node is]")
    assert "forks is " not in big[1]


def test_nodes_that_stopped_fail_the_run_and_the_others_do_not(big: tuple[int, str]) -> None:
    code, output = big
    assert code != 0
    recap = dict(re.findall(r"^(\w+)\s+: .*failed=(\d+)", output, re.MULTILINE))
    assert {host for host, failed in recap.items() if failed != "0"} == {"outside", "stops", "misspelt", "wants"}


@pytest.mark.parametrize(
    ("host", "outcome"), [("fine", "ok"), ("cpu", "ok"), ("reported", "failed"), ("stops", "stopped"), ("waits", "ok")]
)
def test_the_report_is_on_the_node(big: tuple[int, str], site: Site, host: str, outcome: str) -> None:
    report = site.read(host, REPORT)
    assert (report["outcome"], report["host"], report["node"]) == (outcome, host, "q1-dy-a-1")
    assert [entry["name"] for entry in report["components"]] == list(COMPONENTS)


def test_every_lock_is_given_back(big: tuple[int, str], site: Site) -> None:
    assert [path.name for path in site.node.rglob("lock")] == []


@pytest.mark.parametrize("host", ["outside", "misspelt", "gone"])
def test_nothing_is_touched_where_something_is_wrong(big: tuple[int, str], site: Site, host: str) -> None:
    assert not (site.node / host).exists()


def test_check_mode_with_a_tag_writes_nothing_and_says_would_change(site: Site) -> None:
    code, output = site.run(
        {"head": {"beta_does": "change"}, "two": {}}, "--check", "--tags", "beta", "--limit", "head"
    )
    assert code == 0
    assert re.search(r"^beta  would change", output, re.MULTILINE)
    assert "alpha" not in output
    assert "two" not in output
    assert re.search(r"^pcluster\.postboot: 1 node, \d would change, 0 failed, \d+ s$", output, re.MULTILINE)
    assert not (site.node / "head").exists()


def test_a_tag_that_no_component_has_is_named(site: Site) -> None:
    code, output = site.run({"head": {}}, "--tags", "alhpa")
    assert code != 0
    assert "--tags is alhpa, which no component of this run has; needed: one of alpha, beta, gamma" in output


def test_the_tags_are_the_components(site: Site) -> None:
    code, output = site.run({"head": {}}, "--list-tags")
    assert code == 0
    assert "TASK TAGS: [alpha, always, beta, gamma]" in output


def meanwhile(process: subprocess.Popen[str], done: Callable[[], Any]) -> None:
    """Wait until a run has done something, and goes on."""
    until(lambda: process.poll() is not None or done())
    assert process.poll() is None, process.communicate()[0]


@pytest.fixture
def held(site: Site) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run that works on the node `busy` until the file is there."""
    go = site.root / "go"
    go.unlink(missing_ok=True)
    process = site.start({"busy": {}}, "--tags", "alpha", alpha_until=str(go), alpha_does="change")
    meanwhile(process, lambda: site.read("busy", LOCK))
    yield process, go
    go.touch()
    process.communicate(timeout=60)


def test_what_a_pulled_run_has_done_so_far_is_known_while_it_runs(site: Site) -> None:
    go, progress = site.root / "progressed", site.root / "progress.json"
    process = site.start({"node": {}}, progress=progress, alpha_does="change", beta_until=str(go))
    meanwhile(process, lambda: progress.exists() and json.loads(progress.read_text())["component"] == "beta")
    known = json.loads(progress.read_text())
    assert known["ended"] is False
    assert known["started"] < known["plans"]["alpha"]["started"] < known["plans"]["beta"]["started"] <= known["since"]
    assert "started" not in known["plans"]["gamma"]
    assert [(one["name"], one["status"]) for one in known["report"]["components"]] == [
        ("alpha", "changed"),
        ("beta", "unchanged"),
    ]
    go.touch()
    assert process.wait(60) == 0
    known = json.loads(progress.read_text())
    assert (known["ended"], known["report"]["outcome"]) == (True, "ok")


@pytest.mark.once
def test_a_second_run_waits_its_time_and_leaves_with_one_line(
    site: Site, held: tuple[subprocess.Popen[str], Path]
) -> None:
    process, go = held
    code, output = site.run({"busy": {}}, "--tags", "alpha", common_lock_timeout=1)
    assert code == 2
    pattern = (
        rf"^stopped on busy: held by pull from \S+@\S+ \(pid {process.pid}\) since \S+, last seen \d+ s ago; waited 1 s"
    )
    assert re.search(pattern, output, re.MULTILINE)
    assert site.read("busy", LOCK)["pid"] == process.pid
    go.touch()
    assert process.wait(60) == 0
    assert site.read("busy", LOCK) is None
    assert site.read("busy", REPORT)["changed"] == 2


@pytest.mark.once
def test_the_next_run_takes_over_at_once_what_a_killed_one_left(
    site: Site, held: tuple[subprocess.Popen[str], Path], repo: Path
) -> None:
    process, go = held
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert site.read("busy", LOCK)["pid"] == process.pid
    go.touch()
    config = repo / "inventory/ansible.cfg"
    code, output = site.run({"busy": {}}, "--tags", "alpha", common_lock_timeout=0, alpha_does="change", config=config)
    assert code == 0, output
    assert site.read("busy", LOCK) is None
    # The configuration to copy does not show what is ok, but what that warns of.
    assert "[WARNING]: taken over from a run that is dead: it was held by " in output
    assert re.findall(r"^(ok|changed|skipping): ", output, re.MULTILINE) == ["changed", "changed"]
    assert after_the_table(output) == []


@pytest.mark.once
def test_a_node_that_waits_for_the_turns_of_others_has_announced_that(site: Site) -> None:
    """Three nodes, one fork: while the third has its turn, nothing is heard of the first two."""
    turn, needs = site.root / "turn", site.root / "ansible_collections/pcluster/postboot/roles/alpha/meta/component.yml"
    needs.write_text("needs: [{nodes: [compute], seconds: 1200, source: this test}]\n")
    hosts = {"one": {}, "two": {}, "three": {"alpha_until": str(turn)}}
    process = site.start(hosts, "--forks", "1", "--tags", "alpha")
    lock = host_lock.Lock(str(site.node / "one/run/pcluster-postboot"))
    meanwhile(process, lambda: site.read("three", LOCK))
    # As another machine sees it, which knows nothing of the process.
    Path(lock.path).write_text(json.dumps({**site.read("one", LOCK), "machine": "elsewhere"}))
    outcome = lock.look(0, host_lock.Holder(run_id="other", machine="another"))
    assert (outcome.taken, outcome.silence) == (False, 3 * 2 * 1200)
    assert ", and may be silent until " in outcome.sentence()
    turn.touch()
    assert process.wait(60) == 0
    needs.unlink()

# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""packages on dpkg's real records, with an apt-get, a dpkg and a dnf that note how they were called."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds, plan, records, tool
from ansible_collections.pcluster.postboot.plugins.modules import packages
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import until

NAMES = ["kit", "kit-base"]

# What apt-get, dpkg and rpm do here: note the call, obey $TOP/says/<program> once, and write the status file.
TOOL = """#!/bin/sh
top={top}
me=$(basename "$0")
echo "$me $*" >> $top/calls
if [ -e $top/says/$me ]; then
  mv $top/says/$me $top/said; cat $top/said >&2; exit 100
fi
case "$me $*" in
  dpkg-query*) awk '/^Package:/ {{ p = $2 }} /^Status:/ {{ print $2, $3, $4 "\\t" p }}' $top/dpkg/status ;;
  "dpkg --set-selections") while read name want; do
      sed -i "/^Package: $name\\$/,/^\\$/ s/^Status: [a-z]*/Status: $want/" $top/dpkg/status; done ;;
  "apt-mark unhold"*) shift; for name; do
      sed -i "/^Package: $name\\$/,/^\\$/ s/^Status: [a-z]*/Status: install/" $top/dpkg/status; done ;;
  "apt-cache madison"*) cat $top/madison ;;
  apt-get*update) [ ! -e $top/madison.new ] || mv $top/madison.new $top/madison ;;
  apt-get*--download-only*) ;;
  "dpkg --remove"*) cp $top/removed $top/dpkg/status ;;
  rpm*--erase*) cp $top/rpms.removed $top/rpms ;;
  dnf*--downloadonly*) ;;
  dnf*repoquery*) cat $top/newest ;;
  apt-get*install*) cp $top/after $top/dpkg/status; rm -f $top/dpkg/updates/* ;;
  rpm*-qa*) cut -f1 $top/rpms ;;
  rpm*-q*) cat $top/rpms ;;
  dnf*install*) cp $top/rpms.after $top/rpms ;;
esac
"""


def stanza(name: str, version: str, state: str = "installed", want: str = "install") -> str:
    return lab.package(name, f"{version}-1", state, want)


class Node:
    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top = top
        self.run = run
        for name in ("dpkg/updates", "bin", "says"):
            (top / name).mkdir(parents=True)
        for name in ("apt-get", "apt-cache", "apt-mark", "dpkg", "dpkg-query", "rpm", "dnf"):
            lab.program(top / "bin" / name, TOOL.format(top=top))
        self.has()
        self.after(kit="1.19.1", **{"kit-base": "1.19.1"})

    def has(self, *stanzas: str) -> None:
        (self.top / "dpkg/status").write_text("".join(stanzas))

    def after(self, **versions: str) -> None:
        (self.top / "after").write_text("".join(stanza(name, version) for name, version in versions.items()))

    def calls(self, program: str = "") -> list[str]:
        return [line for line in lab.lines(self.top / "calls") if line.startswith(program)]

    def record(self) -> Any:
        path = self.top / "state/packages/kit.json"
        return json.loads(path.read_text()) if path.exists() else None

    def noted(self, version: str, done: bool) -> None:
        (self.top / "state/packages").mkdir(parents=True, exist_ok=True)
        (self.top / "state/packages/kit.json").write_text(json.dumps({"version": version, "done": done}))

    def __call__(self, check: bool = False, **args: Any) -> dict[str, Any]:
        return self.run(packages, {"manager": "apt", "packages": NAMES, **args}, check=check)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> Node:
    monkeypatch.setattr(records, "DPKG", str(tmp_path / "dpkg"))
    monkeypatch.setattr(lock, "STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(holds, "DNF_CONF", str(tmp_path / "dnf.conf"))
    monkeypatch.setattr(holds.DnfHolds.__init__, "__defaults__", (str(tmp_path / "dnf.conf"), holds.run_command))
    monkeypatch.setattr(tool, "PAUSE", 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Node(tmp_path, run_module)


def test_check_apply_check_apply(node: Node) -> None:
    checked = node(check=True, fresh_version="1.19.1")
    assert (checked["changed"], checked["install"], checked["version"]) == (True, True, "1.19.1")
    assert not node.calls()
    assert node.record() is None
    applied = node(fresh_version="1.19.1")
    assert applied["diff"] == checked["diff"]
    assert applied["installed"] == {"kit": "1.19.1", "kit-base": "1.19.1"}
    assert applied["origin"] == "installed"
    (call,) = node.calls("apt-get")
    assert call.endswith("install kit=1.19.1-* kit-base=1.19.1-*")
    assert "--no-remove" in call
    assert "--allow-downgrades" not in call
    assert node.record() == {"version": "1.19.1", "done": True}
    for check in (True, False):
        again = node(check=check, fresh_version="1.19.1")
        assert (again["changed"], again["due"], again["origin"]) == (False, False, "installed")
    assert len(node.calls("apt-get")) == 1


def test_a_plan_changes_nothing(node: Node) -> None:
    found = node(state="planned", fresh_version="1.19.1", hold=True)
    assert (found["changed"], found["due"], found["why"]) == (False, True, "kit is not installed")
    assert not node.calls("apt")


def test_what_somebody_else_installed_stays_until_a_version_is_asked_for(node: Node) -> None:
    node.has(stanza("kit", "1.17.0"), stanza("kit-base", "1.17.0"))
    kept = node(fresh_version="1.19.1")
    assert (kept["changed"], kept["version"], kept["origin"]) == (False, "1.17.0", "found")
    assert not node(version="1.17")["due"]
    replaced = node(version="1.19.1", fresh_version="1.18")
    assert (replaced["changed"], replaced["version"], replaced["origin"]) == (True, "1.19.1", "installed")
    assert "--allow-downgrades" in node.calls("apt-get")[0]
    assert "--force-confmiss" in node.calls("apt-get")[0]


def test_what_is_older_than_the_minimum_is_replaced_whoever_installed_it(node: Node) -> None:
    node.has(stanza("kit", "1.19.0"), stanza("kit-base", "1.19.0"))
    args = {"fresh_version": "1.19", "minimum_version": "1.19.1", "flaw": "CVE-2026-24260"}
    planned = node(state="planned", **args)
    assert (planned["install"], planned["stays"]) == (True, True)
    assert planned["why"] == "kit 1.19.0 has CVE-2026-24260, which 1.19.1 mends"
    assert planned["summary"] == ""
    (node.top / "madison").write_text("kit | 1.19.1-1 | x\nkit | 1.19.0-1 | x\nkit-base | 1.19.1-1 | x\n")
    found = node(**args)
    assert (found["changed"], found["version"], found["summary"]) == (True, "1.19.1", "")
    assert node.calls("apt-get")[0].endswith("install kit=1.19.1-1 kit-base=1.19.1-1")
    assert not node(**args)["due"]


def test_the_beginning_of_a_version_means_one_that_is_new_enough(node: Node) -> None:
    node.has(stanza("kit", "1.19.0"), stanza("kit-base", "1.19.0"))
    assert node(check=True, version="1.19", minimum_version="1.19.1")["why"] == "kit 1.19.0 is older than 1.19.1"
    assert not node(check=True, version="1.19")["due"]


@pytest.mark.parametrize(
    ("version", "wanted", "minimum", "good"),
    [
        ("1.19.1", "", "", True),
        ("1.19.0", "", "1.19.1", False),
        ("1.20.0", "", "1.19.1", True),
        ("4.8.4.3955", "", "4.8.2", True),
        ("13.10.0", "", "13.2.2", True),
        ("1.19.0", "1.19", "1.19.1", False),
        ("1.19.0", "1.19.0", "1.19.1", True),
        ("1.18.2", "1.18", "1.19.1", True),
        ("1.19.1", "1.20", "1.19.1", False),
        ("4.5.1", "4.5", "4.5", True),
    ],
)
def test_a_minimum_counts_unless_something_older_is_asked_for(
    version: str, wanted: str, minimum: str, good: bool
) -> None:
    assert plan.meets(version, wanted, minimum) is good


def test_a_flaw_that_is_asked_for_stays_and_is_told(node: Node) -> None:
    node.has(stanza("kit", "1.18.2"), stanza("kit-base", "1.18.2"))
    args = {"fresh_version": "1.19.1", "minimum_version": "1.19.1", "flaw": "CVE-2026-24260"}
    found = node(version="1.18", **args)
    assert (found["due"], found["version"]) == (False, "1.18.2")
    assert found["summary"] == "kit 1.18.2 has CVE-2026-24260, which 1.19.1 mends"


def test_a_flaw_that_the_repository_does_not_mend_is_told_and_no_change(node: Node) -> None:
    node.has(stanza("kit", "1.19.0"), stanza("kit-base", "1.19.0"))
    node.after(kit="1.19.0", **{"kit-base": "1.19.0"})
    found = node(version="1.19", minimum_version="1.19.1", flaw="CVE-2026-24260")
    assert (found["changed"], found["version"]) == (False, "1.19.0")
    assert found["summary"] == "kit 1.19.0 has CVE-2026-24260, which 1.19.1 mends"


def test_what_is_ours_follows_the_pin_where_it_shall(node: Node) -> None:
    node.has(stanza("kit", "1.18.0"), stanza("kit-base", "1.18.0"))
    node.noted("1.18.0", True)
    assert not node(fresh_version="1.19.1")["due"]
    found = node(fresh_version="1.19.1", follow=True)
    assert found["why"] == "kit 1.18.0, kit-base 1.18.0 installed, wanted is 1.19.1"
    assert found["changed"]


def test_what_replaced_ours_is_no_longer_ours(node: Node) -> None:
    node.noted("1.18.0", True)
    node.has(stanza("kit", "2.0.0"), stanza("kit-base", "2.0.0"))
    found = node(fresh_version="1.19.1", follow=True)
    assert (found["due"], found["origin"]) == (False, "found")


def test_all_have_one_version(node: Node) -> None:
    node.after(kit="1.17.0", **{"kit-base": "1.17.0"})
    node.has(stanza("kit", "1.17.0"), stanza("kit-base", "1.16.0"))
    assert node(fresh_version="1.19.1")["version"] == "1.17.0"
    assert node.calls("apt-get")[0].endswith("kit=1.17.0-* kit-base=1.17.0-*")
    node.has(stanza("kit", "1.17.0"))
    assert node(check=True)["why"] == "missing: kit-base"


def test_a_program_that_no_package_brought_stays(node: Node) -> None:
    program = node.top / "bin/kit"
    program.write_text("")
    args = {"program": str(program), "fresh_version": "1.19.1"}
    found = node(**args)
    assert found["why"] == f"{program} is there, and no package brought it; it is left as it is"
    assert (found["due"], found["version"], found["origin"], found["enough"]) == (False, "", "found", True)
    # Unless it is what a killed installation has left, as dpkg tells, or as we do.
    node.has(stanza("kit", "1.19.1", "half-installed"))
    assert node(check=True, **args)["why"] == "the installation of kit was interrupted"
    # Unless another one of the packages may have brought it.
    node.has(stanza("kit-base", "1.19.1"))
    node.noted("1.19.1", True)
    assert node(check=True, **args)["why"] == "kit is not installed"
    node.has()
    node.noted("1.19.1", False)
    assert node(**args)["changed"]


def test_files_are_installed_in_one_go_and_only_in_their_own_version(node: Node) -> None:
    files = [str(node.top / "kit.deb"), str(node.top / "base.deb")]
    args = {"files": files, "fresh_version": "1.19.1", "follow": True, "extra": ["pigz"]}
    refused = node(**args)
    assert refused["msg"] == f"files: {', '.join(files)} is not there; download it first"
    for file in files:
        Path(file).write_text("")
    assert node(**args)["changed"]
    assert node.calls("apt-get")[0].endswith(f"install {' '.join(files)} pigz")
    node.noted("1.19.1", True)
    node.has(stanza("kit", "2.0.0"))
    assert not node(**args)["due"], "kit-base 1.19.1 is of no use beside kit 2.0.0"
    node.has(stanza("kit", "1.19.1"))
    assert node(check=True, **args)["why"] == "missing: kit-base"


def test_an_interrupted_dpkg_is_finished_first(node: Node) -> None:
    node.has(*(stanza(name, "1.19.1") for name in NAMES))
    (node.top / "dpkg/updates/0001").write_text(stanza("kit", "1.19.1", "unpacked"))
    found = node(fresh_version="1.19.1")
    assert found["why"] == "the installation of kit was interrupted"
    assert [line.split()[0] for line in node.calls()] == ["dpkg", "apt-cache", "apt-get"]
    assert "--configure --pending" in node.calls()[0]


def test_a_killed_run_is_finished(node: Node) -> None:
    node.noted("1.19.1", False)
    node.has(stanza("kit", "1.19.1"))
    found = node(fresh_version="1.19.1")
    assert found["why"] == "the installation of kit-base was interrupted"
    assert node.record()["done"]


def test_held_packages_stay_held_and_can_be_replaced(node: Node) -> None:
    assert node(version="1.19.1", hold=True)["changed"]
    status = node.top / "dpkg/status"
    assert status.read_text().count("Status: hold") == 2
    assert not node(version="1.19.1", hold=True)["changed"]
    # Somebody has released one.
    status.write_text(status.read_text().replace("Status: hold", "Status: install", 1))
    found = node(check=True, version="1.19.1", hold=True)
    assert (found["changed"], found["install"]) == (True, False)
    assert found["why"] == "kit 1.19.1 is installed, not held: kit"
    assert found["diff"]["after"] == "held: kit\n"
    assert node(version="1.19.1", hold=True)["changed"]
    assert len(node.calls("apt-get")) == 1
    node.after(kit="1.20.0", **{"kit-base": "1.20.0"})
    assert node(version="1.20.0", hold=True)["version"] == "1.20.0"
    assert node.calls("apt-mark") == ["apt-mark unhold kit kit-base"]
    assert status.read_text().count("Status: hold") == 2


def test_another_package_operation_is_waited_for(node: Node) -> None:
    (node.top / "says/apt-get").write_text("E: Could not get lock /var/lib/dpkg/lock-frontend.\n")
    assert node(version="1.19.1")["changed"]
    assert len(node.calls("apt-get")) == 2
    node.has()
    (node.top / "says/apt-get").write_text("E: Could not get lock /var/lib/dpkg/lock-frontend.\n")
    assert "Could not get lock" in node(version="1.19.1", lock_timeout=0)["msg"]


def test_old_lists_are_read_anew_once(node: Node) -> None:
    (node.top / "says/apt-get").write_text("E: Unable to locate package kit\n")
    assert node(version="1.19.1")["changed"]
    assert [line.split()[-1] for line in node.calls("apt-get")] == ["kit-base=1.19.1-*", "update", "kit-base=1.19.1-*"]


def test_what_went_wrong_is_one_line(node: Node) -> None:
    said = "Error: \\n Problem: conflicting requests\\n  - nothing provides parallel needed by kit"
    (node.top / "bin/dnf").write_text(f"#!/bin/sh\necho dnf $* >> {node.top}/calls; printf '{said}\\n' >&2; exit 1\n")
    (node.top / "rpms").write_text("")
    failed = node(manager="dnf", version="1.19.1")
    assert failed["failed"]
    assert failed["msg"] == (
        "dnf could not install kit-1.19.1 kit-base-1.19.1: Error: Problem: conflicting requests - nothing provides "
        "parallel needed by kit; enable the repository that has it (on RHEL and Rocky some packages are in EPEL only)"
    )
    assert node.record() == {"version": "1.19.1", "done": False}
    # It was asked again with what the repositories have now.
    assert [" --refresh " in line for line in node.calls("dnf")] == [False, True]


def test_a_success_that_is_none_is_not_believed(node: Node) -> None:
    node.after(kit="1.19.1")
    assert node(version="1.19.1")["msg"] == "apt reports success, but kit-base is not there in version 1.19.1"


def test_dnf(node: Node) -> None:
    (node.top / "rpms").write_text("")
    (node.top / "rpms.after").write_text("kit\t1.19.1\nkit-base\t1.19.1\n")
    conf = node.top / "dnf.conf"
    conf.write_text("[main]\ngpgcheck=1\n")
    assert node(manager="dnf", version="1.19", hold=True)["changed"]
    assert node.calls("dnf")[0].endswith("install kit-1.19.* kit-base-1.19.*")
    assert conf.read_text() == "[main]\ngpgcheck=1\nexcludepkgs=kit kit-base\n"
    assert not node(manager="dnf", version="1.19", hold=True)["changed"]
    (node.top / "rpms.after").write_text("kit\t1.20.0\nkit-base\t1.20.0\n")
    assert node(manager="dnf", version="1.20.0", hold=True)["version"] == "1.20.0"
    assert conf.read_text() == "[main]\ngpgcheck=1\nexcludepkgs=kit kit-base\n"


def test_dnf_finds_a_version_that_has_more_parts(node: Node) -> None:
    """NVIDIA's rpm of exporter 4.8.4 is 4.8.4.3955, which is neither 4.8.4 to dnf nor asked for by 4.8.40's pattern."""
    (node.top / "rpms").write_text("")
    (node.top / "rpms.after").write_text("kit\t1.19.1.3955\nkit-base\t1.19.1.3955\n")
    (node.top / "bin/dnf").write_text(
        f'#!/bin/sh\necho dnf $* >> {node.top}/calls\ncase "$*" in *"kit-1.19.1.* kit-base-1.19.1.*") '
        f"cp {node.top}/rpms.after {node.top}/rpms;; *) echo 'Error: Unable to find a match: kit' >&2; exit 1;; esac"
    )
    found = node(manager="dnf", version="1.19.1")
    assert (found["changed"], found["version"]) == (True, "1.19.1.3955")
    assert [call.rpartition(" install ")[2] for call in node.calls("dnf")] == [
        "kit-1.19.1 kit-base-1.19.1",
        "kit-1.19.1 kit-base-1.19.1",
        "kit-1.19.1.* kit-base-1.19.1.*",
    ]
    assert not node(manager="dnf", version="1.19.1")["due"]


@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_a_package_manager_that_hangs_is_one_line(node: Node, monkeypatch: pytest.MonkeyPatch, manager: str) -> None:
    monkeypatch.setattr(tool, "SECONDS", 2)
    (node.top / "rpms").write_text("")
    program = {"apt": "apt-get", "dnf": "dnf"}[manager]
    # A package's script that waits for an answer, and holds what it was given to write to.
    (node.top / f"bin/{program}").write_text(f"#!/bin/sh\nsleep 600 & echo $! > {node.top}/script; wait\n")
    failed = node(manager=manager, version="1.19.1", lock_timeout=0)
    assert failed["msg"].startswith(f"'{program} -")
    assert failed["msg"].endswith(
        "' did not end within 2 s; it was killed; look whether the repositories answer, and in /var/log/apt/term.log "
        "or /var/log/dnf.rpm.log which package's script it waited for, and run this again, which finishes what is half "
        "installed"
    )
    assert node.record() == {"version": "1.19.1", "done": False}


def test_a_killed_dpkg_is_finished_by_the_next_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package's script hangs: apt-get is killed, and with it the dpkg in its own session, which holds dpkg's lock."""
    monkeypatch.setattr(tool, "SECONDS", 3)
    half = stanza("kit", "1.19.1", "half-configured").replace("\n", "\\n")
    apt = (node.top / "bin/apt-get").read_text()
    (node.top / "bin/apt-get").write_text(
        f"#!/bin/sh\nprintf '{half}' > {node.top}/dpkg/status\nsetsid flock {node.top}/dpkg/lock sleep 600 & wait\n"
    )
    assert node(version="1.19.1", lock_timeout=0)["failed"]
    until(lambda: subprocess.run(["flock", "--nonblock", node.top / "dpkg/lock", "true"], check=False).returncode == 0)
    (node.top / "bin/apt-get").write_text(apt)
    assert node(version="1.19.1")["why"] == "the installation of kit was interrupted"
    assert "--configure --pending" in node.calls("dpkg ")[0]
    assert node.record() == {"version": "1.19.1", "done": True}


def test_a_run_shows_that_it_lives_while_apt_works(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[float] = []
    monkeypatch.setattr(tool, "BEAT", 0.02)
    monkeypatch.setattr(lock, "heartbeat", lambda: beats.append(0))
    program = node.top / "bin/apt-get"
    program.write_text(program.read_text() + "sleep 0.5\n")
    assert node(version="1.19.1")["changed"]
    assert len(beats) > 5


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        # apt takes none of `kit=1.19.1-*` for 1:1.19.1-1, and that for 1.19.1-1 only.
        (["kit | 1:1.20.0-1", "kit | 1:1.19.1-1", "kit-base | 1.19.1-1"], "kit=1:1.19.1-1 kit-base=1.19.1-1"),
        (["kit | 1.19.1+security-01", "kit | 1.19.1", "kit-base | 1.19.1-1"], "kit=1.19.1 kit-base=1.19.1-1"),
        (["kit | 1.19.1.3955-1", "kit | 1.19.1.3-1", "kit | 1.19.0-1"], "kit=1.19.1.3955-1 kit-base=1.19.1-*"),
    ],
    ids=["epoch", "no revision", "more parts"],
)
def test_apt_is_told_the_version_that_it_lists(node: Node, listed: list[str], asked: str) -> None:
    (node.top / "madison").write_text("".join(f"{line:>24} | http://mirror ./ Packages\n" for line in listed))
    assert node(version="1.19.1")["changed"]
    assert node.calls("apt-get")[0].endswith(f"install {asked}")


def test_apt_is_told_what_new_lists_have(node: Node) -> None:
    (node.top / "madison.new").write_text("kit | 1:1.19.1-1 | http://mirror ./ Packages\n")
    (node.top / "says/apt-get").write_text("E: Unable to locate package kit\n")
    assert node(version="1.19.1")["changed"]
    assert node.calls("apt-get")[2].endswith("install kit=1:1.19.1-1 kit-base=1.19.1-*")


def test_what_cannot_stay_leaves_once_all_is_downloaded(node: Node) -> None:
    node.has(stanza("oldkit", "3.3.6"))
    (node.top / "removed").write_text("")
    args = {"version": "1.19.1", "replaces": ["oldkit", "olderkit"]}
    planned = node(state="planned", **args)
    assert (planned["leaving"], planned["installed"]) == (["oldkit"], {})
    checked = node(check=True, **args)
    applied = node(**args)
    assert checked["diff"] == applied["diff"]
    assert applied["diff"]["before"].endswith("oldkit 3.3.6\n")
    assert applied["diff"]["after"].endswith("oldkit absent\n")
    calls = [line for line in node.calls() if not line.startswith("apt-cache")]
    assert [line.split()[0] for line in calls] == ["apt-get", "dpkg", "apt-get"]
    assert calls[0].endswith("install kit=1.19.1-* kit-base=1.19.1-* oldkit-")
    assert "--download-only" in calls[0]
    assert calls[1] == "dpkg --remove oldkit"
    assert calls[2].endswith("install kit=1.19.1-* kit-base=1.19.1-*")
    assert "--no-remove" in calls[2]
    assert not node(**args)["changed"]
    node.has(stanza("kit", "1.19.1"), stanza("kit-base", "1.19.1"), stanza("oldkit", "3.3.6"))
    assert (node(**args)["changed"], node(**args)["leaving"]) == (False, [])


def test_what_cannot_be_downloaded_removes_nothing(node: Node) -> None:
    node.has(stanza("oldkit", "3.3.6"))
    (node.top / "says/apt-get").write_text("E: Version '1.19.1-*' for 'kit' was not found... no, it is broken\n")
    (node.top / "bin/apt-cache").write_text(f"#!/bin/sh\necho E: broken > {node.top}/says/apt-get\n")
    failed = node(version="1.19.1", replaces=["oldkit"])
    assert "apt-get could not install kit=1.19.1-*" in failed["msg"]
    assert not node.calls("dpkg --remove")
    assert "oldkit" in (node.top / "dpkg/status").read_text()


def test_what_others_need_does_not_leave(node: Node) -> None:
    node.has(stanza("oldkit", "3.3.6"))
    (node.top / "says/dpkg").write_text("dpkg: dependency problems prevent removal of oldkit: theirs depends on it.\n")
    failed = node(version="1.19.1", replaces=["oldkit"])
    assert failed["msg"] == (
        "oldkit cannot be removed, so kit is not installed: dpkg: dependency problems prevent removal of oldkit: "
        "theirs depends on it."
    )


def test_dnf_replaces_too(node: Node) -> None:
    (node.top / "rpms").write_text("oldkit\t3.3.6\n")
    (node.top / "rpms.removed").write_text("")
    (node.top / "rpms.after").write_text("kit\t1.19.1\nkit-base\t1.19.1\n")
    assert node(manager="dnf", version="1.19.1", replaces=["oldkit"])["leaving"] == ["oldkit"]
    first, second = node.calls("dnf")
    assert "--downloadonly" in first
    assert "--allowerasing" in first
    assert "--allowerasing" not in second
    assert "rpm --erase oldkit" in node.calls("rpm")


def test_the_newest_that_is_listed_takes_an_older_ones_place(node: Node) -> None:
    node.has(stanza("kit", "1.19.1"), stanza("kit-base", "1.19.1"))
    (node.top / "madison").write_text("kit | 1:1.19.1-1 | http://mirror ./ Packages\n")
    assert not node(version="1.19", latest=True)["due"]
    (node.top / "madison.new").write_text(
        "kit | 1:1.20.0-1 | http://mirror ./ Packages\nkit | 1:1.19.10-1 | http://mirror ./ Packages\n"
    )
    # Lists are read anew, but not to foretell.
    assert not node(version="1.19", latest=True, check=True)["due"]
    node.after(kit="1.19.10", **{"kit-base": "1.19.10"})
    assert node(version="1.19", latest=True)["why"] == "kit 1.19.1, kit-base 1.19.1 installed, wanted is 1.19.10"
    assert node.calls("apt-get")[-1].endswith("install kit=1:1.19.10-1 kit-base=1.19.10-*")
    assert not node(version="1.19", latest=True)["changed"]
    node.after(kit="1.20.0", **{"kit-base": "1.20.0"})
    assert node(latest=True, check=True)["version"] == "1.20.0"
    assert node(latest=True)["version"] == "1.20.0"
    # What came from elsewhere may be newer than all that is listed.
    node.has(stanza("kit", "1.21.0"), stanza("kit-base", "1.21.0"))
    assert not node(latest=True)["due"]


def test_dnf_is_asked_for_the_newest_too(node: Node) -> None:
    (node.top / "rpms").write_text("kit\t1.19.1\nkit-base\t1.19.1\n")
    (node.top / "rpms.after").write_text("kit\t1.19.10\nkit-base\t1.19.10\n")
    (node.top / "newest").write_text("1.19.10")
    assert node(manager="dnf", version="1.19", latest=True)["version"] == "1.19.10"
    asked, installed = node.calls("dnf")
    assert asked == "dnf -q repoquery --latest-limit=1 --queryformat=%{version} kit-1.19.*"
    assert installed.endswith("install kit-1.19.10 kit-base-1.19.10")
    assert not node(manager="dnf", version="1.19", latest=True)["changed"]


def test_packages_apart_come_without_the_others_being_named(node: Node) -> None:
    node.after(kit="1.19.1", **{"kit-base": "1.19.1", "plug": "0.3"})
    args = {"fresh_version": "1.19.1", "apart": ["plug"]}
    assert node(**args)["installed"] == {"kit": "1.19.1", "kit-base": "1.19.1", "plug": "0.3"}
    assert node.calls("apt-get")[-1].endswith("install kit=1.19.1-* kit-base=1.19.1-* plug")
    assert not node(**args)["due"]
    # Somebody else's is not touched, and does not become ours.
    node.has(stanza("kit", "1.17.0"), stanza("kit-base", "1.17.0"))
    (node.top / "state/packages/kit.json").unlink()
    checked = node(check=True, **args)
    assert (checked["why"], checked["packages"], checked["along"]) == ("missing: plug", [], ["plug"])
    assert checked["diff"]["after"] == "kit 1.17.0\nkit-base 1.17.0\nplug newest\n"
    node.after(kit="1.17.0", **{"kit-base": "1.17.0", "plug": "0.3"})
    found = node(**args)
    assert (found["changed"], found["version"], found["origin"]) == (True, "1.17.0", "found")
    assert node.calls("apt-get")[-1].endswith(" install plug")
    assert node.record() is None
    node.has(stanza("kit", "1.17.0"), stanza("kit-base", "1.17.0"), stanza("plug", "0.3", "unpacked"))
    assert node(check=True, **args)["why"] == "the installation of plug was interrupted"
    node.after(kit="1.17.0", **{"kit-base": "1.17.0"})
    assert node(**args)["msg"] == "apt reports success, but plug is not there"


def test_an_alternative_stays_unless_another_version_is_asked_for(node: Node) -> None:
    node.has(stanza("otherkit", "1.18.2"))
    args = {"title": "Kit", "fresh_version": "1.19.1", "alternatives": ["otherkit"], "replaces": ["otherkit"]}
    found = node(state="planned", **args)
    assert (found["due"], found["version"], found["origin"]) == (False, "1.18.2", "found")
    assert (found["why"], found["summary"]) == ("otherkit 1.18.2 is installed", "Kit 1.18.2, the node had it")
    assert not node(version="1.18", **args)["due"]
    for more, why in (
        ({"version": "1.19"}, "otherkit 1.18.2 is installed, wanted is kit 1.19"),
        ({"minimum_version": "1.19"}, "Kit 1.18.2 is older than 1.19"),
        ({"latest": True}, "otherkit 1.18.2 is installed, wanted is kit 1.19.1"),
    ):
        found = node(check=True, **args, **more)
        assert (found["why"], found["leaving"], found["enough"]) == (why, ["otherkit"], False)
    (node.top / "removed").write_text("")
    assert node(latest=True, **args)["version"] == "1.19.1"


def test_what_its_owner_left_out_is_asked_for_only_where_it_is_ours(node: Node) -> None:
    args = {"fresh_version": "1.19.1", "optional": ["kit-base"]}
    for there in ([], [stanza("kit-base", "1.16.0")]):
        node.has(stanza("kit", "1.17.0"), *there)
        assert not node(**args)["due"]
        assert node(check=True, **args, version="1.17")["due"]
        assert node(check=True, **args, minimum_version="1.18")["packages"] == NAMES
        node.noted("1.17.0", True)
        assert node(check=True, **args)["due"]
        (node.top / "state/packages/kit.json").unlink()


def test_a_family_is_replaced_along(node: Node) -> None:
    node.has(*(stanza(name, "1.18.0") for name in (*NAMES, "kit-dev")))
    node.after(**dict.fromkeys((*NAMES, "kit-dev"), "1.19.1"))
    args = {"family": ["kit-dev", "kit-doc"], "replaces": ["oldkit"]}
    assert not node(**args)["due"]
    found = node(**args, version="1.19.1")
    assert (found["changed"], found["packages"]) == (True, [*NAMES, "kit-dev"])
    assert node.calls("apt-get")[-1].endswith("install kit=1.19.1-* kit-base=1.19.1-* kit-dev=1.19.1-*")
    assert found["diff"]["after"] == "kit 1.19.1\nkit-base 1.19.1\nkit-dev 1.19.1\n"


def test_a_version_that_could_not_be_had_makes_nothing_ours(node: Node) -> None:
    node.has(stanza("kit", "1.17.0"), stanza("kit-base", "1.17.0"))
    (node.top / "says/apt-get").write_text("E: broken\n")
    assert node(version="1.99")["failed"]
    assert node.record() == {"version": "1.99", "done": False}
    found = node(fresh_version="1.19.1", follow=True)
    assert (found["due"], found["origin"]) == (False, "found")
    # What was ours before stays so.
    node.noted("1.17.0", True)
    (node.top / "says/apt-get").write_text("E: broken\n")
    assert node(fresh_version="1.18.0", follow=True)["failed"]
    assert node.record() == {"version": "1.18.0", "done": False, "was": "1.17.0"}
    assert node(fresh_version="1.19.1", follow=True)["version"] == "1.19.1"


def test_any_version_will_do(node: Node) -> None:
    assert node()["version"] == "1.19.1"
    assert node.calls("apt-get")[0].endswith("install kit kit-base")
    assert not node()["due"]


def test_bad_input_is_one_line(node: Node) -> None:
    assert node(packages=[])["msg"].startswith("packages: none is named")

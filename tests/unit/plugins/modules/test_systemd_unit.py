# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""systemd_unit on real files, with a small program in place of systemctl that keeps a manager's state in a file."""

from __future__ import annotations

import marshal
import os
import re
import shutil
import socket
import sys
import time
from types import SimpleNamespace

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import (
    files,
    plan,
    ports,
    systemctl,
    unit,
    wait,
)
from ansible_collections.pcluster.postboot.plugins.modules import systemd_unit
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

SYSTEMCTL = """#!{python} -SE
import marshal, os, sys, time  # nothing that takes long to import, since each test starts it many times
home = {home!r}
path = home + "/manager"
state = marshal.load(open(path, "rb"))
words = [word for word in sys.argv[1:] if not word.startswith("-")]
command, name = words[0], (words[1:] or [""])[0]
open(home + "/calls", "a").write(" ".join(sys.argv[1:]) + "\\n")
unit = state["units"].setdefault(name, {{}}) if name else {{}}
file = home + "/units/" + name
now = str(int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6))
wall = time.time()

def changed(file):
    found = [os.stat(file).st_ctime] if os.path.exists(file) else []
    if os.path.isdir(file + ".d"):
        found += [entry.stat().st_ctime for entry in os.scandir(file + ".d")] + [os.stat(file + ".d").st_ctime]
    return max(found, default=0)

def up():
    behaviour = unit.get("behaviour")
    if behaviour == "condition":
        unit.update(ActiveState="inactive", SubState="dead", ConditionResult="no", ConditionTimestampMonotonic=now)
        return
    if behaviour == "fails":
        unit.update(ActiveState="failed", SubState="failed", Result="exit-code", ExecMainStatus="217")
        return
    unit.update(ActiveState="active", SubState="running", Result="success")
    unit.update(ActiveEnterTimestampMonotonic=now, StateChangeTimestampMonotonic=now)
    if name.endswith(".service"):  # a timer has no process
        unit.update(MainPID=str(int(unit.get("MainPID", 99)) + 1), ExecMainStartTimestampMonotonic=now)
    if unit.get("Type") == "oneshot":
        unit.update(ActiveState="inactive", SubState="dead")

if command == "show":
    there = os.path.isfile(file) or "vendor" in unit
    props = dict(unit)
    props.setdefault("LoadState", "loaded" if there else "not-found")
    props.setdefault("ActiveState", "inactive")
    props.setdefault("SubState", "dead")
    props["FragmentPath"] = file if os.path.exists(file) else unit.get("vendor", "")
    props.setdefault("UnitFileState", "disabled" if there else "")
    loaded = unit.get("loaded", 0)
    props["NeedDaemonReload"] = "yes" if there and loaded and changed(file) > state["reloaded"] else "no"
    unit["loaded"] = int(there)
    print("\\n".join(f"{{key}}={{value}}" for key, value in props.items()))
elif command == "is-enabled":
    print(unit.get("UnitFileState", "disabled" if os.path.exists(file) else "not-found"))
elif command in ("enable", "disable"):
    unit["UnitFileState"] = command + "d"
elif command == "daemon-reload":
    state["reloaded"] = wall
elif command in ("start", "restart"):
    if unit.get("behaviour") == "refused":
        sys.exit("Failed to start " + name + ": Unit is broken.\\nSee the log.")
    up()
elif command == "reload":
    unit["StateChangeTimestampMonotonic"] = now
    unit["ReloadResult"] = "exit-code" if unit.get("behaviour") == "bad-reload" else "success"
elif command == "stop":
    unit.update(ActiveState="inactive", SubState="dead")
marshal.dump(state, open(path, "wb"))
"""

ANALYZE = """#!{python} -SE
import glob, os, sys
path = sys.argv[-1]
status = 0
# The drop-ins of units that this one names are read too.
for file in [path, *sorted(glob.glob(os.path.dirname(path) + "/*.d/*"))]:
    for number, line in enumerate(open(file), 1):
        if line.startswith("Bad"):
            print(f"{{file}}:{{number}}: Unknown key 'Bad' in section [Service], ignoring.", file=sys.stderr)
        program = line[10:].split()[0] if line.startswith("ExecStart=/") else "/"
        if not os.path.exists(program):
            status = 1
            print(f"{{os.path.basename(path)}}: Command {{program}} is not executable: No such file", file=sys.stderr)
print("/lib/systemd/system/other.service:3: Unknown key 'Old' in section [Unit], ignoring.", file=sys.stderr)
sys.exit(status)
"""

# A file's time has the grain of a clock tick.
TICK = 0.02

UNIT = "[Unit]\nDescription=Demo\n[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"

TIMER = "[Timer]\nOnBootSec=1h\n[Install]\nWantedBy=timers.target\n"


class Host:
    """A folder with units, and the programs that stand for systemd."""

    def __init__(self, home, run_module):
        self.home = home
        self.units = home / "units"
        self.units.mkdir()
        self.conf = home / "conf"
        self.conf.write_text("1")
        self._run_module = run_module
        (home / "manager").write_bytes(marshal.dumps({"reloaded": 0, "units": {}}))
        self.program("systemctl", SYSTEMCTL.format(python=sys.executable, home=str(home)))
        self.program("systemd-analyze", ANALYZE.format(python=sys.executable))
        self.program("journalctl", "#!/bin/sh\necho '-- Boot --'\necho 'the last line'\n")

    def program(self, name, text):
        lab.program(self.home / "bin" / name, text)

    def set(self, name, **properties):
        state = marshal.loads((self.home / "manager").read_bytes())
        state["units"].setdefault(name, {}).update(properties)
        (self.home / "manager").write_bytes(marshal.dumps(state))

    def change(self, path):
        time.sleep(TICK)
        path.write_text("2")

    def calls(self):
        lines = lab.lines(self.home / "calls")
        (self.home / "calls").write_text("")
        return [line for line in lines if not line.startswith("show")]

    def run(self, check=False, **args):
        if "units" in args:
            args["units"] = [{"directory": str(self.units), **one} for one in args["units"]]
        else:
            args = {"name": "demo.service", "directory": str(self.units), **args}
        time.sleep(TICK)
        return self._run_module(systemd_unit, args, check=check)


@pytest.fixture
def host(tmp_path, monkeypatch, run_module):
    host = Host(tmp_path, run_module)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "running").mkdir()
    monkeypatch.setattr(systemctl, "RUNNING", str(tmp_path / "running"))
    monkeypatch.setattr(wait, "SETTLE_SECONDS", (0.0, 0.0))
    return host


def test_fresh_host_check_then_apply_then_nothing(host):
    foretold = host.run(unit=UNIT, check=True)
    assert foretold["actions"] == ["wrote", "enabled", "reloaded-daemon", "started"]
    assert host.calls() == []
    assert list(host.units.iterdir()) == []
    done = host.run(unit=UNIT)
    assert done["changed"]
    assert done["actions"] == foretold["actions"]
    assert host.calls() == ["--no-reload enable demo.service", "daemon-reload", "--no-block start demo.service"]
    assert (host.units / "demo.service").read_text() == UNIT
    assert (host.units / "demo.service").stat().st_mode & 0o777 == 0o644
    for check in (True, False):
        again = host.run(unit=UNIT, check=check)
        assert again["actions"] == []
        assert again["changed"] is False
        assert again["diff"] == []
    assert host.calls() == []


def test_diff_shows_files_and_state(host):
    (host.units / "demo.service").write_text("old\n")
    diff = host.run(unit=UNIT, check=True)["diff"]
    assert diff[0] == {
        "before_header": str(host.units / "demo.service"),
        "after_header": str(host.units / "demo.service"),
        "before": "old\n",
        "after": UNIT,
    }
    assert (diff[1]["before"], diff[1]["after"]) == (
        "active: inactive\nenabled: disabled\n",
        "active: active\nenabled: enabled\n",
    )
    assert host.run(unit=UNIT)["diff"] == diff


def test_a_changed_unit_restarts(host):
    host.run(unit=UNIT)
    host.calls()
    assert host.run(unit=UNIT.replace("Demo", "Other"), check=True)["actions"] == [
        "wrote",
        "reloaded-daemon",
        "restarted",
    ]
    result = host.run(unit=UNIT.replace("Demo", "Other"))
    assert result["actions"] == ["wrote", "reloaded-daemon", "restarted"]
    assert host.calls() == ["daemon-reload", "--no-block restart demo.service"]


def test_a_run_killed_between_writing_and_restarting_is_finished(host, monkeypatch):
    host.run(unit=UNIT)
    changed = UNIT.replace("Demo", "Other")
    with monkeypatch.context() as patch:
        patch.setattr(systemctl, "tell", _killed_at("daemon-reload", systemctl.tell))
        with pytest.raises(KeyboardInterrupt):
            host.run(unit=changed)
    assert host.run(unit=changed, check=True)["actions"] == ["reloaded-daemon", "restarted"]
    with monkeypatch.context() as patch:
        patch.setattr(unit, "_carry_out", _killed_at("restart", unit._carry_out))
        with pytest.raises(KeyboardInterrupt):
            host.run(unit=changed)
    assert host.run(unit=changed)["actions"] == ["restarted"]
    assert host.run(unit=changed)["actions"] == []


def _killed_at(word, real):
    def call(*args, **kwargs):
        if word in args:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    return call


def test_a_newer_program_restarts_even_through_a_link_and_with_an_old_mtime(host, tmp_path):
    first, second, link = tmp_path / "v1", tmp_path / "v2", tmp_path / "current"
    for path in (first, second):
        path.write_text("program")
    link.symlink_to(first)
    args = {"unit": UNIT, "restart_on": [str(link), str(tmp_path / "not there")]}
    host.run(**args)
    assert host.run(**args)["actions"] == []
    time.sleep(TICK)
    os.utime(first, (1, 1))  # ctime moves, mtime goes back
    assert host.run(**args)["actions"] == ["restarted"]
    time.sleep(TICK)
    link.unlink()
    link.symlink_to(second)
    assert host.run(**args)["actions"] == ["restarted"]
    assert host.run(**args)["actions"] == []


def test_a_folder_stands_for_its_files(host, tmp_path):
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "a").write_text("1")
    args = {"unit": UNIT, "restart_on": [str(folder)]}
    host.run(**args)
    assert host.run(**args)["actions"] == []
    host.change(folder / "a")
    assert host.run(**args)["actions"] == ["restarted"]


@pytest.mark.parametrize(("can", "action"), [("yes", "reloaded"), ("no", "restarted")])
def test_a_newer_configuration_reloads(host, can, action):
    host.set("demo.service", CanReload=can)
    args = {"unit": UNIT, "reload_on": [str(host.conf)]}
    assert "started" in host.run(**args)["actions"]
    assert host.run(**args)["actions"] == []
    host.change(host.conf)
    assert host.run(check=True, **args)["actions"] == [action]
    assert host.run(**args)["actions"] == [action]
    assert host.run(**args)["actions"] == []


def test_a_restart_makes_the_reload_superfluous(host):
    host.set("demo.service", CanReload="yes")
    host.run(unit=UNIT, reload_on=[str(host.conf)])
    host.change(host.conf)
    result = host.run(unit=UNIT + "# new\n", reload_on=[str(host.conf)])
    assert result["actions"] == ["wrote", "reloaded-daemon", "restarted"]
    assert host.run(unit=UNIT + "# new\n", reload_on=[str(host.conf)])["actions"] == []


def test_a_failed_reload_is_told(host):
    host.set("demo.service", CanReload="yes", behaviour="bad-reload")
    host.run(unit=UNIT, reload_on=[str(host.conf)])
    host.change(host.conf)
    result = host.run(unit=UNIT, reload_on=[str(host.conf)])
    assert result["msg"] == (
        "demo.service could not reload: result exit-code; "
        f"see 'journalctl -u demo.service' and {host.units}/demo.service"
    )
    assert result["journal"] == ["the last line"]


def test_dropins_of_a_packaged_unit(host, tmp_path):
    vendor = tmp_path / "vendor.service"
    vendor.write_text("[Service]\nExecStart=/bin/true\nBad=of the vendor\n")
    host.set("demo.service", vendor=str(vendor), UnitFileState="static")
    dropin = {"10-path.conf": "[Service]\nEnvironment=A=1"}
    result = host.run(state="present", dropins=dropin)
    assert result["actions"] == ["wrote", "reloaded-daemon"]
    assert (host.units / "demo.service.d/10-path.conf").read_text() == "[Service]\nEnvironment=A=1\n"
    assert host.run(state="present", dropins=dropin)["actions"] == []
    assert host.run(dropins=dropin)["actions"] == ["started"]  # static: that it can not be enabled is no mistake
    assert host.run(dropins=dropin)["actions"] == []
    assert host.run(dropins={"10-path.conf": None})["actions"] == ["removed", "reloaded-daemon", "restarted"]
    assert list((host.units / "demo.service.d").iterdir()) == []
    assert host.run(dropins={"10-path.conf": None})["actions"] == []


def test_what_verify_says_of_our_files_is_one_line_and_nothing_is_written(host):
    host.run(unit=UNIT)
    host.calls()
    result = host.run(unit=UNIT.replace("ExecStart", "Bad=1\nBad=2\nExecStart"))
    assert result["msg"] == (
        "unit: systemd would not take it as it is: demo.service:4: Unknown key 'Bad' in section [Service], ignoring. "
        "(and 1 more)"
    )
    assert (host.units / "demo.service").read_text() == UNIT
    result = host.run(unit=UNIT, dropins={"1.conf": "[Service]\nBad=1\n"}, check=True)
    assert "demo.service.d/1.conf:2: Unknown key" in result["msg"]
    assert host.calls() == []
    assert host.run(unit=UNIT, dropins={"1.conf": "[Service]\nBad=1\n"}, verify=False)["changed"]


def test_a_program_that_is_not_there_yet_fails_only_outside_of_check_mode(host):
    unit = UNIT.replace("/bin/true", "/opt/not/there")
    assert host.run(unit=unit, check=True)["actions"] == ["wrote", "enabled", "reloaded-daemon", "started"]
    result = host.run(unit=unit)
    assert "Command /opt/not/there is not executable" in result["msg"]
    assert list(host.units.iterdir()) == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_the_real_systemd_analyze(host):
    (host.home / "bin/systemd-analyze").unlink()
    assert "Unknown" in host.run(unit=UNIT.replace("ExecStart", "Bad=1\nExecStart"))["msg"]
    assert host.run(unit=UNIT)["changed"]


def test_masked_is_one_clear_line(host):
    (host.units / "demo.service").symlink_to("/dev/null")
    result = host.run(unit=UNIT)
    assert result["msg"].startswith("demo.service is masked on this node")
    assert (host.units / "demo.service").is_symlink()
    assert host.run(state="stopped")["changed"] is False


def test_absent_unit(host):
    assert host.run()["msg"].startswith("demo.service is not there: no 'unit' was given")
    assert host.run(check=True)["actions"] == ["enabled", "reloaded-daemon", "started"]
    assert host.run(state="stopped")["changed"] is False
    assert host.run(state="present", dropins={"1.conf": "[Service]\n"})["actions"] == ["wrote", "reloaded-daemon"]


def test_stopped_and_disabled(host):
    host.run(unit=UNIT)
    result = host.run(state="stopped", enabled=False, check=True)
    assert result["actions"] == ["disabled", "reloaded-daemon", "stopped"]
    assert host.run(state="stopped", enabled=False)["actions"] == result["actions"]
    assert host.run(state="stopped", enabled=False)["changed"] is False
    assert host.run(state="stopped")["changed"] is False
    assert host.run(state="present", enabled=True)["actions"] == ["enabled", "reloaded-daemon"]


def test_a_stop_may_take_as_long_as_systemd_allows_it(host, monkeypatch, repo):
    """Until SIGKILL, and longer than by any unit of the roles."""
    host.run(unit=UNIT)
    patience, program = {}, systemctl.program

    def note(*argv, timeout=60):
        patience[argv[1]] = timeout
        return program(*argv, timeout=timeout)

    monkeypatch.setattr(systemctl, "program", note)
    assert host.run(state="stopped")["actions"] == ["stopped"]
    units = "".join(path.read_text() for path in repo.glob("roles/*/templates/*.service.j2"))
    assert patience["stop"] > max(90, *map(int, re.findall(r"^TimeoutStopSec=(\d+)$", units, re.MULTILINE)))


def test_enabling_needs_an_install_section(host):
    unit = UNIT.partition("[Install]")[0]
    assert host.run(unit=unit, enabled=True, check=True)["msg"] == (
        "enabled: demo.service has no [Install] section, it cannot be enabled; set enabled: false"
    )
    assert host.run(unit=unit)["actions"] == ["wrote", "reloaded-daemon", "started"]


def test_a_start_that_fails_brings_the_journal(host):
    host.set("demo.service", behaviour="fails")
    result = host.run(unit=UNIT)
    assert result["failed"]
    assert result["msg"] == (
        "demo.service did not come up and stay so within 15 s: it is failed/failed, result exit-code, exit status 217 "
        f"(User does not exist); see 'journalctl -u demo.service' and {host.units}/demo.service"
    )
    assert result["journal"] == ["the last line"]
    host.set("demo.service", behaviour="")
    host.calls()
    assert host.run(unit=UNIT)["actions"] == ["started"]
    assert host.calls()[0] == "reset-failed demo.service"


def test_a_start_that_is_refused_or_never_tried(host):
    host.set("demo.service", behaviour="refused")
    result = host.run(unit=UNIT)
    assert result["msg"] == (
        "'systemctl --no-block start demo.service' failed: Failed to start demo.service: Unit is broken."
    )
    host.set("demo.service", behaviour="condition")
    assert "a Condition…= of the unit is not met" in host.run(unit=UNIT)["msg"]


def test_a_process_that_keeps_dying_is_not_started(host, monkeypatch):
    monkeypatch.setattr(wait, "SETTLE_SECONDS", (0.4, 0.4))
    real = systemctl.status_of
    pids = iter(range(1000))
    monkeypatch.setattr(systemctl, "status_of", lambda name: {**real(name), "NRestarts": str(next(pids))})
    result = host.run(unit=UNIT, wait_seconds=1)
    assert result["msg"].startswith("demo.service did not come up and stay so within 1 s: it is active/running, ")
    assert "restart(s)" in result["msg"]


@pytest.mark.parametrize(("kind", "watched"), [("simple", True), ("notify", False)])
def test_a_service_that_tells_when_it_is_up_need_not_be_watched(host, monkeypatch, kind, watched):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(wait, "SETTLE_SECONDS", (1.5, 1.5))
    monkeypatch.setattr(wait, "time", SimpleNamespace(**{**vars(time), "sleep": sleep}))
    host.set("demo.service", Type=kind)
    assert host.run(unit=UNIT, wait_seconds=60)["actions"][-1] == "started"
    assert bool(slept) == watched


class _Web(lab.Pages):
    asked, url = 0, ""

    def do_GET(self):
        _Web.asked += 1
        self.say(200 if self.path == "/ok" or self.asked > 3 else 503)


@pytest.fixture
def web(monkeypatch):
    monkeypatch.setattr(_Web, "asked", 0)
    with lab.serving(_Web) as _Web.url:
        yield _Web


def test_wait_url_is_asked_until_it_answers_and_on_every_run(host, web, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert host.run(unit=UNIT, wait_url=f"{web.url}/soon")["actions"][-1] == "started"
    assert web.asked == 4
    assert host.run(unit=UNIT, wait_url=f"{web.url}/ok")["actions"] == []
    assert web.asked == 5


def test_wait_url_that_does_not_answer(host, web):
    web.asked = -1000
    url = f"{web.url}/x"
    result = host.run(unit=UNIT, wait_url=url, wait_seconds=1)
    assert result["msg"].startswith(f"demo.service is active, but {url} gave no 2xx answer within 1 s: HTTP Error 503")
    assert result["msg"].endswith(f"; see 'journalctl -u demo.service' and {host.units}/demo.service")
    assert result["journal"] == ["the last line"]


def test_one_that_still_starts_is_told_and_has_not_failed(host, web, warnings, tmp_path):
    """As Prometheus does: /-/healthy answers at once, and /-/ready says 503 until its log is read."""
    (tmp_path / "wal/checkpoint.1").mkdir(parents=True)
    for name, size in (("checkpoint.1/0", 4_000_000), ("2", 1_000_000)):
        (tmp_path / "wal" / name).touch()
        os.truncate(tmp_path / "wal" / name, size)
    web.asked = -1000
    url = web.url
    args = {"unit": UNIT, "wait_url": f"{url}/ready", "wait_alive_url": f"{url}/ok", "wait_log": str(tmp_path / "wal")}
    begin = time.monotonic()
    result = host.run(**args, wait_seconds=0)
    assert 1 <= time.monotonic() - begin < PATIENCE  # a second for its 5 MB
    assert result["starting"] == (
        f"demo.service is up and still starts: it has 5 MB of {tmp_path}/wal to read and answers at {url}/ok, and not "
        f"yet at {url}/ready after 1 s (HTTP Error 503: Service Unavailable); it goes on by itself, see 'journalctl -u "
        f"demo.service' and {host.units}/demo.service"
    )
    assert (result["failed"], result["summary"], warnings) == (False, "demo.service still starts", [result["starting"]])
    # Nothing is forgiven that is not alive.
    dead = host.run(**{**args, "wait_alive_url": f"{url}/no"}, wait_seconds=0)
    assert "gave no 2xx answer within 1 s" in dead["msg"]
    host.set("demo.service", NRestarts="2")
    assert "still starts after it ended 2 times: it" in host.run(**args, wait_seconds=0)["starting"]
    web.asked = 0
    again = host.run(**args)
    assert (again["actions"], again["starting"], again.get("summary")) == ([], "", None)


@pytest.mark.parametrize("log", [None, "/no/such/folder"])
def test_without_a_log_nothing_is_added_to_the_time(host, web, log):
    web.asked = -1000
    result = host.run(unit=UNIT, wait_url=f"{web.url}/x", wait_alive_url=f"{web.url}/ok", wait_log=log, wait_seconds=1)
    assert f"demo.service is up and still starts: it answers at {web.url}/ok, and not yet at" in result["starting"]


@pytest.mark.parametrize("behaviour", ["", "fails"])
@pytest.mark.parametrize("unit", ["other.service", "session-1.scope", "demo.service"])
def test_who_holds_the_port_is_named(host, web, monkeypatch, behaviour, unit):
    """Whether the unit failed on it, or is up and another program answers."""
    host.set("demo.service", behaviour=behaviour)
    monkeypatch.setattr(ports, "_unit_of", lambda process: unit if process == str(os.getpid()) else "")
    web.asked = -1000
    message = host.run(unit=UNIT, wait_url=f"{web.url}/x", wait_seconds=1)["msg"]
    with open("/proc/self/comm") as stream:
        program = stream.read().strip()
    whose = " of other.service" if unit == "other.service" else ""
    held = (
        f"; port {web.url.rpartition(':')[2]} is held by {program} (pid {os.getpid()}{whose}), not by demo.service: "
        "stop it, or give the component another address; see 'journalctl"
    )
    assert (held in message) == (unit != "demo.service")
    assert ("is held by" in message) == (unit != "demo.service")


def test_nobody_is_named_where_nobody_listens(web):
    assert ports.stranger("demo.service", None) == ""
    assert ports.stranger("demo.service", "http://127.0.0.1:9/x") == ""
    assert ports.stranger("demo.service", "http://127.0.0.1:none/x") == ""


def test_a_process_is_of_the_unit_of_its_control_group(tmp_path, monkeypatch):
    real = open
    for path, name in (
        ("0::/system.slice/demo.service", "demo.service"),
        ("12:pids:/x\n1:name=systemd:/system.slice/demo.service/sub\n0::/system.slice/demo.service", "demo.service"),
        ("0::/user.slice/user-0.slice/session-3.scope", "session-3.scope"),
        ("0::/", ""),
    ):
        (tmp_path / "cgroup").write_text(path + "\n")
        monkeypatch.setattr("builtins.open", lambda *_args, **_more: real(tmp_path / "cgroup"))
        assert ports._unit_of("1") == name
        monkeypatch.undo()
    assert ports._unit_of("0") == ""


def test_a_start_that_fails_tells_the_address_too(host):
    """So that the port is known, which may be another program's."""
    host.set("demo.service", behaviour="fails")
    message = host.run(unit=UNIT, wait_url="http://127.0.0.1:9/x")["msg"]
    assert message.startswith("demo.service did not come up to answer at http://127.0.0.1:9/x within 15 s: it is ")


def test_oneshot_is_started_once(host):
    host.set("demo.service", Type="oneshot")
    args = {"unit": UNIT, "restart_on": [str(host.conf)]}
    assert host.run(**args)["actions"][-1] == "started"
    assert host.calls()[-1] == "start demo.service"
    assert host.run(**args)["actions"] == []
    host.change(host.conf)
    assert host.run(**args)["actions"] == ["started"]


def test_image_build_only_writes_and_enables(host, tmp_path):
    (tmp_path / "running").rmdir()
    foretold = host.run(unit=UNIT, check=True)
    result = host.run(unit=UNIT)
    assert foretold["actions"] == result["actions"] == ["wrote", "enabled"]
    assert host.calls() == ["is-enabled demo.service", "is-enabled demo.service", "enable demo.service"]
    assert host.run(unit=UNIT)["changed"] is False


def test_a_file_s_mode_and_kind_are_set_right(host, tmp_path):
    host.run(unit=UNIT)
    path = host.units / "demo.service"
    path.chmod(0o600)
    assert "wrote" in host.run(unit=UNIT)["actions"]
    assert path.stat().st_mode & 0o777 == 0o644
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert "wrote" in host.run(unit=UNIT)["actions"]
    assert not path.is_symlink()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"name": "demo"}, "name: 'demo' is no unit's name"),
        ({"name": "../x.service"}, "name: '../x.service' is no unit's name"),
        ({"name": "demo@.service"}, "state: demo@.service is a template"),
        ({"unit": " \n"}, "unit: the content for demo.service is empty"),
        ({"dropins": {"x": "y"}}, "dropins: 'x' would not be read by systemd"),
        ({"dropins": {".a.conf": "y"}}, "dropins: '.a.conf' would not be read by systemd"),
        ({"dropins": {"../a.conf": "y"}}, "dropins: '../a.conf' would not be read by systemd"),
        ({"companions": {"demo": "y"}}, "companions: 'demo' is no unit's name"),
        ({"companions": {"../x.service.d/a.conf": "y"}}, "companions: '../x.service.d/a.conf' is no unit's name"),
        ({"companions": {"x.service.d/a": "y"}}, "companions: 'a' would not be read by systemd"),
    ],
)
def test_what_can_not_be_meant_is_refused(host, args, message):
    result = host.run(**{"unit": UNIT, **args})
    assert result["msg"].startswith(message)
    assert "\n" not in result["msg"]


def test_without_systemd_at_all(host):
    (host.home / "bin/systemctl").unlink()
    os.environ["PATH"] = str(host.home / "bin")
    assert host.run(unit=UNIT)["msg"] == "the program systemctl is not there"


def test_a_unit_yields_to_another_process_that_answers(host, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        yielding = {"unit": UNIT, "yield_to": f"127.0.0.1:{server.getsockname()[1]}"}
        assert host.run(**yielding)["actions"] == []
        assert host.run(unit=UNIT)["actions"] == ["wrote", "enabled", "reloaded-daemon", "started"]
        # The unit's own process may well be the one that answers.
        changed = host.run(**{**yielding, "unit": UNIT + "# new\n"})["actions"]
        assert changed == ["wrote", "reloaded-daemon", "restarted"]
        host.set("demo.service", ActiveState="inactive")
        with monkeypatch.context() as patch:
            patch.setattr(systemctl, "RUNNING", "/not/there")  # in an image build nothing of the machine counts
            assert "wrote" in host.run(**yielding, state="present")["actions"]
        assert host.run(**yielding)["actions"] == []
    assert "started" in host.run(**yielding)["actions"]


def test_what_generators_write_is_not_taken_for_a_change(monkeypatch):
    monkeypatch.setattr(files, "changed_at", lambda path: 5.0 if path.startswith("/run/") else 3.0)
    status = {"FragmentPath": "/run/systemd/generator/x.service", "DropInPaths": "/run/systemd/a.conf /etc/b.conf"}
    assert plan._newest(unit.Request("x.service", directory="/not/there"), status) == 3


def test_an_answer_from_another_process_does_not_count(host, monkeypatch):
    def answers(url):
        host.set("demo.service", ActiveState="failed", SubState="failed", Result="exit-code")
        return  # the port's present owner answers; ours has just failed on it

    monkeypatch.setattr(wait, "_answers", answers)
    result = host.run(unit=UNIT, wait_url="http://127.0.0.1:1/", wait_seconds=2)
    assert "did not come up to answer at http://127.0.0.1:1/ within 2 s: it is failed/failed" in result["msg"]


def test_the_process_that_listens_itself_need_not_stay_first(host, web, monkeypatch):
    monkeypatch.setattr(wait, "SETTLE_SECONDS", (60.0, 60.0))
    monkeypatch.setattr(wait, "_same_process", lambda name, identity: True)
    web.asked = 10
    url = f"{web.url}/ok"
    assert ports.listens(str(os.getpid()), url)
    assert not ports.listens(str(os.getppid()), url)
    assert not ports.listens("0", url)
    request = unit.Request("demo.service", wait_url=url, wait_seconds=600)
    monkeypatch.setattr(
        systemctl, "status_of", lambda name: {"ActiveState": "active", "MainPID": str(os.getpid()), "NRestarts": "0"}
    )
    began = time.monotonic()
    wait.until_up(request, changed=True)
    assert time.monotonic() - began < PATIENCE  # half of wait_seconds is how long it would have to stay


@pytest.fixture
def provided(host, tmp_path, monkeypatch):
    """Systemd's tools for users and directories; `broken` in the home makes them do nothing."""
    for name, constant in (("sysusers.d", "SYSUSERS"), ("tmpfiles.d", "TMPFILES"), ("late", "LATE_TMPFILES")):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(files, constant, str(tmp_path / name))
    host.program(
        "systemd-tmpfiles",
        f"""#!/bin/sh
[ -e {tmp_path}/broken ] && echo 'Read-only file system' >&2 && exit 73
for file; do :; done
while read -r kind path mode rest; do [ "$kind" = d ] && install -d -m "$mode" "$path"; done < "$file"
""",
    )
    host.program("systemd-sysusers", f"#!/bin/sh\n[ -e {tmp_path}/broken ] || cp $1 {tmp_path}/accounts\n")

    def getpwnam(name):
        accounts = tmp_path / "accounts"
        if not accounts.exists() or f"u {name} " not in accounts.read_text():
            raise KeyError(name)

    monkeypatch.setattr(files.pwd, "getpwnam", getpwnam)
    return host


def test_users_and_directories_are_made_before_the_start(provided, tmp_path):
    folder = tmp_path / "state"
    args = {"unit": UNIT, "sysusers": "u demo - Demo /var/lib/demo", "tmpfiles": f"d {folder} 0750"}
    foretold = provided.run(check=True, **args)["actions"]
    assert not folder.exists()
    done = provided.run(**args)["actions"]
    assert foretold == done == ["wrote", "made-users", "made-directories", "enabled", "reloaded-daemon", "started"]
    assert folder.stat().st_mode & 0o777 == 0o750
    assert provided.run(**args)["actions"] == []
    folder.chmod(0o700)
    (tmp_path / "accounts").unlink()  # as a run that was killed after it had written the files
    assert provided.run(**args)["actions"] == ["made-users", "made-directories"]
    assert folder.stat().st_mode & 0o777 == 0o750


def test_directories_on_a_disk_that_is_mounted_late_are_not_in_tmpfiles_d(provided, tmp_path):
    folder = tmp_path / "disk/state"
    args = {"unit": UNIT, "tmpfiles_late": f"d {folder} 0750"}
    assert provided.run(check=True, **args)["actions"] == provided.run(**args)["actions"]
    assert folder.is_dir()
    assert (tmp_path / "late/demo.conf").read_text() == f"d {folder} 0750\n"
    assert not (tmp_path / "tmpfiles.d/demo.conf").exists()
    assert provided.run(**args)["actions"] == []
    folder.rmdir()
    assert provided.run(**args)["actions"] == ["made-directories"]


@pytest.mark.parametrize("kind", ["sysusers", "tmpfiles"])
def test_what_systemd_s_tools_did_not_make_is_named(provided, tmp_path, kind):
    (tmp_path / "broken").touch()
    line = {"sysusers": "u demo - Demo", "tmpfiles": f"d {tmp_path}/state 0755"}[kind]
    message = provided.run(unit=UNIT, **{kind: line})["msg"]
    assert message.startswith(f"'systemd-{kind}")
    assert "did not provide" in message
    assert ("Read-only file system" in message) == (kind == "tmpfiles")
    assert not (provided.units / "demo.service").exists()


def test_companions_come_with_the_unit(host):
    args = {"name": "demo.timer", "unit": TIMER, "companions": {"demo.service": UNIT}}
    assert host.run(**args)["actions"] == ["wrote", "enabled", "reloaded-daemon", "started"]
    assert (host.units / "demo.service").read_text() == UNIT
    assert host.run(**args)["actions"] == []
    changed = {"demo.service": UNIT.replace("Demo", "Changed")}
    assert host.run(**{**args, "companions": changed})["actions"] == ["wrote", "reloaded-daemon"]
    bad = host.run(**{**args, "companions": {"demo.service": UNIT + "[Service]\nBad=1\n"}})
    assert bad["msg"].startswith("unit: systemd would not take it as it is: demo.service:")
    assert host.run(**{**args, "companions": {"demo.service": None}})["actions"] == ["removed", "reloaded-daemon"]
    assert not (host.units / "demo.service").exists()


def test_a_drop_in_of_another_unit_comes_with_the_unit(host):
    dropin = "other.service.d/10-demo.conf"
    args = {"unit": UNIT, "companions": {dropin: "[Service]\nType=oneshot\n"}}
    assert host.run(**args)["actions"] == ["wrote", "enabled", "reloaded-daemon", "started"]
    assert (host.units / dropin).read_text() == "[Service]\nType=oneshot\n"
    assert host.run(**args)["actions"] == []
    # It is none of this unit's files, so that its process is not older than they are.
    assert host.run(**{**args, "companions": {dropin: "[Service]\n"}})["actions"] == ["wrote", "reloaded-daemon"]
    bad = host.run(**{**args, "companions": {dropin: "[Service]\nBad=1\n"}})
    assert bad["msg"].startswith(f"unit: systemd would not take it as it is: {dropin}:2:")
    assert host.run(**{**args, "companions": {dropin: None}})["actions"] == ["removed", "reloaded-daemon"]


def test_every_option_is_documented():
    documented = yaml.safe_load(systemd_unit.DOCUMENTATION)["options"]
    assert set(documented) == {*unit.Request._fields, "units"} - {"check"}
    assert set(documented["units"]["suboptions"]) == set(systemd_unit.UNIT)


@pytest.mark.parametrize("check", [True, False])
def test_current_leaves_a_unit_that_does_not_run(host, check):
    (host.units / "demo.service").write_text(UNIT)
    done = host.run(state="current", dropins={"10-path.conf": "[Service]\n"}, check=check)
    assert done["actions"] == ["wrote", "reloaded-daemon"]
    assert not any("start" in call for call in host.calls())


def test_current_restarts_a_unit_that_is_older_than_its_files(host):
    host.run(unit=UNIT)
    host.calls()
    args = {"state": "current", "dropins": {"10-path.conf": "[Service]\n"}}
    assert host.run(**args)["actions"] == ["wrote", "reloaded-daemon", "restarted"]
    assert host.run(**args)["actions"] == []


def test_a_unit_in_use_is_restarted_later(host, tmp_path, warnings):
    host.program(
        "who-uses-it",
        f"#!/bin/sh\necho asked >> {tmp_path}/asked\n[ -e {tmp_path}/jobs ] && cat {tmp_path}/jobs || :\n",
    )
    host.run(unit=UNIT)
    args = {"unit": UNIT + "# new\n", "busy": ["who-uses-it"]}
    (tmp_path / "jobs").write_text("1\n2\n3_4\n5\n6\n7\n")
    for check in (True, False, False):
        done = host.run(**args, check=check)
        assert "restarted" not in done["actions"]
        assert done["pending"] == (
            "demo.service was not restarted: it is in use (1, 2, 3_4, 5, 6 and 1 more); a run while it idles does it"
        )
        assert done["summary"] == "restart of demo.service pending"
        assert warnings.pop() == done["pending"]
    assert done["changed"] is False
    (tmp_path / "jobs").unlink()
    done = host.run(**args)
    assert (done["actions"], done["pending"], done.get("summary")) == (["restarted"], "", None)
    (tmp_path / "asked").unlink()
    assert host.run(**args)["actions"] == []
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("program", ["#!/bin/sh\necho 'squeue: error: no controller' >&2\nexit 1\n", None])
def test_a_unit_of_which_nobody_can_tell_is_not_restarted(host, program):
    if program:
        host.program("who-uses-it", program)
    host.run(unit=UNIT)
    done = host.run(unit=UNIT + "# new\n", busy=["who-uses-it"])
    assert "restarted" not in done["actions"]
    assert ("no controller" if program else "the program who-uses-it is not there") in done["pending"]


def test_a_unit_that_is_down_is_started_whoever_uses_it(host):
    host.program("who-uses-it", "#!/bin/sh\necho 1\n")
    assert "started" in host.run(unit=UNIT, busy=["who-uses-it"])["actions"]


SEVERAL = [
    {"name": "count.timer", "unit": TIMER, "companions": {"count.service": UNIT.partition("[Install]")[0]}},
    {"name": "count.service"},
]


def test_several_units_are_one_call(host):
    host.set("count.service", UnitFileState="static")
    foretold = host.run(units=SEVERAL, check=True)
    assert host.calls() == []
    assert list(host.units.iterdir()) == []
    done = host.run(units=SEVERAL)
    assert done["changed"]
    assert done["actions"] == [
        *(f"count.timer {action}" for action in ("wrote", "enabled", "reloaded-daemon", "started")),
        "count.service started",
    ]
    assert (foretold["actions"], foretold["diff"]) == (done["actions"], done["diff"])
    assert [diff["after_header"].rpartition("/")[2] for diff in done["diff"]] == [
        *("count.timer", "count.service"),  # the files
        *("count.timer", "count.service"),  # the states
    ]
    assert {name: one["actions"][-1:] for name, one in done["units"].items()} == {
        "count.timer": ["started"],
        "count.service": ["started"],
    }
    assert done["units"]["count.service"]["status"]["ActiveState"] == "active"
    for check in (True, False):
        again = host.run(units=SEVERAL, check=check)
        assert (again["changed"], again["actions"], again["diff"]) == (False, [], [])


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (
            {"name": "demo.service", "unit": UNIT + "Bad=1\n"},
            "unit: systemd would not take it as it is: demo.service:7:",
        ),
        ({"name": "demo.service"}, "demo.service is not there: no 'unit' was given"),
        ({"name": "demo.service", "unit": UNIT, "dropins": {"path": ""}}, "demo.service: dropins: 'path' would not be"),
        ({"name": "demo.service", "unit": " "}, "unit: the content for demo.service is empty"),
    ],
)
def test_nothing_is_touched_where_one_of_several_units_is_wrong(host, second, said):
    failed = host.run(units=[*SEVERAL, second])
    assert failed["msg"].startswith(said)
    assert host.calls() == []
    assert list(host.units.iterdir()) == []


def test_what_fails_of_several_units_is_named(host):
    host.set("demo.service", behaviour="fails")
    failed = host.run(units=[{"name": "demo.service", "unit": UNIT}, *SEVERAL])
    assert failed["msg"].startswith("demo.service did not come up and stay so within 15 s: it is failed/failed")
    assert failed["journal"] == ["the last line"]
    host.program("systemctl", "#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    failed = host.run(units=[{"name": "demo.service", "state": "present", "unit": UNIT + "# new\n"}])
    assert failed["msg"].startswith("'systemctl show demo.service")


def test_several_units_have_one_summary(host):
    host.program("who-uses-it", "#!/bin/sh\necho 1\n")
    units = [{"name": f"{name}.service", "unit": UNIT, "busy": ["who-uses-it"]} for name in ("a", "b", "c")]
    host.run(units=units)
    for one in units[:2]:
        one["unit"] += "# new\n"
    done = host.run(units=units)
    assert done["summary"] == "restart of a.service pending; restart of b.service pending"
    assert done["actions"] == [f"{name}.service {did}" for name in "ab" for did in ("wrote", "reloaded-daemon")]
    assert len(done["units"]["a.service"]["pending"]) > 0


def test_a_unit_and_several_are_refused_together(host):
    assert "mutually exclusive: units|state" in host.run(units=SEVERAL, state="stopped")["msg"]
    assert "one of the following is required: name, units" in host._run_module(systemd_unit, {})["msg"]


@strangers.TWO_USERS
def test_entries_that_vanish_while_a_folder_is_looked_at():
    with strangers.crowd() as place:
        names = [place / str(number) for number in range(50)]

        def flicker():
            for name in names:
                name.mkdir()
            for name in names:
                name.rmdir()

        with strangers.churn(flicker):
            for _again in strangers.until(1):
                assert files.changed_at(str(place)) > 0

#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.systemd_unit."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: systemd_unit
short_description: Bring a systemd unit, its files and its running process into one state
version_added: 0.1.0
description:
  - One step for a service - writes the unit and its drop-ins after C(systemd-analyze verify) has read them, reloads
    the daemon where that is due, enables the unit, and starts, restarts or reloads it.
  - No handler is needed, and none is missed. A restart is due when the running process is older than the unit, one of
    its drop-ins or a file in O(restart_on), so a run that was killed between writing and restarting is finished by
    the next.
  - Where no systemd runs, as in an image build, the files are written and the unit is enabled, and nothing is
    started.
options:
  name:
    description:
      - The unit with its suffix, as in O(units). One of the two is needed.
    type: str
  <<: &unit
    unit:
      description:
        - The whole content of the unit file. Leave it out where a package brings the unit.
      type: str
    dropins:
      description:
        - Content of drop-ins by file name, such as V(10-path.conf). A value of V(null) removes that drop-in.
      type: dict
      default: {}
    companions:
      description:
        - Content of further unit files by name, such as the service of a timer, and of drop-ins of other units, such
          as V(network.target.d/10-demo.conf). They are written with the unit, and nothing of them is enabled or
          started. A value of V(null) removes that file.
      type: dict
      default: {}
    sysusers:
      description:
        - Users and groups that the unit needs, as lines of C(sysusers.d). They are kept in C(/etc/sysusers.d), and
          made by C(systemd-sysusers) where one is not there.
      type: str
    tmpfiles:
      description:
        - Directories that the unit needs, as lines of C(tmpfiles.d). They are kept in C(/etc/tmpfiles.d), so that
          those on a tmpfs come back after a boot, and made by C(systemd-tmpfiles) where a C(d) line's is not there as
          it says.
      type: str
    tmpfiles_late:
      description:
        - The same for directories on a disk that is mounted later than systemd applies C(tmpfiles.d), which would
          make them below the mount point. They are kept in C(/etc/pcluster-postboot/tmpfiles.d/), under the name of
          the unit with C(.conf) in the place of its suffix. The unit itself has to make them, by C(systemd-tmpfiles
          --create) with that file.
      type: str
    state:
      description:
        - V(started) means running, with the process no older than its files. For a C(Type=oneshot) without
          C(RemainAfterExit) it means that it ended well since the boot and since its files changed; one that no other
          unit refers to is forgotten by systemd when it ends, and so is started every time.
        - V(stopped) means not running.
        - V(current) means that a unit that runs has a process no older than its files. One that does not run is not
          started.
        - V(present) means that the files are in place and known to systemd; whether the unit runs is left alone.
      type: str
      choices: [started, stopped, current, present]
      default: started
    enabled:
      description:
        - Whether the unit comes up with the node.
        - Left out, a unit that can be enabled is with O(state=started), and otherwise it stays as it is.
      type: bool
    restart_on:
      description:
        - Files that the process reads only when it starts, such as its program and its configuration. One that
          changed (by its ctime, or that of what it links to) after the process started makes a restart due. A folder
          stands for what is directly in it. One that is not there counts for nothing.
      type: list
      elements: path
      default: []
    reload_on:
      description:
        - Files that the process reads again on reload. One that changed after the unit last changed its state, which
          a reload does, makes a reload due; a restart where the unit has no C(ExecReload).
      type: list
      elements: path
      default: []
    yield_to:
      description:
        - An address such as V(127.0.0.1:5555). While the unit is not up and another process answers there, nothing is
          done.
      type: str
    busy:
      description:
        - A program and its arguments that print who uses the unit, word by word. While they print anything, or fail,
          the unit is not restarted; RV(pending) and a warning say so, and a later run does it.
        - It is asked only when a restart is due, directly before it.
      type: list
      elements: str
      default: []
    verify:
      description:
        - Whether C(systemd-analyze verify) must have nothing to say about the files before they are put in place. In
          check mode, programs and units that are not there yet are overlooked.
      type: bool
      default: true
    wait_url:
      description:
        - HTTP address that must answer 2xx while the unit stays up with the same process, for example that of an
          exporter's metrics. It is asked on every run, not only after a start. No proxy is used.
      type: str
    wait_seconds:
      description:
        - Seconds within which a unit that was started must be up, and O(wait_url) answer. A service must stay up for
          2 of them, or for 1 where O(wait_url) answers; not one whose own process listens there, or whose C(Type) is
          V(notify) or V(oneshot).
      type: int
      default: 15
    wait_log:
      description:
        - Folder of a log that the service reads when it starts, before O(wait_url) answers. O(wait_seconds) grows by
          a second for each 5 MB in it, and by 15 minutes at most.
      type: path
    wait_alive_url:
      description:
        - HTTP address that answers 2xx as soon as the process serves, though O(wait_url) does not yet. Where it does
          when the time is over, the unit is not failed, and RV(starting) and a warning say that it still starts.
      type: str
    directory:
      description:
        - Folder of the unit files.
      type: path
      default: /etc/systemd/system
  units:
    description:
      - Several units in the place of O(name) and its options, brought into their states one after another. None of them
        is touched before systemd would take the files of all.
    type: list
    elements: dict
    suboptions:
      name:
        description:
          - The unit with its suffix, such as V(node_exporter.service). Timers, paths, sockets and mounts are units too.
        type: str
        required: true
      <<: *unit
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Works on a node on which neither the unit nor its program or user is there yet.
notes:
  - The errors are one line each. The unit is masked, systemd would not take its files, it has no C([Install])
    section, it did not come up and stay so (with the last lines of its journal in RV(journal)), or O(wait_url) gave
    no answer. Where another unit's process holds the port of O(wait_url), the line names it.
  - Files on shared file systems carry their server's time, so the clocks of a cluster should agree.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Run the node exporter
  pcluster.postboot.systemd_unit:
    name: node_exporter.service
    unit: "{{ lookup('ansible.builtin.template', 'node_exporter.service.j2') }}"
    sysusers: u node_exporter - "Prometheus node_exporter" /var/lib/node_exporter /usr/sbin/nologin
    tmpfiles: d /var/lib/node_exporter/textfile_collector 0755 root root
    restart_on:
      - /usr/local/bin/node_exporter
    wait_url: http://127.0.0.1:9100/metrics

- name: Give slurmd a search path for enroot's hooks, and leave it running as it is
  pcluster.postboot.systemd_unit:
    name: slurmd.service
    state: present
    dropins:
      10-path.conf: |
        [Service]
        Environment=PATH=/opt/slurm/sbin:/opt/slurm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin

- name: The same, and a slurmd that runs is restarted once no job is on the node
  pcluster.postboot.systemd_unit:
    name: slurmd.service
    state: current
    dropins:
      10-path.conf: |
        [Service]
        Environment=PATH=/opt/slurm/sbin:/opt/slurm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
    busy: [/opt/slurm/bin/squeue, --noheader, --format=%i, --nodelist=gpu-st-p5-1]

- name: Run a program by a timer, and see that it works
  pcluster.postboot.systemd_unit:
    units:
      - name: count-things.timer
        unit: "{{ lookup('ansible.builtin.template', 'count-things.timer.j2') }}"
        companions:
          count-things.service: "{{ lookup('ansible.builtin.template', 'count-things.service.j2') }}"
      - name: count-things.service
        restart_on: [/usr/local/libexec/count-things]

- name: Run Prometheus, which reloads its configuration
  pcluster.postboot.systemd_unit:
    name: prometheus.service
    unit: "{{ lookup('ansible.builtin.template', 'prometheus.service.j2') }}"
    restart_on: [/usr/local/bin/prometheus]
    reload_on: [/etc/prometheus/prometheus.yml]
    wait_url: http://127.0.0.1:9090/-/ready
"""

RETURN = r"""
actions:
  description: >-
    What was done, or in check mode would be, in its order, from V(made-users), V(made-directories), V(wrote),
    V(removed), V(enabled), V(disabled), V(reloaded-daemon), V(started), V(restarted), V(reloaded) and V(stopped). With
    O(units) each stands behind the name of its unit.
  type: list
  elements: str
  returned: success
  sample: [wrote, enabled, reloaded-daemon, started]
units:
  description: What the result of each unit would have been by itself, by its name.
  type: dict
  returned: success, with O(units)
status:
  description: The properties of the unit afterwards, as C(systemctl show) names them; in check mode those before.
  type: dict
  returned: success, without O(units)
  sample: {ActiveState: active, SubState: running, MainPID: "4711", UnitFileState: enabled}
pending:
  description: Why a restart that is due was not done; empty when none is.
  type: str
  returned: success, without O(units)
  sample: "slurmd.service was not restarted: it is in use (4711, 4712); a run while it idles does it"
starting:
  description: Why a unit that was started is not ready yet, where O(wait_alive_url) answers; empty otherwise.
  type: str
  returned: success, without O(units)
  sample: >-
    prometheus.service is up and still starts: it has 4100 MB of /var/lib/prometheus/wal to read and answers at
    http://127.0.0.1:9090/-/healthy, and not yet at http://127.0.0.1:9090/-/ready after 1020 s (HTTP Error 503: Service
    Unavailable); it goes on by itself, see 'journalctl -u prometheus.service'
summary:
  description: One phrase for the report.
  type: str
  returned: when a restart is pending, or the unit still starts
  sample: restart of slurmd.service pending
journal:
  description: The last lines that the unit left in the journal.
  type: list
  elements: str
  returned: when the unit did not come up
  sample: ["2026-11-21T12:00:00+0000 ip-10-0-0-10 node_exporter[4711]: listen tcp :9100: bind: address already in use"]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import unit

UNIT = arguments(
    unit.Request,
    paths=("restart_on", "reload_on", "wait_log", "directory"),
    dropins={"type": "dict", "default": {}},
    companions={"type": "dict", "default": {}},
    state={"choices": ["started", "stopped", "current", "present"]},
    enabled={"type": "bool"},
)


def result_of(name: str, outcome: unit.Outcome) -> dict[str, Any]:
    """Return what became of one unit."""
    result = {"changed": bool(outcome.actions), **outcome._asdict()}
    if outcome.pending:
        result["summary"] = f"restart of {name} pending"
    elif outcome.starting:
        result["summary"] = f"{name} still starts"
    return result


def together(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the result of several units: what became of each, and what Ansible and the report read of all."""
    summary = "; ".join(one["summary"] for one in results.values() if "summary" in one)
    return {
        "actions": [f"{name} {action}" for name, one in results.items() for action in one["actions"]],
        "diff": [diff for one in results.values() for diff in one.pop("diff")],
        "warnings": [warning for one in results.values() for warning in one.pop("warnings")],
        "units": results,
        **({"summary": summary} if summary else {}),
    }


def work(module: AnsibleModule) -> dict[str, Any]:
    """Bring the unit, or several of them, into the state that is asked for, and return the result."""

    def request(options: dict[str, Any]) -> unit.Request:
        return unit.Request(check=module.check_mode, **frozen(options))

    several = module.params["units"]
    if several is None:
        one = request({option: module.params[option] for option in UNIT})
        return result_of(one.name, unit.apply(one))
    names = [options["name"] for options in several]
    outcomes = unit.apply_all([request(options) for options in several])
    return together({name: result_of(name, outcome) for name, outcome in zip(names, outcomes)})


def main() -> None:
    """Run the module."""
    serve(
        {
            **UNIT,
            "name": {"type": "str"},
            "units": {"type": "list", "elements": "dict", "options": UNIT},
        },
        work,
        required_one_of=[("name", "units")],
        mutually_exclusive=[("units", option) for option in UNIT],
    )


if __name__ == "__main__":
    main()

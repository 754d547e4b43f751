# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""node_health and diagnose judge the same log of the kernel, and agree with the table, the alert and the runbook.

The messages are those of NVIDIA/open-gpu-kernel-modules as the docstring of gpu_messages.py names them, and of public
reports. How a log is written is in the docstrings of evidence.py and logs.py.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import gpu_messages, judge, logs
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
)
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import units
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import Node

NOW = float(calendar.timegm((2026, 11, 27, 12, 0, 0)))
XID = "NVRM: Xid (PCI:0000:1c:00): {}, pid='<unknown>', name=<unknown>, {}"
CHANGED = "NVRM: Xid (PCI:0000:1c:00): 154, GPU recovery action changed from {} to {}"
NONE, RESET, REBOOT = "0x0 (None)", "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"
SXID = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): {}"
FATAL = SXID.format("12028, Fatal, Link 32 egress non-posted PRIV error")
LOST = "NVRM: GPU 0000:1c:00.0: GPU has fallen off the bus."
# One message of driver 570.158.01 (NVIDIA/NVSentinel#155), with the address of a GPU here.
ABSENT = (
    "NVRM: The NVIDIA GPU 0000:1c:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)
KMSG = r"\x0a".join(ABSENT)
CAUSED = "NVRM: Xid (PCI:0000:1c:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid {}"
# A log, and the findings of node_health in it.
SAME: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "reset required": ([CHANGED.format(NONE, RESET)], {"gpu_xid_154": "reset"}),
    "reboot required": ([CHANGED.format(NONE, REBOOT)], {"gpu_xid_154": "reboot"}),
    "driver 610": ([CHANGED.format(NONE, "0x2 (OS Reboot)")], {"gpu_xid_154": "reboot"}),
    "drain P2P": ([CHANGED.format(NONE, "0x3 (Drain P2P)")], {"gpu_xid_154": "reset"}),
    "drain and reset": ([CHANGED.format(NONE, "0x4 (Drain and Reset)")], {"gpu_xid_154": "reset"}),
    "all-clear": ([CHANGED.format(RESET, NONE)], {}),
    "all-clear after a reset": ([XID.format(119, "x"), CHANGED.format(NONE, RESET), CHANGED.format(RESET, NONE)], {}),
    "all-clear after a reboot": ([CHANGED.format(NONE, REBOOT), CHANGED.format(REBOOT, NONE)], {}),
    "all-clear, off the bus": ([XID.format(79, "x"), CHANGED.format(RESET, NONE)], {"gpu_xid_79": "replace"}),
    "more and more": ([CHANGED.format(NONE, RESET), CHANGED.format(RESET, REBOOT)], {"gpu_xid_154": "reboot"}),
    "a fatal SXid": ([FATAL], {"nvswitch_sxid_12028": "reboot"}),
    "a non-fatal SXid": ([SXID.format("20009, Non-fatal, Link 28 RX")], {"nvswitch_sxid_20009": "watch"}),
    "an SXid of each boot": ([SXID.format("22013, Non-fatal, Link 55 Minion Link DLREQ interrupt")], {}),
    "off the bus": ([XID.format(79, "GPU has fallen off the bus."), LOST], {"gpu_xid_79": "replace"}),
    "off the bus, one line": ([LOST], {"gpu_xid_79": "replace"}),
    "off the bus, three lines": ([KMSG], {"gpu_xid_79": "replace"}),
    "45 and its cause": ([CAUSED.format(149), CAUSED.format(149)], {"gpu_xid_149": "reset"}),
    "45 after a program's own": ([CAUSED.format(31)], {}),
    "45 alone": (["NVRM: Xid (PCI:0000:1c:00): 45, pid=12, name=python3, Ch 00000001"], {}),
    "a process that looks so": (["NVRM: Xid (PCI:0000:1c:00): 45, pid=12, name=evious Xid 149, Ch 00000001"], {}),
    "unknown": ([XID.format(171, "x")], {"gpu_xid_171": "watch"}),
    "another model": ([KMSG.replace("fallen off the bus and is not responding to commands.", "to be replaced.")], {}),
}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(units, "SYSTEMCTL", "/nowhere/systemctl")
    node = Node(tmp_path)
    with node.exporter():
        node.look()
        yield node


def diagnosed(**texts: str) -> dict[str, Finding]:
    names = {"kernel": "commands/kernel.txt", "console": "console.txt", "syslog": "var/log/syslog"}
    evidence = Evidence("n", "compute", {names.get(name, name): text for name, text in texts.items()}, now=NOW)
    return {one.kind: one for one in judge.judge(evidence)}


def journal(*messages: str) -> str:
    """As journalctl -o short-iso prints the kernel's messages."""
    begin = "2026-11-27T11:48:13+0000 ip-10-0-0-5 kernel: "
    return "".join(f"{begin}{one}\n".replace(r"\x0a", "\n" + " " * len(begin)) for one in messages)


def console(*messages: str) -> str:
    text = ""
    for number, one in enumerate(messages):
        text += "".join(f"[ {1843 + number}.308145] {line}\r\n" for line in one.split(r"\x0a"))
    return text


LEVELS = {"replace": CAUSE, "reboot": CAUSE, "reset": CAUSE, "watch": FAULT}


@pytest.mark.parametrize(("messages", "findings"), SAME.values(), ids=SAME)
def test_node_health_and_diagnose_agree(node: Node, messages: Sequence[str], findings: dict[str, str]) -> None:
    node.log(*messages)
    subject = "NVSwitch 3" if "SXid" in messages[0] else "GPU 3"
    assert node.found() == {(name, subject): kind for name, kind in findings.items()}
    for text in ({"kernel": journal(*messages)}, {"console": console(*messages)}):
        told = {kind: one for kind, one in diagnosed(**text).items() if one.level != NOTE}
        assert {kind: one.level for kind, one in told.items()} == {
            re.sub(r".*_(s?xid)_", r"\1-", name): LEVELS[kind] for name, kind in findings.items()
        }
        for (name, kind), one in zip(findings.items(), told.values()):
            action = {"replace": "drain the node", "reboot": "reboot the node", "reset": "reset the GPU"}
            assert one.todo.startswith(action.get(kind, "watch")), name


def test_a_programs_own_fault_is_a_note_and_names_its_cause() -> None:
    told = diagnosed(kernel=journal(CAUSED.format(31), XID.format(94, "Contained ECC error")))
    assert {kind: (one.level, one.what) for kind, one in told.items()} == {
        "xid-31": (NOTE, "XID 31 on PCI:0000:1c:00"),
        "xid-94": (NOTE, "XID 94 on PCI:0000:1c:00"),
    }


def test_another_gpus_all_clear_ends_nothing() -> None:
    other = CHANGED.format(RESET, NONE).replace("1c:00", "10:00")
    assert diagnosed(kernel=journal(CHANGED.format(NONE, RESET), other))["xid-154"].level == CAUSE


def test_the_kernels_journal_knows_of_an_all_clear_that_the_console_lacks() -> None:
    needs, clear = CHANGED.format(NONE, RESET), CHANGED.format(RESET, NONE)
    assert diagnosed(console=console(needs), kernel=journal(needs, clear)) == {}


def syslog(*lines: str) -> str:
    """As imklog of rsyslog writes the kernel's messages on Ubuntu, each line by itself."""
    return "".join(f"Nov 27 11:48:13 ip-10-0-0-5 kernel: [ 1843.308145] {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        ("syslog", syslog(LOST)),
        ("syslog", syslog(*ABSENT)),
        ("syslog", syslog(*ABSENT).replace("[ 1843.308145] ", "")),
        # imjournal of rsyslog writes a line feed so, on RHEL and Rocky.
        ("system-messages", f"Nov 27 11:48:13 ip-10-0-0-5 kernel: {'#012'.join(ABSENT)}\n"),
    ],
)
def test_a_node_that_is_gone_has_only_syslog_in_cloudwatch(stream: str, text: str) -> None:
    name = f"i-0123456789abcdef0/cloudwatch/ip-10-0-0-5.i-0123456789abcdef0.{stream}"
    one = diagnosed(**{name: text})["xid-79"]
    assert one.what.startswith("XID 79 on PCI:0000:1c:00 (only syslog has it")
    assert (one.level, one.file) == (NOTE, name)
    assert "fallen off the bus" in one.line


def test_what_users_write_into_a_message_makes_no_finding(node: Node) -> None:
    """A user chooses the name of a file, which the kernel prints where that program crashes."""
    crash = "x[4711]: segfault at 0 ip 0000000000401136 sp 00007ffd error 4 in a"
    for forged in (KMSG, LOST, FATAL, XID.format(79, "x"), r"\x0a".join((*ABSENT, CHANGED.format(RESET, NONE)))):
        node.log(XID.format(119, "Timeout"), rf"{crash}\x0a{forged}[401000+1000]", f"{crash} {forged}")
        assert node.found() == {("gpu_xid_119", "GPU 3"): "reset"}
        text = (XID.format(119, "Timeout"), rf"{crash}\x0a{forged}[401000+1000]")
        assert set(diagnosed(kernel=journal(*text))) == set(diagnosed(console=console(*text))) == {"xid-119"}
    # A user's line in syslog takes nothing back of what the kernel itself has said.
    forged = syslog(CHANGED.format(RESET, NONE))
    assert diagnosed(console=console(XID.format(119, "Timeout")), syslog=forged)["xid-119"].level == CAUSE


def test_events_of_an_earlier_release_are_kept_after_an_upgrade(node: Node) -> None:
    """Their GPUs are "address", and the memory lasts until the next boot."""
    node.log(XID.format(79, "GPU has fallen off the bus."))
    node.look()
    memory = Path(f"{node.root}{node.settings['state']}/memory.json")
    old = memory.read_text().replace('"subject": "0000:1c:00"', '"address": "0000:1c:00"')
    assert '"address"' in old
    memory.write_text(old)
    assert node.found() == {("gpu_xid_79", "GPU 3"): "replace"}


# One table


def test_the_reader_has_the_classes_of_the_tables(repo: Path) -> None:
    table = yaml.safe_load((repo / "roles/prometheus/files/xids.yml").read_text())
    assert {xid: group["class"] for group in table["critical"] for xid in group["xids"]} == gpu_messages.XIDS
    assert {xid for group in table["none"] for xid in group["xids"]} == gpu_messages.XIDS_NONE


def test_the_program_on_nodes_has_the_same_reader(repo: Path) -> None:
    ours, copy = (repo / "plugins/module_utils/_diagnose", repo / "roles/node_health/files/node_health")
    assert (copy / "gpu_messages.py").read_text() == (ours / "gpu_messages.py").read_text()


def test_the_runbook_asks_for_what_the_class_says(repo: Path) -> None:
    page = (repo / "docs/runbooks/lost-gpu.md").read_text()
    rows = re.findall(r"^\| ([\d, ]+) \| .+ \| (.+) \|$", page, re.MULTILINE)
    asked = {int(number): todo for numbers, todo in rows for number in numbers.split(", ")}
    assert set(asked) == {*gpu_messages.XIDS, *gpu_messages.XIDS_NONE}
    words = {"replace": "replace the node", "reboot": "reboot the node", "reset": "reset the GPU"}
    for number, todo in asked.items():
        kind = gpu_messages.of_xid(number)
        assert todo.startswith(words[kind]) if kind else not todo.startswith(tuple(words.values())), number


def test_further_lines_of_a_message_follow_its_first() -> None:
    assert list(logs.whole("a\nb\n")) == ["a", "b", ""]
    assert list(logs.whole("h kernel: a\n  b\n  c\nd")) == ["h kernel: a\nb\nc", "d"]
    assert list(logs.whole("[    1.000000] a\n[    1.000000] b\n[    2.000000] c")) == [
        "[    1.000000] a\nb",
        "[    2.000000] c",
    ]

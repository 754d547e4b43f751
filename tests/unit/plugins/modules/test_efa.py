# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""efa_installer and efa_check with an installer that does as it is told, real signatures, and a node in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import signature
from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices as _efa
from ansible_collections.pcluster.postboot.plugins.module_utils._efa import installer
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import Said
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds
from ansible_collections.pcluster.postboot.plugins.modules import efa_check, efa_installer
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.unit.plugins.signers import Signer, needs_gpg

HOST = "https://efa-installer.amazonaws.com"
INSTALLER = """#!/bin/sh
top={top}
echo "$*" >> $top/calls
echo "$DEBIAN_FRONTEND $NEEDRESTART_SUSPEND" > $top/env; cat $APT_CONFIG >> $top/env
[ ! -e "$EFA_INSTALLER_KEY" ] || cp "$EFA_INSTALLER_KEY" $top/key-seen
echo "= Starting Amazon Elastic Fabric Adapter Installation Script ="
. $top/before
[ "$2" = --minimal ] || cp $top/tool $top/bin/fi_info
printf '# EFA installer version: %s\\n# Debug packages installed: no\\n' "$(cat version)" > $top/installed
. $top/after
echo "EFA installation complete."
"""
FI_INFO = "#!/bin/sh\n[ \"$*\" = '-p efa -t FI_EP_RDM' ] || exit 9\n. {top}/fabric\n"
DEVICE = "provider: efa\n    fabric: %s\n    domain: %s-rdm\n    version: 206.0\n    type: FI_EP_RDM\n"


class Node:
    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top, self.run = top, run
        self.source = top / "installer.tar.gz"
        self.mirror = top / "mirror/efa-installer.amazonaws.com"
        for folder in (self.mirror, top / "proc/1", top / "bin", top / "tree"):
            folder.mkdir(parents=True)
        (top / "proc/1/comm").write_text("systemd\n")
        self.does()
        self.program("dpkg", f"#!/bin/sh\necho dpkg $* >> {top}/tools\n")
        self.program("apt-get", f"#!/bin/sh\necho apt-get $* >> {top}/tools\n")
        self.program("modinfo", "#!/bin/sh\nexit 1\n")
        self.program("squeue", f"#!/bin/sh\n. {top}/jobs\n")
        self.program("fi_info", FI_INFO.format(top=top))
        shutil.copy(top / "bin/fi_info", top / "tool")

    def program(self, name: str, text: str) -> None:
        lab.program(self.top / "bin" / name, text)

    def does(self, before: str = "", after: str = "") -> None:
        (self.top / "before").write_text(before + "\n")
        (self.top / "after").write_text(after + "\n")

    def has(self, version: str) -> None:
        (self.top / "installed").write_text(f"# EFA installer version: {version}\n")

    def noted(self, version: str, done: bool, *options: str) -> None:
        _efa.write_record(_efa.Record(version, done, list(options)))

    def fetched(self, version: str = "1.50.0") -> bytes:
        folder = self.top / "aws-efa-installer"
        folder.mkdir(exist_ok=True)
        (folder / "version").write_text(version)
        lab.program(folder / "efa_installer.sh", INSTALLER.format(top=self.top))
        with tarfile.open(self.source, "w:gz") as archive:
            archive.add(folder, folder.name)
        return self.source.read_bytes()

    def lines(self, name: str) -> list[str]:
        return lab.lines(self.top / name)

    def __call__(self, check: bool = False, **args: Any) -> dict[str, Any]:
        given = {
            "version": "1.50.0",
            "manager": "apt",
            "source": str(self.source),
            "options": ["--no-verify"],
            "verify": False,
            "signature_url": f"{HOST}/aws-efa-installer-1.50.0.tar.gz.sig",
            "key_url": f"{HOST}/aws-efa-installer.key",
            "mirrors": [str(self.top / "mirror")],
            "upstream": False,
            "busy": [str(self.top / "bin/squeue")],
        }
        return self.run(efa_installer, {**given, **args}, check=check)

    def devices(self, **args: Any) -> dict[str, Any]:
        return self.run(efa_check, {"wait": 0, **args})

    def answers(self, *names: str) -> None:
        text = "".join(DEVICE % (fabric, name) for fabric in ("efa-direct", "efa") for name in names)
        none = "echo 'fi_getinfo: -61 (No data available)' >&2; exit 61\n"
        (self.top / "fabric").write_text(f"cat <<EOF\n{text}EOF\n" if names else none)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> Node:
    made = Node(tmp_path, run_module)
    monkeypatch.setattr(lock, "STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(lock, "RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(_efa, "FI_INFO", str(tmp_path / "bin/fi_info"))
    monkeypatch.setattr(_efa, "SYS_VERSION", str(tmp_path / "loaded"))
    monkeypatch.setattr(_efa, "hardware", lambda: (["rdmap1s0"], 0))
    monkeypatch.setattr(installer, "INSTALLED", str(tmp_path / "installed"))
    monkeypatch.setattr(installer, "TREE", str(tmp_path / "tree"))
    monkeypatch.setattr(installer, "LOG", str(tmp_path / "log/efa-installer.log"))
    monkeypatch.setattr(installer, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(installer, "PAUSE", 0.01)
    monkeypatch.setattr(installer.records, "DPKG", str(tmp_path / "dpkg"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return made


@pytest.fixture
def bare(node: Node) -> Node:
    """The same without any EFA."""
    (node.top / "bin/fi_info").unlink()
    return node


def test_check_apply_check_apply(bare: Node) -> None:
    checked = bare(check=True)
    assert (checked["changed"], checked["due"], checked["version"]) == (True, True, "1.50.0")
    assert checked["why"] == "EFA's software is not installed"
    assert not (bare.top / "state").exists()
    bare.fetched()
    applied = bare()
    assert applied["diff"] == checked["diff"]
    assert bare.lines("calls") == ["-y --no-verify"]
    assert applied["summary"] == "EFA 1.50.0, installed by this collection"
    assert not applied["reboot"]
    for check in (True, False):
        again = bare(check=check)
        assert (again["changed"], again["due"], again["origin"]) == (False, False, "installed")
    assert len(bare.lines("calls")) == 1
    # What it was unpacked from is large.
    assert not bare.source.exists()
    assert not (bare.top / "tree").exists()
    assert "EFA installation complete." in bare.lines("log/efa-installer.log")


def test_its_package_manager_waits_asks_nothing_and_restarts_nothing(bare: Node) -> None:
    bare.fetched()
    bare(lock_timeout=77)
    assert bare.lines("env")[:2] == ["noninteractive 1", 'DPkg::Lock::Timeout "77";']


@pytest.mark.parametrize(
    ("have", "upgrade", "noted", "due", "says"),
    [
        ("1.49.0", False, None, False, "EFA 1.49.0, the AMI's own (efa_upgrade brings 1.50.0)"),
        ("1.49.0", True, None, True, "EFA 1.49.0 is installed, wanted is 1.50.0"),
        ("1.51.0", True, None, False, "EFA 1.51.0, the AMI's own"),
        ("1.9.2", True, None, True, "EFA 1.9.2 is installed, wanted is 1.50.0"),
        ("unknown", False, None, False, "EFA unknown, the AMI's own"),
        ("unknown", True, None, True, "EFA unknown is installed, wanted is 1.50.0"),
        ("1.49.0", False, ("1.49.0", True), True, "EFA 1.49.0 is installed, wanted is 1.50.0"),
        ("1.48.0", False, ("1.49.0", True), False, "EFA 1.48.0, the AMI's own (efa_upgrade brings 1.50.0)"),
        ("1.51.0", False, ("1.51.0", True), False, "EFA 1.51.0, installed by this collection"),
        ("1.50.0", False, ("1.50.0", True, "--minimal"), True, "EFA 1.50.0 was installed with other options"),
        # The installer has noted its version, and was killed before it was done.
        ("1.50.0", False, ("1.50.0", False, "--no-verify"), True, "the installation of EFA 1.50.0 was interrupted"),
        ("1.51.0", False, ("1.50.0", False), False, "EFA 1.51.0, the AMI's own"),
    ],
)
def test_what_is_due(node: Node, have: str, upgrade: bool, noted: Any, due: bool, says: str) -> None:
    if have != "unknown":
        node.has(have)
    if noted:
        node.noted(*noted)
    found = node(state="planned", upgrade=upgrade)
    assert (found["changed"], found["due"]) == (False, due)
    assert found["why" if due else "summary"] == says


def test_a_killed_run_leaves_its_installer_which_the_next_waits_for_and_then_finishes(bare: Node) -> None:
    os.mkfifo(bare.top / "go")
    bare.fetched()
    bare.does(after=f"echo reached >> {bare.top}/reached; cat {bare.top}/go > /dev/null")
    request = installer.Request("1.50.0", "apt", source=str(bare.source), verify=False)
    child = os.fork()
    if child == 0:
        try:
            installer.apply(request)
        finally:
            os._exit(1)
    while not bare.lines("reached"):
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert bare(state="planned")["why"] == "the installation of EFA 1.50.0 was interrupted"
    waiting = bare(lock_timeout=0, timeout=0)
    assert waiting["failed"]
    assert f"packages.lock is held for 0 s (efa_lock_timeout) by pid {child}" in waiting["msg"]
    (bare.top / "go").write_text("go on\n")
    bare.does()
    done = bare(lock_timeout=60)
    assert done["changed"], done
    assert bare.lines("tools") == ["dpkg --force-confdef --force-confold --configure --pending"]
    assert not bare()["due"]


def test_nothing_is_installed_while_jobs_run(bare: Node) -> None:
    bare.fetched()
    (bare.top / "jobs").write_text("echo 12; echo 13_4\n")
    (bare.top / "proc/77").mkdir()
    (bare.top / "proc/77/comm").write_text("slurmd\n")
    for check in (True, False):
        held = bare(check=check)
        assert (held["changed"], held["due"]) == (False, True)
        assert held["pending"].startswith("EFA 1.50.0 is not installed now: jobs run here (12, 13_4)")
    (bare.top / "jobs").write_text("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n")
    assert re.search(r"whether a job runs here could not be told \(.* ended with 1: slurm_load_jobs", bare()["pending"])
    assert not bare.lines("calls")
    # A node that boots has no slurmd yet, and no job, whoever does not answer.
    shutil.rmtree(bare.top / "proc/77")
    assert bare()["changed"]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "echo 'E: Could not get lock /var/lib/dpkg/lock.'; echo 'Error: Failed to install packages.'; exit 1",
            "",
            "ended with 1: E: Could not get lock /var/lib/dpkg/lock.; its log is",
        ),
        (
            # dnf's words on Amazon Linux 2023 (llm-d#1648).
            "echo Error:; echo ' Problem: cannot install the best update candidate for package librdmacm-57'; "
            "echo '  - package librdmacm-60.0-1.x86_64 requires libibverbs = 60, but none of the providers can be "
            "installed'; echo 'Error: Failed to install packages.'; exit 1",
            "",
            "ended with 1: package librdmacm-60.0-1.x86_64 requires libibverbs = 60, but none of the providers can",
        ),
        ("echo 'Unsupported operating system.'; echo Refer to it; exit 1", "", "ended with 1: Unsupported operating"),
        ("exit 3", "", "ended with 3: = Starting Amazon"),
        ("", "rm $top/installed $top/bin/fi_info", "installed names version none, needed is 1.50.0"),
        ("", "rm $top/bin/fi_info", "fi_info is not there; its log is"),
        ("sleep 600", "", "had not ended after 0 s (efa_timeout) and was stopped"),
    ],
)
def test_an_installer_that_fails_is_one_line_and_tried_again(bare: Node, before: str, after: str, says: str) -> None:
    bare.fetched()
    bare.does(before, after)
    failed = bare(timeout=0 if "sleep" in before else 60)
    assert failed["failed"]
    assert says in failed["msg"]
    assert "\n" not in failed["msg"]
    assert str(bare.top / "log/efa-installer.log") in failed["msg"]
    assert failed["log"] or "sleep" in before
    bare.does()
    assert bare()["changed"]


def test_package_lists_that_are_too_old_are_read_anew(bare: Node) -> None:
    bare.fetched()
    bare.does("[ -e $top/tools ] || { echo 'E: Unable to locate package dkms'; exit 1; }")
    assert bare()["changed"]
    assert bare.lines("tools") == ["apt-get -q update"]
    assert len(bare.lines("calls")) == 2


def test_what_is_no_installer_is_refused(bare: Node) -> None:
    bare.source.write_bytes(bare.fetched()[:200])
    assert "cannot be unpacked in" in bare()["msg"]
    with tarfile.open(bare.source, "w:gz") as archive:
        archive.add(bare.top / "before", "README")
    assert "holds no efa_installer.sh" in bare()["msg"]
    bare.source.unlink()
    assert bare()["msg"].endswith("is not there; download it first")
    assert bare(version="latest")["msg"] == "efa_version is 'latest'; needed is a whole version such as 1.50.0"
    assert not bare.lines("calls")


def test_dnf_sees_the_kernel_headers_while_the_installer_runs(bare: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = bare.top / "dnf.conf"
    conf.write_text("[main]\nexcludepkgs=mine kernel kernel-devel kernel6.12-headers\n")
    monkeypatch.setattr(holds.DnfHolds.__init__, "__defaults__", (str(conf), holds.run_command))
    (bare.top / "state").mkdir()
    record = {"held": ["kernel", "kernel-devel", "kernel6.12-headers"], "original": ""}
    (bare.top / "state/holds.json").write_text(json.dumps(record))
    bare.fetched()
    bare.does(f"cp {conf} $top/seen; exit 1")
    assert bare(manager="dnf")["failed"]
    assert bare.lines("seen")[1] == "excludepkgs=mine kernel"
    assert set(bare.lines("dnf.conf")[1].split("=")[1].split()) == {"mine", *record["held"]}
    bare.does()
    assert bare(manager="dnf")["changed"]
    assert not bare.lines("tools")


# --- signatures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def signed(bare: Node, signers: tuple[Signer, Signer]) -> Callable[..., dict[str, Any]]:
    """signed(…) runs the installer that the first signer has signed, whose key is the one that is asked for."""
    data = bare.fetched()
    (bare.mirror / "aws-efa-installer-1.50.0.tar.gz.sig").write_bytes(signers[0].sign(data))
    (bare.mirror / "aws-efa-installer.key").write_bytes(signers[0].key)

    def install(**args: Any) -> dict[str, Any]:
        return bare(verify=True, **{"key_fingerprints": [signers[0].fingerprint.lower()], **args})

    return install


@needs_gpg
@pytest.mark.parametrize("programs", [("gpgv",), ("gpg",)])
def test_what_its_publisher_has_signed_is_run(
    bare: Node, signed: lab.Run, monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...]
) -> None:
    # Amazon Linux has gpg without gpgv, and without an agent.
    for name in (*programs, "tar", "gzip", "sh", "cat", "cp"):
        (bare.top / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(bare.top / "bin"))
    done = signed()
    assert done["changed"], done
    assert bare.lines("key-seen")[0] == "-----BEGIN PGP PUBLIC KEY BLOCK-----"


@needs_gpg
def test_other_bytes_are_refused(bare: Node, signed: lab.Run) -> None:
    with bare.source.open("ab") as stream:
        stream.write(b"more")
    assert "does not verify" in signed()["msg"]
    assert "the signature is not that of these bytes; nothing was installed" in signed()["msg"]
    (bare.mirror / "aws-efa-installer-1.50.0.tar.gz.sig").write_bytes(b"no signature")
    assert "does not verify" in signed()["msg"]
    assert not bare.lines("calls")


@needs_gpg
def test_another_signer_is_refused(bare: Node, signed: lab.Run, signers: tuple[Signer, Signer]) -> None:
    other = signers[1].sign(bare.source.read_bytes())
    (bare.mirror / "aws-efa-installer-1.50.0.tar.gz.sig").write_bytes(other)
    theirs, mine = signers[1].fingerprint, signers[0].fingerprint
    assert f"it was made with the key {theirs[-16:]}, needed is {mine}" in signed()["msg"]
    # The key that fits it is none that was asked for.
    (bare.mirror / "aws-efa-installer.key").write_bytes(signers[1].key)
    assert f"it is {theirs}, needed is {mine}; upstream: not allowed" in signed()["msg"]
    assert "; nothing was installed. If the publisher has changed the key, compare" in signed()["msg"]
    (bare.mirror / "aws-efa-installer.key").write_bytes(signers[0].key + signers[1].key)
    assert signed()["failed"]
    assert not bare.lines("calls")


@needs_gpg
def test_a_signature_that_nobody_has_is_one_line(bare: Node, signed: lab.Run) -> None:
    known = hashlib.sha256((bare.mirror / "aws-efa-installer.key").read_bytes()).hexdigest()
    (bare.mirror / "aws-efa-installer-1.50.0.tar.gz.sig").unlink()
    failed = signed(key_sha256=known)["msg"]
    assert failed.startswith(f"no source delivered EFA's signature {HOST}/aws-efa-installer-1.50.0.tar.gz.sig: mirror ")
    assert "efa_verify_signature" in failed
    assert "common_upstream is false" in failed
    assert "efa_key_fingerprints is empty" in signed(key_fingerprints=[])["msg"]


@needs_gpg
@pytest.mark.parametrize("what", ["signature", "key"])
def test_a_signature_or_key_with_another_hash_than_the_pinned_is_passed_over_with_a_line(
    bare: Node, signed: lab.Run, warnings: list[str], what: str
) -> None:
    file = {"signature": "aws-efa-installer-1.50.0.tar.gz.sig", "key": "aws-efa-installer.key"}[what]
    first, good = bare.top / "first" / bare.mirror.relative_to(bare.top / "mirror"), (bare.mirror / file).read_bytes()
    first.mkdir(parents=True)
    (first / file).write_bytes(b"another")
    mirrors = [str(bare.top / name) for name in ("first", "mirror")]
    done = signed(mirrors=mirrors, **{f"{what}_sha256": hashlib.sha256(good).hexdigest()})
    assert done["changed"], done
    (warning,) = warnings
    found = f"its sha256 is {hashlib.sha256(b'another').hexdigest()}, needed is {hashlib.sha256(good).hexdigest()}"
    assert warning == f"EFA's {what} from mirror {first / file} was passed over: {found}"


@needs_gpg
@pytest.mark.parametrize("what", ["signature", "key"])
def test_where_no_source_has_the_pinned_hash_its_variable_is_named(bare: Node, signed: lab.Run, what: str) -> None:
    failed = signed(**{f"{what}_sha256": "0" * 64})["msg"]
    assert f", needed is {'0' * 64}; upstream: not allowed" in failed
    assert failed.endswith(
        f"; nothing was installed. If the publisher has changed the {what}, compare with its documentation and set "
        f"efa_{what}_sha256"
    )
    assert not bare.lines("calls")


def status(*lines: str) -> Said:
    return Said("gpgv", 0, "".join(f"[GNUPG:] {line}\n" for line in lines), "")


@pytest.mark.parametrize("word", ["REVKEYSIG", "EXPSIG", "BADSIG", "ERRSIG"])
def test_a_signature_that_was_good_once_is_refused(word: str) -> None:
    mine = "A" * 40
    good = (f"VALIDSIG {'B' * 40} 2026-11-21 1 0 4 0 1 10 00 {mine}", "GOODSIG X Tester")
    trust = signature.Trust(f"{HOST}/a.sig", key_url=f"{HOST}/a.key")
    assert signature._judge(status(*good), [mine], trust) == []
    (warning,) = signature._judge(status(good[0], "EXPKEYSIG X Tester"), [mine], trust)
    assert "has expired" in warning
    with pytest.raises(Problem):
        signature._judge(status(*good, f"{word} X Tester"), [mine], trust)
    with pytest.raises(Problem):
        signature._judge(status(good[1]), [mine], trust)
    with pytest.raises(Problem, match=f"made with the key {mine}, needed is {'C' * 40}"):
        signature._judge(status(*good), ["C" * 40], trust)


# --- devices ----------------------------------------------------------------------------------------------------------


def test_every_device_answers(node: Node) -> None:
    node.answers("rdmap80s0", "rdmap79s0", "rdmap180s0", "efa_0")
    found = node.devices(instance_type="p4d.24xlarge")
    assert found["devices"] == ["efa_0", "rdmap79s0", "rdmap80s0", "rdmap180s0"]
    assert (found["changed"], found["summary"], found["reboot"]) == (False, "4 EFA devices", "")


def test_a_node_without_a_device_may_have_the_software(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.answers()
    assert node.devices(instance_type="c5n.18xlarge")["failed"]
    monkeypatch.setattr(_efa, "hardware", lambda: ([], 0))
    assert node.devices(instance_type="m5.xlarge")["summary"] == "no EFA device"
    assert node.devices(instance_type="p4d.24xlarge")["failed"]


def test_another_number_is_one_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.answers("rdmap79s0")
    monkeypatch.setattr(_efa, "hardware", lambda: (["rdmap79s0", "rdmap80s0"], 2))
    failed = node.devices(instance_type="p5.48xlarge")["msg"]
    says = "lists 1 EFA device, a p5.48xlarge has 32; the kernel also has rdmap80s0; see 'dmesg | grep efa', or"
    assert says in failed
    assert "PCI has 2" in node.devices(instance_type="x9.metal")["msg"]
    assert "efa_devices is 3" in node.devices(instance_type="p5.48xlarge", devices=3)["msg"]
    assert node.devices(instance_type="p5.48xlarge", devices=1)["summary"] == "1 EFA device"
    node.answers()
    assert "lists no EFA device (fi_getinfo: -61 (No data available)), PCI has 2" in node.devices()["msg"]


def test_late_devices_are_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_efa, "PAUSE", 0.001)
    node.answers("rdmap1s0", "rdmap2s0")
    late = node.lines("fabric")
    (node.top / "fabric").write_text(
        "echo >> {0}/asked\nif [ $(wc -l < {0}/asked) -lt 3 ]; then {1}; exit; fi\n".format(
            node.top, "echo '    domain: rdmap1s0-rdm'"
        )
        + "\n".join(late)
        + "\n"
    )
    assert node.devices(devices=2, wait=600)["summary"] == "2 EFA devices"
    assert len(node.lines("asked")) == 3


def test_without_libfabric(bare: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bare.devices(pending="jobs run here")["msg"].endswith("needed is EFA's software: jobs run here")
    monkeypatch.setattr(_efa, "hardware", lambda: (["rdmap1s0"], 1))
    assert bare.devices(minimal=True)["devices"] == ["rdmap1s0"]


def test_a_module_that_stays_loaded_asks_for_a_reboot_until_there_was_one(
    bare: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare.fetched()
    bare.does(after="echo 'Failed to unload EFA kernel module.'; echo 'Reboot is needed!' >&2")
    assert bare()["reboot"]
    bare.answers("rdmap1s0")
    found = bare.devices()
    assert found["reboot"] == "EFA's kernel module was in use, and its installer asks for a reboot"
    assert found["summary"] == "1 EFA device, reboot needed"
    bare.answers()
    assert bare.devices()["msg"].endswith("asks for a reboot: reboot this node once no job runs on it")
    bare.answers("rdmap1s0")
    monkeypatch.setattr(_efa, "boot_id", lambda: "another")
    assert bare.devices()["reboot"] == ""
    # Also where somebody else has installed it.
    (bare.top / "loaded").write_text("3.1.0g\n")
    bare.program("modinfo", "#!/bin/sh\n[ \"$*\" = '-F version efa' ] && echo 3.3.0g\n")
    assert bare.devices()["reboot"] == "version 3.1.0g of EFA's kernel module is loaded, and 3.3.0g is installed"


@strangers.TWO_USERS
def test_a_process_of_a_user_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installer, "PROC", str(tmp_path))
    with strangers.process(name=b"\xff\xfe") as pid:
        (tmp_path / str(pid)).symlink_to(f"/proc/{pid}")
        assert not installer._slurmd_runs()

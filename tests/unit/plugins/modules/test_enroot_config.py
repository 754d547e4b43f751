# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""enroot_config on real files below a folder, with a kernel made of files."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _enroot
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage
from ansible_collections.pcluster.postboot.plugins.modules import enroot_config
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

CONFIG = "# managed\nENROOT_DATA_PATH /scratch/data/user-$(id -u)\nENROOT_SQUASH_OPTIONS -comp lzo -noD\n"
SYSCTLS = {"user.max_user_namespaces": 65536, "kernel.unprivileged_userns_clone": 1}


class Node:
    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top, self.run = top, run
        for name in ("etc/enroot/hooks.d", "hooks.d", "proc/user", "proc/kernel", "bin"):
            (top / name).mkdir(parents=True)
        for name in ("50-slurm-pmi.sh", "50-slurm-pytorch.sh"):
            (top / "hooks.d" / name).write_text("#!/bin/bash\n")
        self.hooks = top / "etc/enroot/hooks.d"
        (self.hooks / "98-nvidia.sh").write_text("#!/bin/bash\n")
        self.kernel("user.max_user_namespaces", 96365)
        self.mounts("/dev/root / ext4 rw 0 0", "fsx@tcp:/a /fsx lustre rw 0 0", "head:/home /home nfs4 rw 0 0")
        self.squashfs("lzo", "lz4", "xz", "zstd", "lzma")
        self.enroot(f'echo "$ENROOT_DATA_PATH" > {top}/data; echo 4.1.2')

    def mounts(self, *lines: str) -> None:
        (self.top / "mounts").write_text("".join(f"{line}\n" for line in lines))

    def enroot(self, body: str) -> None:
        lab.program(self.top / "bin/enroot", f"#!/bin/sh\n{body}\n")

    def squashfs(self, *compressors: str) -> None:
        """mksquashfs 4.5.1 as Debian 12's is, but for its compressors; 4.4 of RHEL 9 prints the same (enroot#276)."""
        listed = "\\n\\t".join(("gzip (default)", *compressors))
        body = (
            "for comp; do :; done\n[ $comp = gzip ] && exit 0\n"
            'printf \'mksquashfs: Compressor "%s" is not supported!\\nmksquashfs: Compressors available:\\n'
            f"\\t{listed}\\n' $comp >&2\nexit 1\n"
        )
        lab.program(self.top / "bin/mksquashfs", f"#!/bin/sh\n{body}")

    def kernel(self, key: str, value: int | None = None) -> str:
        path = self.top / "proc" / key.replace(".", "/")
        if value is not None:
            path.write_text(f"{value}\n")
        return path.read_text().strip()

    def file(self, name: str) -> str | None:
        path = self.top / "etc" / name
        return path.read_text() if path.exists() else None

    def __call__(self, check: bool = False, **args: Any) -> dict[str, Any]:
        return self.run(enroot_config, {"config": CONFIG, "sysctls": SYSCTLS, **args}, check=check)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> Node:
    monkeypatch.setattr(_enroot, "ETC", str(tmp_path / "etc"))
    monkeypatch.setattr(_enroot, "HOOKS", str(tmp_path / "hooks.d"))
    monkeypatch.setattr(_enroot, "SERVICE_PATH", str(tmp_path / "services"))
    monkeypatch.setattr(_enroot, "SCONTROL", str(tmp_path / "services/scontrol"))
    monkeypatch.setattr(_enroot, "PROC_SYS", str(tmp_path / "proc"))
    monkeypatch.setattr(storage, "MOUNTS", str(tmp_path / "mounts"))
    # root, whoever runs the tests
    monkeypatch.setattr(files, "user_id", lambda _name: os.getuid())
    monkeypatch.setattr(files, "group_id", lambda _name: os.getgid())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Node(tmp_path, run_module)


def test_an_enroot_that_hangs_ends_in_one_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_enroot, "TIMEOUT", 0.3)
    # What its configuration calls is a program of its own, which would keep the pipes open.
    node.enroot("where=$(sleep 600); echo 4.1.2")
    begun = time.monotonic()
    assert node()["msg"] == (
        f"'enroot version' did not end within 0.3 s; see what {node.top}/etc/enroot/enroot.conf and "
        f"{node.top}/etc/enroot/enroot.conf.d have it run"
    )
    assert time.monotonic() - begun < PATIENCE


def test_check_apply_check_apply(node: Node) -> None:
    hooks = ["50-slurm-pmi.sh", "50-slurm-pytorch.sh"]
    checked = node(check=True, hooks=hooks)
    assert checked["changed"]
    assert node.file("enroot/enroot.conf") is None
    applied = node(hooks=hooks)
    assert applied["diff"] == checked["diff"]
    assert node.file("enroot/enroot.conf") == CONFIG
    assert (node.hooks / "50-slurm-pmi.sh").resolve() == node.top / "hooks.d/50-slurm-pmi.sh"
    assert applied["summary"] == "Enroot 4.1.2"
    for check in (True, False):
        assert not node(check=check, hooks=hooks)["changed"]
    assert not (node.top / "etc/sysctl.d").exists()
    # It made nothing for root where containers are to be.
    assert not (node.top / "data").read_text().startswith("/scratch")


PLAIN = "# managed\nENROOT_DATA_PATH /scratch/data/user-$(id -u)\n"


@pytest.mark.parametrize(
    ("has", "added"),
    [
        (("lzo", "lz4", "xz", "zstd", "lzma"), ""),
        (("xz", "zstd", "lzma"), "ENROOT_SQUASH_OPTIONS -comp zstd -noD\n"),
        (("xz",), "ENROOT_SQUASH_OPTIONS -noD\n"),
    ],
)
def test_images_are_packed_by_a_compressor_that_mksquashfs_has(node: Node, has: tuple[str, ...], added: str) -> None:
    node.squashfs(*has)
    checked = node(check=True, config=PLAIN)
    applied = node(config=PLAIN)
    assert applied["diff"] == checked["diff"]
    assert node.file("enroot/enroot.conf") == PLAIN + added
    for check in (True, False):
        assert not node(check=check, config=PLAIN)["changed"]


@pytest.mark.parametrize("options", ["-comp xz -noD", '"-noI -noD -noF -noX -no-duplicates"', "-b 1M", "$(squash)"])
def test_the_users_own_options_of_mksquashfs_stay(node: Node, options: str) -> None:
    node.squashfs("xz", "zstd")
    config = f"{PLAIN}ENROOT_SQUASH_OPTIONS {options}\n"
    assert node(config=config)["changed"]
    assert node.file("enroot/enroot.conf") == config


@pytest.mark.parametrize("options", ["-comp lzo -noD", '"-comp lzo"', "-noI -comp lzo"])
def test_a_compressor_that_mksquashfs_lacks_is_refused(node: Node, options: str) -> None:
    node.squashfs("xz", "zstd")
    config = f"{PLAIN}ENROOT_SQUASH_OPTIONS {options}\n"
    assert node(config=config, source="enroot_settings")["msg"] == (
        "enroot_settings: ENROOT_SQUASH_OPTIONS has -comp lzo, which this node's mksquashfs does not support; needed "
        "is one of gzip, xz, zstd"
    )
    assert node.file("enroot/enroot.conf") is None


def test_a_mksquashfs_that_lists_nothing_changes_nothing(node: Node) -> None:
    lab.program(node.top / "bin/mksquashfs", "#!/bin/sh\nexit 1\n")
    node(config=PLAIN)
    assert node.file("enroot/enroot.conf") == PLAIN


@pytest.mark.skipif(not shutil.which("mksquashfs"), reason="needs squashfs-tools")
def test_the_real_mksquashfs_lists_its_compressors(node: Node) -> None:
    (node.top / "bin/mksquashfs").unlink()
    assert {"gzip", "zstd"} <= set(_enroot.compressors())


def test_hooks_that_are_no_longer_wanted_go_and_all_others_stay(node: Node) -> None:
    (node.hooks / "60-site.sh").symlink_to(node.top / "site.sh")
    node(hooks=["50-slurm-pmi.sh", "50-slurm-pytorch.sh"])
    assert node(hooks=["50-slurm-pmi.sh", "98-nvidia.sh"])["changed"]
    assert sorted(os.listdir(node.hooks)) == ["50-slurm-pmi.sh", "60-site.sh", "98-nvidia.sh"]


def test_the_hook_of_addresses_comes_and_goes(node: Node) -> None:
    assert node(address_hook="#!/bin/bash\n")["changed"]
    hook = node.hooks / "51-slurm-address.sh"
    assert (hook.read_text(), hook.stat().st_mode & 0o777) == ("#!/bin/bash\n", 0o755)
    assert not node(address_hook="#!/bin/bash\n")["changed"]
    assert node()["changed"]
    assert not hook.exists()


@pytest.fixture
def scontrol(node: Node) -> str:
    program = node.top / "opt/slurm/bin/scontrol"
    program.parent.mkdir(parents=True)
    lab.program(program, "#!/bin/sh\n")
    return str(program)


def test_hooks_find_scontrol(node: Node, scontrol: str) -> None:
    link = node.top / "services/scontrol"
    assert node(check=True, hooks=["50-slurm-pmi.sh"], scontrol=scontrol)["changed"]
    assert not link.is_symlink()
    assert node(hooks=["50-slurm-pmi.sh"], scontrol=scontrol)["changed"]
    assert os.readlink(link) == scontrol
    assert not node(hooks=["50-slurm-pmi.sh"], scontrol=scontrol)["changed"]
    link.unlink()
    link.symlink_to(node.top / "opt/older/scontrol")
    assert node(hooks=["50-slurm-pmi.sh"], scontrol=scontrol)["changed"], "a link that leads nowhere finds nothing"
    assert os.readlink(link) == scontrol


def test_a_scontrol_that_services_find_stays(node: Node, scontrol: str) -> None:
    (node.top / "services").mkdir()
    lab.program(node.top / "services/scontrol", "#!/bin/sh\necho own\n")
    node(hooks=["50-slurm-pmi.sh"], scontrol=scontrol)
    assert not (node.top / "services/scontrol").is_symlink()


def test_without_hooks_nobody_asks_scontrol(node: Node, scontrol: str) -> None:
    node(scontrol=scontrol)
    assert not (node.top / "services/scontrol").is_symlink()


def test_a_hook_that_is_not_there(node: Node) -> None:
    failed = node(hooks=["50-slurm-pmx.sh"])
    where = node.top / "hooks.d"
    assert failed["msg"] == (
        f"enroot_hooks has 50-slurm-pmx.sh, which is not in {where}; there is 50-slurm-pmi.sh, 50-slurm-pytorch.sh"
    )
    assert node.file("enroot/enroot.conf") is None


def test_a_fresh_node_in_check_mode(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_enroot, "HOOKS", str(node.top / "absent"))
    (node.top / "bin/enroot").unlink()
    monkeypatch.setattr(_enroot.shutil, "which", lambda name, **_where: f"/bin/{name}" if name == "bash" else None)
    found = node(check=True, hooks=["50-slurm-pmi.sh"], version="4.1.2")
    assert (found["failed"], found["changed"], found["summary"]) == (False, True, "Enroot 4.1.2")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/fsx/enroot", "enroot_data_dir is /fsx/enroot, on lustre (mounted at /fsx), where"),
        ("/home/enroot", "enroot_data_dir is /home/enroot, on nfs4 (mounted at /home), where"),
        ("/later/enroot", "enroot_data_dir is /later/enroot, on efs (mounted at /later), where"),
        ("LINK/enroot", "/enroot, which leads to /fsx/enroot, on lustre (mounted at /fsx), where"),
        ("enroot", "enroot_data_dir is 'enroot'; needed is an absolute path"),
    ],
)
def test_shared_storage_is_refused_before_anything_is_changed(node: Node, path: str, says: str) -> None:
    link = node.top / "link"
    link.symlink_to("/fsx")
    failed = node(
        local={"enroot_data_dir": path.replace("LINK", str(link))}, shared={"/later": "efs"}, scratch="/scratch"
    )
    assert says in failed["msg"]
    assert "\n" not in failed["msg"]
    assert node.file("enroot/enroot.conf") is None


def test_settings_do_not_lead_to_shared_storage_either(node: Node) -> None:
    failed = node(config="ENROOT_DATA_PATH /fsx/enroot/user-$(id -u)\n", source="enroot_settings")
    assert failed["msg"].startswith("enroot_settings: ENROOT_DATA_PATH is /fsx/enroot/user-, on lustre")
    assert node.file("enroot/enroot.conf") is None


def test_local_directories_are_taken(node: Node) -> None:
    assert not node(local={"enroot_data_dir": "/scratch/enroot", "enroot_runtime_dir": "/run/enroot"})["failed"]


def test_what_enroot_would_not_read_is_named(node: Node) -> None:
    failed = node(config="ENROOT_DATA_PATH /x\nROOTFS_WRITABLE yes\n", source="enroot_settings")
    assert failed["msg"].startswith("enroot_settings: Enroot would not read 'ROOTFS_WRITABLE'; needed is ENROOT_…")
    failed = node(config="ENROOT_DATA_PATH $(id -u\n", source="enroot_settings")
    assert failed["msg"].startswith("bash: ")
    assert "correct enroot_settings; nothing in " in failed["msg"]
    assert node.file("enroot/enroot.conf") is None
    for line in ("NVIDIA_VISIBLE_DEVICES all", "https_proxy=http://proxy:3128", "SSL_CERT_FILE /x", ""):
        assert not node(check=True, config=f"{line}\n")["failed"]


def test_an_enroot_that_does_not_take_its_configuration(node: Node) -> None:
    node.enroot("echo 'Invalid configuration file: /etc/enroot/enroot.conf'; exit 1")
    assert "'enroot version' ended with 1: Invalid configuration file" in node()["msg"]


def test_the_kernel_is_told_what_it_lacks_and_nothing_else(node: Node) -> None:
    node.kernel("user.max_user_namespaces", 0)
    assert node(check=True)["changed"]
    assert node.kernel("user.max_user_namespaces") == "0"
    node()
    assert node.kernel("user.max_user_namespaces") == "65536"
    assert (node.file("sysctl.d/99-zz-enroot.conf") or "").splitlines()[1:] == ["user.max_user_namespaces = 65536"]
    for check in (True, False):
        assert not node(check=check)["changed"]
    node.kernel("user.max_user_namespaces", 5)  # as after a boot at which somebody else had the last word
    assert node()["changed"]
    assert node.kernel("user.max_user_namespaces") == "65536"


def test_apparmor_is_relaxed_only_without_a_profile(node: Node) -> None:
    node.kernel(_enroot.APPARMOR, 1)
    profile = node.top / "etc/apparmor.d/enroot"
    profile.parent.mkdir()
    profile.write_text("")
    node()
    assert node.kernel(_enroot.APPARMOR) == "1"
    profile.unlink()
    assert node()["changed"]
    assert node.kernel(_enroot.APPARMOR) == "0"
    assert "apparmor_restrict_unprivileged_userns = 0" in (node.file("sysctl.d/99-zz-enroot.conf") or "")
    assert not node()["changed"]
    profile.write_text("")
    assert node()["changed"]
    assert node.file("sysctl.d/99-zz-enroot.conf") is None


def test_images_that_ask_for_gpus_start_on_a_node_without(node: Node) -> None:
    node(gpus=False)
    assert node.file("enroot/environ.d/90-no-gpu.env") == "NVIDIA_VISIBLE_DEVICES=void\n"
    assert not node(gpus=False)["changed"]
    assert node()["changed"]
    assert node.file("enroot/environ.d/90-no-gpu.env") is None


def test_whose_enroot_it_is(node: Node) -> None:
    node.enroot("echo 4.2.1")
    assert node(origin="found", version="4.2")["summary"] == "Enroot 4.2.1, the AMI's own"
    assert node(sysctls={"user.max_user_namespaces": "many"})["msg"].endswith("needed are whole numbers")

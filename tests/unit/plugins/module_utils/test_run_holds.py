# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Packages are held for a run, and what was held before stays held."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds as packages_holds
from ansible_collections.pcluster.postboot.plugins.module_utils._packages.holds import AptHolds, DnfHolds, Holds
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

PATTERNS = ["linux-image-*", "nvidia-driver*", "lustre-client*"]


class Dpkg:
    def __init__(self, **packages: str) -> None:
        self.status = {name.replace("_", "-"): status for name, status in packages.items()}
        self.locked = 0
        self.calls: list[str] = []

    def __call__(self, command: Sequence[str], text: str) -> tuple[int, str, str]:
        self.calls.append(" ".join(command[:2]))
        if command[0] == "dpkg-query":
            return 0, "".join(f"{status}\t{name}\n" for name, status in self.status.items()), ""
        if self.locked:
            self.locked -= 1
            return 2, "", "dpkg: error: dpkg frontend lock was locked by another process with pid 1\n"
        for line in text.splitlines():
            name, want = line.split()
            self.status[name] = f"{want} ok installed"
        return 0, "", ""

    def held(self) -> list[str]:
        return sorted(name for name, status in self.status.items() if status.startswith("hold"))


@pytest.fixture
def dpkg() -> Dpkg:
    return Dpkg(
        linux_image_aws="install ok installed",
        linux_image_old="deinstall ok config-files",
        nvidia_driver_595="hold ok installed",
        nvidia_container_toolkit="install ok installed",
        bash="install ok installed",
    )


def test_what_matches_is_held_and_released_but_not_what_was_held_before(dpkg: Dpkg, tmp_path: Path) -> None:
    holds = Holds(AptHolds(dpkg), str(tmp_path))
    assert holds.begin(PATTERNS) == ["linux-image-aws"]
    assert dpkg.held() == ["linux-image-aws", "nvidia-driver-595"]
    assert holds.end() == ["linux-image-aws"]
    assert dpkg.held() == ["nvidia-driver-595"]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_held_is_released_by_the_next(dpkg: Dpkg, tmp_path: Path) -> None:
    Holds(AptHolds(dpkg), str(tmp_path)).begin(PATTERNS)  # and is killed
    dpkg.status["lustre-client-modules"] = "install ok installed"
    holds = Holds(AptHolds(dpkg), str(tmp_path))
    assert holds.begin(PATTERNS) == ["lustre-client-modules"]
    assert holds.end() == ["linux-image-aws", "lustre-client-modules"]
    assert dpkg.held() == ["nvidia-driver-595"]


def test_it_is_recorded_before_it_is_held(dpkg: Dpkg, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def die(command: Sequence[str], text: str) -> tuple[int, str, str]:
        if command[0] == "dpkg":
            dpkg(command, text)
            raise Killed
        return dpkg(command, text)

    with pytest.raises(Killed):
        Holds(AptHolds(die), str(tmp_path)).begin(PATTERNS)
    assert json.loads((tmp_path / "holds.json").read_text())["held"] == ["linux-image-aws"]
    Holds(AptHolds(dpkg), str(tmp_path)).end()
    assert dpkg.held() == ["nvidia-driver-595"]


def test_a_package_that_was_removed_or_released_meanwhile_is_left_alone(dpkg: Dpkg, tmp_path: Path) -> None:
    holds = Holds(AptHolds(dpkg), str(tmp_path))
    holds.begin(["linux-image-*", "bash"])
    dpkg.status["linux-image-aws"] = "deinstall ok config-files"
    dpkg.status["bash"] = "install ok installed"
    dpkg.calls.clear()
    holds.end()
    assert dpkg.calls == ["dpkg-query -W"]


def test_nothing_to_hold_writes_nothing(dpkg: Dpkg, tmp_path: Path) -> None:
    holds = Holds(AptHolds(dpkg), str(tmp_path / "absent"))
    assert holds.begin([]) == []
    assert holds.begin(["zsh*"]) == []
    assert holds.end() == []
    assert not (tmp_path / "absent").exists()


def test_a_busy_dpkg_is_waited_for_and_then_said_to_be_busy(dpkg: Dpkg, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages_holds.time, "sleep", lambda _seconds: None)
    dpkg.locked = 2
    AptHolds(dpkg).hold(["bash"])
    assert "bash" in dpkg.held()
    dpkg.locked = 1
    with pytest.raises(packages_holds.BusyError, match="another process"):
        AptHolds(dpkg, patience=0).hold(["bash"])


@pytest.mark.parametrize(
    ("program", "holds", "named"), [("dpkg-query", AptHolds(), "dpkg-query -W"), ("rpm", DnfHolds(), "rpm -qa")]
)
def test_a_program_that_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, holds: AptHolds | DnfHolds, named: str
) -> None:
    lab.program(tmp_path / program, "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(packages_holds, "SECONDS", 0.2)
    with pytest.raises(
        packages_holds.HoldError, match=f"^'{named} .*' did not end within 0.2 s; see what it waits for$"
    ):
        holds.to_hold(["*"])


def test_another_error_of_dpkg_is_told() -> None:
    # As dpkg-query 1.21.22 prints it.
    said = "dpkg-query: error: parsing file '/var/lib/dpkg/status' near line 1 package 'demo':\n"
    why = " field name 'foo' must be followed by colon"
    with pytest.raises(packages_holds.HoldError) as raised:
        AptHolds(lambda _command, _text: (2, "", f"{said}{why}\n")).to_hold(["*"])
    assert str(raised.value) == f"dpkg-query cannot list the packages: {said.strip()}{why}"


def test_a_broken_record_stops_before_anything_is_released(dpkg: Dpkg, tmp_path: Path) -> None:
    (tmp_path / "holds.json").write_text("[")
    with pytest.raises(packages_holds.HoldError, match="release what it names, then remove it"):
        Holds(AptHolds(dpkg), str(tmp_path)).end()


def test_names_with_an_architecture_match_without_it() -> None:
    assert packages_holds.matching(["libnvidia-compute-595:amd64", "bash"], ["libnvidia-compute-*"]) == [
        "libnvidia-compute-595:amd64"
    ]


RPMS = "kernel\nkernel-core\nkernel\nbash\nkmod-lustre-client\nlibnvidia-container1\n"
DNF_PATTERNS = ["kernel*", "kmod-lustre*"]


def dnf(path: Path) -> DnfHolds:
    return DnfHolds(str(path), lambda _command, _text: (0, RPMS, ""))


@pytest.mark.parametrize(
    "before",
    [
        "[main]\ngpgcheck=1\n",
        "[main]\ngpgcheck=1",
        "[main]\nexcludepkgs = bash, zsh\ngpgcheck=1\n",
        "[main]\nexclude=bash\n",
        "[main]\nexcludepkgs=bash\n  zsh\n# end\n\n[other]\nexcludepkgs=kernel\n",
        "# nothing but a remark\n[main]\n",
        "[main]\nexcludepkgs=kernel*\n",
    ],
)
def test_dnf_conf_is_afterwards_as_it_was_before(tmp_path: Path, before: str) -> None:
    conf = tmp_path / "dnf.conf"
    conf.write_text(before)
    conf.chmod(0o640)
    holds = Holds(dnf(conf), str(tmp_path))
    assert holds.begin(DNF_PATTERNS) == ["kernel", "kernel-core", "kmod-lustre-client"]
    during = conf.read_text()
    assert "kernel kernel-core kmod-lustre-client\n" in during
    assert during.count("exclude") == max(1, before.count("exclude"))
    assert holds.end() == ["kernel", "kernel-core", "kmod-lustre-client"]
    assert conf.read_text() == (before if before.endswith("\n") else before + "\n")
    assert conf.stat().st_mode & 0o777 == 0o640


def test_the_excluded_packages_stand_in_the_main_section(tmp_path: Path) -> None:
    conf = tmp_path / "dnf.conf"
    conf.write_text("[main]\nbest=True\n\n[repo]\nenabled=1\n")
    dnf(conf).hold(["kernel"])
    assert conf.read_text() == "[main]\nbest=True\nexcludepkgs=kernel\n\n[repo]\nenabled=1\n"


def test_a_missing_dnf_conf_is_made(tmp_path: Path) -> None:
    conf = tmp_path / "etc" / "dnf.conf"
    holds = Holds(dnf(conf), str(tmp_path))
    holds.begin(DNF_PATTERNS)
    assert conf.read_text() == "[main]\nexcludepkgs=kernel kernel-core kmod-lustre-client\n"
    holds.end()
    assert conf.read_text() == "[main]\n"


def test_a_name_that_the_owner_excludes_stays_excluded(tmp_path: Path) -> None:
    conf = tmp_path / "dnf.conf"
    conf.write_text("[main]\nexcludepkgs=kernel\n")
    holds = Holds(dnf(conf), str(tmp_path))
    assert holds.begin(DNF_PATTERNS) == ["kernel-core", "kmod-lustre-client"]
    holds.end()
    assert conf.read_text() == "[main]\nexcludepkgs=kernel\n"


def test_what_the_owner_adds_meanwhile_stays(tmp_path: Path) -> None:
    conf = tmp_path / "dnf.conf"
    conf.write_text("[main]\nexcludepkgs= bash\n")
    holds = Holds(dnf(conf), str(tmp_path))
    holds.begin(DNF_PATTERNS)
    conf.write_text(conf.read_text().replace("bash", "bash zsh"))
    holds.end()
    assert conf.read_text() == "[main]\nexcludepkgs=bash zsh\n"


def test_what_a_killed_run_excluded_is_restored_as_it_was_written(tmp_path: Path) -> None:
    conf = tmp_path / "dnf.conf"
    conf.write_text("[main]\nexcludepkgs = bash,zsh\n")
    Holds(dnf(conf), str(tmp_path)).begin(["kernel"])  # and is killed
    holds = Holds(dnf(conf), str(tmp_path))
    holds.begin(DNF_PATTERNS)
    holds.end()
    assert conf.read_text() == "[main]\nexcludepkgs = bash,zsh\n"


def test_a_link_to_dnf_conf_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("[main]\n")
    (tmp_path / "dnf.conf").symlink_to("real")
    dnf(tmp_path / "dnf.conf").hold(["kernel"])
    assert (tmp_path / "dnf.conf").is_symlink()
    assert "kernel" in (tmp_path / "real").read_text()


def test_the_default_patterns_spare_the_container_toolkit(repo: Path) -> None:
    patterns = yaml.safe_load((repo / "roles/common/defaults/main.yml").read_text())["common_hold_packages"]
    spared = ["nvidia-container-toolkit", "libnvidia-container1", "libnvidia-container-tools", "linux-libc-dev", "gcc"]
    held = ["linux-image-6.8.0-1015-aws", "linux-aws", "linux-modules-extra-6.8.0-1015-aws", "kernel-core"]
    held += ["lustre-client-modules-aws", "kmod-lustre-client", "nvidia-driver-595-server", "nvidia-fabricmanager-595"]
    held += ["nvidia-imex", "cuda-drivers-595", "kmod-nvidia-latest-dkms", "libnvidia-compute-595:amd64"]
    assert packages_holds.matching([*spared, *held], patterns) == sorted(held)

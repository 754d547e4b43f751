# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lock file of nodes: what holds for which Python, and that every line of it is believed by a hash."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.markers import Marker

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import wheels
from ansible_collections.pcluster.postboot.plugins.module_utils._bundle.wheels import Target
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

HASH = "0" * 64
TARGETS = [Target(python, machine) for python in wheels.PYTHONS for machine in wheels.ARCHITECTURES]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_each_target_has_one_of_everything(repo: Path, target: Target) -> None:
    pins = wheels.wanted(wheels.read_lock(str(repo / "requirements/node.txt")), target)
    versions = {name: version for name, _sep, version in (pin.requirement.partition("==") for pin in pins)}
    assert len(versions) == len(pins)
    assert {"jinja2", "markupsafe", "pyyaml", "cryptography", "cffi", "packaging", "resolvelib"} <= set(versions)
    newest_of_311 = (2, 19)
    core = tuple(int(part) for part in versions["ansible-core"].split(".")[:2])
    assert (core == newest_of_311) if target.python == "3.11" else (core > newest_of_311)


def test_no_marker_asks_for_a_patch_release(repo: Path) -> None:
    for name in ("node.txt", "uv.txt"):
        for pin in wheels.read_lock(str(repo / "requirements" / name)):
            for target in TARGETS if pin.marker else []:
                late = {**target.environment, "python_full_version": f"{target.python}.99"}
                assert Marker(pin.marker).evaluate(late) == Marker(pin.marker).evaluate(target.environment), pin


def test_a_lock_is_read(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "# made by a tool\n"
        f"one==1.0 ; python_full_version < '3.12' \\\n    --hash=sha256:{HASH} \\\n"
        f"    --hash=sha256:{'1' * 64}\n    # via x\n"
        f"two==2.0 --hash=sha256:{HASH}\n"
    )
    one, two = wheels.read_lock(str(lock))
    assert one == ("one==1.0", "python_full_version < '3.12'", (HASH, "1" * 64))
    assert one.line() == f"one==1.0 --hash=sha256:{HASH} --hash=sha256:{'1' * 64}"
    assert two == ("two==2.0", "", (HASH,))
    assert wheels.wanted([one, two], Target("3.11", "x86_64")) == [one, two]
    assert wheels.wanted([one, two], Target("3.12", "x86_64")) == [two]


@pytest.mark.parametrize("line", ["one==1", f"one --hash=sha256:{HASH}", f"one>=1 --hash=sha256:{HASH}", "-r a.txt"])
def test_what_pins_nothing_is_refused(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text(f"{line}\n")
    with pytest.raises(Problem, match=f"{lock}: .* is no name==version with --hash=sha256"):
        wheels.read_lock(str(lock))


def test_platforms_reach_down_to_the_oldest_that_wheels_are_built_for() -> None:
    options = Target("3.13", "aarch64").options
    platforms = [word for option, word in zip(options, options[1:]) if option == "--platform"]
    assert platforms[0] == "manylinux_2_34_aarch64"
    assert {"manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"} < set(platforms)
    assert options[options.index("--python-version") + 1] == "3.13"

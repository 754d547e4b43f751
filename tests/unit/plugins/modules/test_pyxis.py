# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pyxis' modules on real files, with small programs in place of Slurm's that load a plugstack as Slurm does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import load
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import plugin as _pyxis_plugin
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import plugstack as _pyxis_plugstack
from ansible_collections.pcluster.postboot.plugins.modules import pyxis_check, pyxis_plugin, pyxis_plugstack
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

# srun and sbatch: a plugin is a text that names the Slurm for which it was made, and sbatch reads its arguments.
CLIENT = """#!{python} -SE
import glob, os, sys
name = os.path.basename(sys.argv[0])
top = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[0])))
slurm = open(top + "/version").read()
conf = os.environ["SLURM_CONF"]
settings = dict(line.split("=", 1) for line in open(conf).read().splitlines() if "=" in line)
found = []
def die(text):
    sys.exit(f"{{name}}: error: {{text}}")
def read(path, number=0):
    if not os.path.exists(path) or os.path.isdir(path):
        return
    if not os.stat(path).st_mode & 4:
        die(f"spank: Failed to open {{path}}: Permission denied")
    for line in open(path):
        words = line.split("#")[0].split()
        if words[:1] == ["include"]:
            for one in sorted(glob.glob(words[1])):
                read(one)
        elif words:
            if not os.path.exists(words[1]):
                die(f"plugin_load_from_file: dlopen({{words[1]}}): cannot open shared object file")
            text = open(words[1]).read()
            if f"slurm {{slurm}}" not in text and words[0] == "required":
                die(f"plugin_load_from_file: Incompatible Slurm plugin {{words[1]}}")
            for word in words[2:]:
                if name == "sbatch" and word.split("=")[0] not in text:
                    die(f"pyxis: unknown configuration option: {{word}}")
            found.append(words[1])
read(settings.get("PlugStackConfig", os.path.dirname(conf) + "/plugstack.conf"))
if os.path.exists(top + "/hangs"):
    import time
    time.sleep(5)
print("Usage: srun")
if any("pyxis" in path for path in found):
    print("      --container-image=IMAGE")
"""

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/slurm"
MAKEFILE = """all: spank_pyxis.so
spank_pyxis.so:
\t@echo "$(CPPFLAGS)" > flags
\t@{body}
"""


class Slurm:
    """A Slurm below a folder, and a source of Pyxis beside it."""

    def __init__(self, top: Path, run: lab.Run, warnings: list[str]) -> None:
        self.top, self._run, self.warnings = top, run, warnings
        self.prefix, self.source = top / "slurm", top / "source"
        self.image = top / "image/spank_pyxis.so"
        for folder in ("slurm/bin", "slurm/etc", "slurm/include/slurm", "source", "image", "bin", "tmp", "proc"):
            (top / folder).mkdir(parents=True)
        for name in ("srun", "sbatch"):
            self.program(self.prefix / "bin" / name, CLIENT.format(python=os.path.realpath(sys.executable)))
        shows = f'[ "$*" != "-o show nodes" ] || exec cat {top}/nodes'
        self.program(self.prefix / "bin/scontrol", f"#!/bin/sh\n{shows}\necho $* >> {top}/calls\n")
        self.nodes = top / "nodes"
        shown = (FIXTURES / "nodes-24.11.5.txt").read_text()
        self.nodes.write_text(shown.replace("+NOT_RESPONDING", ""))
        self.program(top / "bin/gcc", "#!/bin/sh\n")
        (self.prefix / "include/slurm/spank.h").write_text("")
        (self.prefix / "etc/slurm.conf").write_text("ClusterName=x\n")
        self.upgrade("22.05.8")
        self.recipe("cp body spank_pyxis.so")
        (self.source / "body").write_text(self.plugin_text())

    def run(self, module: Any, args: dict[str, Any], check: bool = False) -> dict[str, Any]:
        self.warnings.clear()
        return self._run(module, {"prefix": str(self.prefix), **args}, check=check)

    @staticmethod
    def program(path: Path, text: str) -> None:
        lab.program(path, text)

    def plugin_text(self, slurm: str = "22.05.8", version: str = "0.24.0", options: str = "") -> str:
        known = options or "runtime_path execute_entrypoint container_scope sbatch_support importer use_squashfuse"
        return f"slurm {slurm}\npyxis: version v{version}\n{known}\n"

    def upgrade(self, version: str) -> None:
        self.version = version
        (self.prefix / "version").write_text(version)

    def recipe(self, body: str) -> None:
        (self.source / "Makefile").write_text(MAKEFILE.format(body=body))

    def plugin(self, check: bool = False, **args: Any) -> dict[str, Any]:
        given = {"slurm_version": self.version, "version": "0.24.0", "places": [str(self.image)], **args}
        return self.run(pyxis_plugin, given, check=check)

    def build(self, check: bool = False, **args: Any) -> dict[str, Any]:
        return self.plugin(check, source=str(self.source), **args)

    def plugstack(self, check: bool = False, **args: Any) -> dict[str, Any]:
        return self.run(pyxis_plugstack, {"plugin": str(self.built), "version": "0.24.0", **args}, check=check)

    @property
    def built(self) -> Path:
        return self.prefix / f"pyxis/0.24.0-slurm{self.version}/spank_pyxis.so"

    @property
    def entry(self) -> Path:
        return self.prefix / "etc/plugstack.conf.d/pyxis.conf"

    def names(self, folder: str) -> list[str]:
        path = self.prefix / folder
        return sorted(one.name for one in path.iterdir()) if path.exists() else []

    def calls(self) -> list[str]:
        return lab.lines(self.top / "calls")

    def controller(self) -> None:
        (self.top / "proc/12").mkdir()
        (self.top / "proc/12/comm").write_text("slurmctld\n")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run, warnings: list[str]) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(load, "NOBODY", os.getuid())  # whom pytest's folder lets in
    monkeypatch.setattr(_pyxis_plugstack, "PROC", str(tmp_path / "proc"))
    return Slurm(tmp_path, run_module, warnings)


@pytest.fixture
def provided(slurm: Slurm) -> Slurm:
    """A Slurm with a built Pyxis in its plugstack."""
    slurm.build()
    slurm.plugstack(options={"runtime_path": "/run/pyxis"})
    return slurm


# The plugin


def test_what_the_image_brought_is_kept_where_all_nodes_see_it(slurm: Slurm) -> None:
    slurm.image.write_text(slurm.plugin_text(version="0.20.0"))
    foretold = slurm.plugin(check=True)
    assert foretold["changed"]
    assert slurm.names("pyxis") == []
    done = slurm.plugin()
    folder = Path(done["plugin"]).parent
    assert re.fullmatch(r"0\.20\.0-ami-[0-9a-f]{8}-slurm22\.05\.8", folder.name)
    assert done["plugin"] == foretold["plugin"] == str(folder / "spank_pyxis.so")
    assert (done["due"], done["version"]) == (False, "0.20.0")
    assert done["summary"] == "Pyxis 0.20.0, the AMI's own"
    assert (folder / "spank_pyxis.so").read_text() == slurm.image.read_text()
    assert json.loads((folder / "manifest.json").read_text())["origin"] == str(slurm.image)
    assert not slurm.plugin()["changed"]
    slurm.image.write_text(slurm.plugin_text(version="0.20.0") + "newer\n")
    newer = slurm.plugin()
    assert newer["changed"]
    assert "newer" in Path(newer["plugin"]).read_text()
    assert "newer" not in (folder / "spank_pyxis.so").read_text()  # jobs may load it until the entry has changed
    assert not slurm.plugin(check=True)["changed"]


def test_what_lies_below_the_shared_prefix_is_used_in_its_place(slurm: Slurm) -> None:
    place = slurm.prefix / "spank_pyxis.so"
    place.write_text(slurm.plugin_text())
    done = slurm.plugin(places=[str(place)])
    assert (done["changed"], done["plugin"]) == (False, str(place))
    assert slurm.names("pyxis") == []


def test_one_that_does_not_load_makes_a_build_due(slurm: Slurm) -> None:
    slurm.image.write_text(slurm.plugin_text(slurm="21.08"))
    found = slurm.plugin()
    assert (found["changed"], found["due"], found["missing"]) == (False, True, [])
    assert f"{slurm.image} does not load in Slurm 22.05.8 (plugin_load_from_file: Incompatible" in found["why"]
    done = slurm.build()
    assert (done["changed"], done["due"], done["plugin"]) == (True, False, str(slurm.built))


def test_one_that_loads_and_brings_no_option_is_none(slurm: Slurm) -> None:
    other = slurm.top / "image/other.so"
    other.write_text(slurm.plugin_text())
    assert "has no option --container-image afterwards" in slurm.plugin(places=[str(other)])["why"]


def test_check_build_check_build(slurm: Slurm) -> None:
    foretold = slurm.build(check=True)
    assert (foretold["changed"], foretold["plugin"]) == (True, str(slurm.built))
    assert slurm.names("pyxis") == []
    done = slurm.build()
    assert done["diff"] == foretold["diff"]
    assert done["summary"] == "Pyxis 0.24.0 built for Slurm 22.05.8"
    assert slurm.names("pyxis/0.24.0-slurm22.05.8") == ["manifest.json", "spank_pyxis.so"]
    assert slurm.built.stat().st_mode & 0o777 == 0o644
    assert slurm.built.parent.stat().st_mode & 0o777 == 0o755
    for check in (True, False):
        again = slurm.plugin(check=check)
        assert (again["changed"], again["due"], again["plugin"]) == (False, False, str(slurm.built))
    assert sorted(one.name for one in slurm.source.iterdir()) == ["Makefile", "body"]
    assert list((slurm.top / "tmp").iterdir()) == []


def test_the_build_sees_the_headers_of_this_slurm(slurm: Slurm) -> None:
    slurm.recipe("cat body flags > spank_pyxis.so")
    slurm.build()
    assert f"-I{slurm.prefix}/include" in slurm.built.read_text()


def test_always_passes_over_what_the_image_brought_and_never_builds_nothing(slurm: Slurm) -> None:
    slurm.image.write_text(slurm.plugin_text(version="0.20.0"))
    assert slurm.plugin(build="always")["due"]
    assert slurm.plugin(build="never")["version"] == "0.20.0"
    slurm.image.write_text(slurm.plugin_text(slurm="21.08"))
    failed = slurm.plugin(build="never")
    assert failed["failed"]
    assert failed["msg"].startswith(f"pyxis_build is never, and {slurm.image} does not load in Slurm 22.05.8 (")
    assert failed["msg"].endswith("needed is a Pyxis that loads: set pyxis_build to auto")


def test_another_slurm_gets_a_build_of_its_own_and_the_old_one_stays(provided: Slurm) -> None:
    provided.upgrade("23.02.1")
    found = provided.plugin()
    assert (found["changed"], found["due"]) == (True, True)
    assert "it was withdrawn from Slurm's plugstack until Pyxis loads" in provided.warnings[0]
    assert not provided.entry.exists()
    (provided.source / "body").write_text(provided.plugin_text(slurm="23.02.1"))
    provided.build()
    assert provided.names("pyxis") == ["0.24.0-slurm22.05.8", "0.24.0-slurm23.02.1", "withdrawn.conf"]
    provided.plugstack()
    assert provided.entry.exists()
    assert provided.names("pyxis") == ["0.24.0-slurm22.05.8", "0.24.0-slurm23.02.1"]


def test_check_mode_withdraws_nothing(provided: Slurm) -> None:
    provided.upgrade("23.02.1")
    assert provided.plugin(check=True)["changed"]
    assert "it would be withdrawn" in provided.warnings[0]
    assert provided.entry.exists()


@pytest.mark.parametrize("damage", ["plugin", "manifest"])
def test_a_damaged_build_is_made_anew(slurm: Slurm, damage: str) -> None:
    slurm.build()
    if damage == "plugin":
        slurm.built.write_text(slurm.plugin_text() + "x")
    else:
        slurm.built.with_name("manifest.json").write_text("{")
    assert slurm.plugin()["why"] == f"the build in {slurm.built.parent} is damaged"
    assert slurm.build()["changed"]
    assert slurm.built.read_text() == slurm.plugin_text()
    assert slurm.names("pyxis") == ["0.24.0-slurm22.05.8"]


@pytest.mark.parametrize("step", ["copyfile", "dumps", "rename"])
def test_a_run_killed_while_it_publishes_leaves_nothing_to_load(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed(*_args: Any, **_keywords: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr({"copyfile": shutil, "dumps": json, "rename": os}[step], step, killed)
        with pytest.raises(KeyboardInterrupt):
            slurm.build()
    assert not slurm.built.exists()
    assert slurm.plugin()["due"]
    assert slurm.names("pyxis") == []
    assert slurm.build()["changed"]
    assert slurm.names("pyxis") == ["0.24.0-slurm22.05.8"]


def test_what_a_killed_build_has_left_on_the_node_goes(slurm: Slurm) -> None:
    left = slurm.top / "tmp/postboot-pyxis-abc"
    left.mkdir()
    slurm.plugin(check=True)
    assert left.exists()
    slurm.plugin()
    assert not left.exists()


def test_what_anybody_puts_where_temporary_files_are_is_left_alone(slurm: Slurm) -> None:
    file, link = slurm.top / "tmp/postboot-pyxis-file", slurm.top / "tmp/postboot-pyxis-link"
    file.write_text("")
    link.symlink_to("/")
    assert not slurm.plugin()["failed"]
    assert file.exists()
    assert link.is_symlink()


@strangers.TWO_USERS
def test_names_that_come_and_go_where_temporary_files_are_do_no_harm(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strangers.crowd() as place:
        monkeypatch.setattr("tempfile.tempdir", str(place))
        deep, name = place / "postboot-pyxis-deep", place / "postboot-pyxis-1"
        strangers.deep_tree(deep)
        strangers.deep_tree(place / "postboot-pyxis-own", 0)
        with strangers.churn(lambda: (name.mkdir(), name.rmdir())):
            for _again in strangers.until(1):
                assert not slurm.plugin()["failed"]
        assert strangers.depth(deep) == strangers.DEEP


def test_one_that_was_built_and_does_not_load_is_not_published(slurm: Slurm) -> None:
    (slurm.source / "body").write_text(slurm.plugin_text(slurm="21.08"))
    failed = slurm.build()
    assert failed["failed"]
    assert "gave a spank_pyxis.so that does not load in the Slurm of" in failed["msg"]
    assert "Incompatible Slurm plugin" in failed["msg"]
    assert slurm.names("pyxis") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.recipe("echo 'args.c:3: error: no spank.h' >&2; exit 1"), "args.c:3: error: no spank.h"),
        (lambda s: s.recipe("true"), "make left no spank_pyxis.so in the source of Pyxis 0.24.0"),
        (lambda s: (s.source / "Makefile").unlink(), "has no Makefile; needed is the source of Pyxis"),
        (lambda s: (s.top / "bin/gcc").unlink(), "gcc not found; a build needs make and gcc"),
        (lambda s: (s.prefix / "include/slurm/spank.h").unlink(), "a build needs the headers of the Slurm"),
        (lambda s: (s.prefix / "bin/srun").unlink(), "bin/srun is not there; needed is an installed Slurm"),
        (
            lambda s: (s.source / "body").write_text(s.plugin_text(version="0.23.0")),
            "is Pyxis 0.23.0; set pyxis_version",
        ),
    ],
)
def test_a_build_that_can_not_be_is_one_line(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, change: Callable[[Slurm], None], message: str
) -> None:
    monkeypatch.setattr(_pyxis_plugin, "missing_programs", lambda: _missing(slurm))
    change(slurm)
    failed = slurm.build()
    assert failed["failed"]
    assert message in failed["msg"]
    assert "\n" not in failed["msg"]
    assert slurm.names("pyxis") == []


def _missing(slurm: Slurm) -> list[str]:
    """Whatever compiler this machine has does not count."""
    return [] if (slurm.top / "bin/gcc").exists() else ["gcc"]


def test_missing_programs_are_named(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(slurm.top / "bin"))
    assert slurm.plugin()["missing"] == ["make"]


@pytest.mark.parametrize(("given", "message"), [({"slurm_version": ""}, "unknown"), ({"version": "../x"}, "'../x'")])
def test_versions_that_can_not_name_a_directory_are_refused(slurm: Slurm, given: dict[str, str], message: str) -> None:
    failed = slurm.plugin(**given)
    assert failed["failed"]
    assert message in failed["msg"]


# The plugstack


def test_check_write_check_write(slurm: Slurm) -> None:
    slurm.build()
    args = {"options": {"runtime_path": "/run/pyxis", "sbatch_support": False}}
    slurm.controller()
    foretold = slurm.plugstack(check=True, **args)
    assert foretold["actions"] == ["wrote", "reconfigured"]
    assert slurm.names("etc") == ["slurm.conf"]
    done = slurm.plugstack(**args)
    assert (done["actions"], done["diff"]) == (foretold["actions"], foretold["diff"])
    assert slurm.entry.read_text().splitlines()[1:] == [
        f"required {slurm.built} runtime_path=/run/pyxis sbatch_support=0"
    ]
    assert (slurm.prefix / "etc/plugstack.conf").read_text() == f"include {slurm.entry.parent}/*.conf\n"
    assert slurm.entry.stat().st_mode & 0o777 == 0o644
    assert slurm.calls() == ["reconfigure"]
    for check in (True, False):
        assert slurm.plugstack(check=check, **args)["actions"] == []
    assert slurm.calls() == ["reconfigure"]
    assert slurm.names("etc/plugstack.conf.d") == ["pyxis.conf"]
    assert slurm.names("pyxis") == ["0.24.0-slurm22.05.8"]


def test_check_mode_before_anything_was_built(slurm: Slurm) -> None:
    assert slurm.plugstack(check=True)["actions"] == ["wrote"]


def test_an_include_that_is_there_is_enough_and_other_lines_stay(slurm: Slurm) -> None:
    slurm.build()
    conf = slurm.prefix / "etc/plugstack.conf"
    conf.write_text(f"# mine\ninclude {slurm.entry.parent}/*\n")
    slurm.plugstack()
    assert conf.read_text() == f"# mine\ninclude {slurm.entry.parent}/*\n"
    conf.write_text("# mine")
    slurm.plugstack()
    assert conf.read_text() == f"# mine\ninclude {slurm.entry.parent}/*.conf\n"


def test_only_what_this_version_knows_is_written(slurm: Slurm) -> None:
    slurm.build()
    options = {"runtime_path": "/run/pyxis", "use_squashfuse": True, "container_scope": "job", "remap_root": True}
    slurm.plugstack(version="0.21.0", options=options)
    assert slurm.entry.read_text().splitlines()[1].split()[2:] == ["runtime_path=/run/pyxis", "container_scope=job"]
    assert [line.split(":")[0] for line in slurm.warnings] == [
        "Pyxis 0.21.0 does not know use_squashfuse",
        "Pyxis 0.21.0 does not know remap_root",
    ]


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.24.0", {"use_squashfuse", "importer", "use_enroot_load", "sbatch_support", "container_scope"}),
        ("0.21.0", {"importer", "use_enroot_load", "sbatch_support", "container_scope"}),
        ("0.20.0", {"sbatch_support", "container_scope"}),
        ("0.11.1", {"remap_root", "container_scope"}),
        ("0.8.1", {"remap_root"}),
        ("", set()),
    ],
)
def test_the_options_of_each_version(version: str, known: set[str]) -> None:
    arguments, unknown = _pyxis_plugstack.arguments_of(dict.fromkeys(_pyxis_plugstack.OPTIONS, "1"), version)
    assert {argument.split("=")[0] for argument in arguments} == known | {"runtime_path", "execute_entrypoint"}
    assert set(unknown) == set(_pyxis_plugstack.OPTIONS) - known - {"runtime_path", "execute_entrypoint"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runtime_paht": "/x"}, "pyxis_options has 'runtime_paht'; known are container_scope, "),
        ({"importer": "/my importer"}, "importer of Pyxis is '/my importer'; needed is one word"),
        ({"importer": ""}, "importer of Pyxis is ''; needed is one word"),
    ],
)
def test_options_that_mean_nothing_are_refused(slurm: Slurm, options: dict[str, str], message: str) -> None:
    slurm.build()
    failed = slurm.plugstack(options=options)
    assert message in failed["msg"]
    assert not slurm.entry.exists()


def test_what_slurm_does_not_load_with_these_options_is_not_written(slurm: Slurm) -> None:
    (slurm.source / "body").write_text(slurm.plugin_text(options="runtime_path"))
    slurm.build()
    failed = slurm.plugstack(options={"container_scope": "job"})
    assert failed["failed"]
    assert "does not load with container_scope=job (pyxis: unknown configuration option" in failed["msg"]
    assert slurm.names("etc") == ["slurm.conf"]


@pytest.mark.parametrize("name", ["sedXy12", "other.conf"])
def test_a_stray_that_stops_jobs_is_refused_before_anything_is_written(slurm: Slurm, name: str) -> None:
    slurm.build()
    stray = slurm.entry.parent / name
    stray.parent.mkdir()
    (slurm.prefix / "etc/plugstack.conf").write_text(f"include {slurm.entry.parent}/*\n")
    stray.write_text("required /nowhere.so\n")
    stray.chmod(0o600 if name.startswith("sed") else 0o644)
    failed = slurm.plugstack(others=["*"])
    assert failed["failed"]
    assert failed["msg"].startswith(f"{stray} is included by {slurm.prefix}/etc/plugstack.conf, and no job starts")
    assert ("Permission denied" if name.startswith("sed") else "/nowhere.so") in failed["msg"]
    assert not slurm.entry.exists()
    assert stray.exists()


def test_a_harmless_stray_is_named_until_it_is_declared(provided: Slurm) -> None:
    stray = provided.entry.parent / "x11.conf"
    stray.write_text("# nothing\n")
    (provided.entry.parent / ".dot").write_text("garbage")  # glob(3) takes none of these
    provided.plugstack()
    assert [line.split(" is not of")[0] for line in provided.warnings] == [str(stray)]
    provided.plugstack(others=["x11.*"])
    assert provided.warnings == []


def test_a_second_entry_for_pyxis_is_named(provided: Slurm) -> None:
    stray = provided.entry.parent / "pyxis.conf~"
    shutil.copy(provided.entry, stray)
    provided.plugstack(others=["*"])
    assert f"{stray} loads Pyxis too" in provided.warnings[0]


def test_a_run_killed_before_it_reconfigures_is_finished_by_the_next(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.build()
    slurm.controller()

    def killed(_prefix: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_pyxis_plugstack, "_reconfigure", killed)
        with pytest.raises(KeyboardInterrupt):
            slurm.plugstack()
    assert slurm.plugstack(check=True)["actions"] == ["reconfigured"]
    assert slurm.plugstack()["actions"] == ["reconfigured"]
    assert slurm.calls() == ["reconfigure"]
    assert slurm.plugstack()["actions"] == []


def test_an_entry_that_users_can_not_read_is_put_right(provided: Slurm) -> None:
    provided.entry.chmod(0o600)
    assert "wrote" in provided.plugstack(options={"runtime_path": "/run/pyxis"})["actions"]
    assert provided.entry.stat().st_mode & 0o777 == 0o644


def test_nodes_that_a_reconfiguration_leaves_behind_are_named(slurm: Slurm) -> None:
    """Slurm 24.11.5 gives no job to a powered-down node with NOT_RESPONDING once it has been reconfigured."""
    slurm.build()
    slurm.controller()
    well = slurm.nodes.read_text()
    slurm.nodes.write_text(well.replace("+POWERED_DOWN ", "+POWERED_DOWN+NOT_RESPONDING ", 3))
    for check in (True, False):
        assert slurm.plugstack(check=check)["actions"] == ["wrote", "reconfigured"]
        (warning,) = slurm.warnings
        assert warning.startswith("burst-dy-c5-[2-4]: powered down, and Slurm waits for the slurmd there.")
        assert "'scontrol update nodename=burst-dy-c5-[2-4] state=power_down_force'" in warning
    assert slurm.calls() == ["reconfigure"]
    slurm.plugstack()
    assert slurm.warnings == [], "nothing is reconfigured"
    slurm.nodes.write_text(well)
    slurm.plugstack(options={"runtime_path": "/run/pyxis"})
    assert slurm.warnings == []
    assert slurm.calls() == ["reconfigure", "reconfigure"]


def test_a_reconfiguration_that_fails_is_tried_again(slurm: Slurm) -> None:
    slurm.build()
    slurm.controller()
    works = (slurm.prefix / "bin/scontrol").read_text()
    slurm.program(slurm.prefix / "bin/scontrol", "#!/bin/sh\necho 'slurm_reconfigure error: no'\nexit 1\n")
    assert "reconfigure' failed (slurm_reconfigure error: no)" in slurm.plugstack()["msg"]
    slurm.program(slurm.prefix / "bin/scontrol", works)
    assert slurm.plugstack()["actions"] == ["reconfigured"]


def test_an_entry_that_srun_does_not_take_is_taken_away(slurm: Slurm) -> None:
    slurm.build()
    (slurm.prefix / "etc/slurm.conf").write_text("PlugStackConfig=/elsewhere\n")
    failed = slurm.plugstack()
    assert "does PlugStackConfig in slurm.conf name another file than" in failed["msg"]
    assert slurm.names("etc/plugstack.conf.d") == []


def test_only_builds_that_nothing_names_are_pruned(provided: Slurm) -> None:
    old, named = provided.prefix / "pyxis/0.9-slurm21.08", provided.prefix / "pyxis/0.8-slurm21.08"
    for folder in (old, named):
        folder.mkdir()
    (provided.entry.parent / "old.conf").write_text(f"optional {named}/spank_pyxis.so\n")
    (named / "spank_pyxis.so").write_text(provided.plugin_text())
    args = {"options": {"runtime_path": "/run/pyxis"}}
    assert provided.plugstack(**args)["actions"] == []
    assert provided.plugstack(check=True, prune=True, **args)["actions"] == ["pruned"]
    assert old.exists()
    assert provided.plugstack(prune=True, **args)["actions"] == ["pruned"]
    assert provided.names("pyxis") == ["0.24.0-slurm22.05.8", "0.8-slurm21.08"]
    assert provided.plugstack(prune=True, **args)["actions"] == []


# The program that runs before slurmctld starts


def check(slurm: Slurm) -> subprocess.CompletedProcess[str]:
    program = shutil.copy(load.__file__, slurm.top / "pyxis-check")
    line = [sys.executable, "-I", str(program), str(slurm.prefix)]
    environment = {**os.environ, "JOURNAL_STREAM": "8:1", "TMPDIR": str(slurm.top / "tmp")}
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=environment)


@pytest.fixture
def open_to_all(slurm: Slurm) -> None:
    """The program itself becomes nobody, whom pytest's folders do not let in."""
    folder = slurm.top
    while folder != folder.parent and not folder.stat().st_mode & 0o1000:
        folder.chmod(0o755)
        folder = folder.parent


@pytest.mark.usefixtures("open_to_all")
def test_one_that_loads_stays(provided: Slurm) -> None:
    done = check(provided)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert provided.entry.exists()


@pytest.mark.usefixtures("open_to_all")
def test_one_that_does_not_load_any_more_is_withdrawn_and_the_journal_told(provided: Slurm) -> None:
    before = provided.entry.read_text()
    built = provided.built
    provided.upgrade("23.02.1")
    done = check(provided)
    assert done.returncode == 0
    assert done.stdout.startswith(f"<4>pyxis-check: {built} does not load in the Slurm that is installed (")
    assert "Pyxis is withdrawn, and jobs without containers run" in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert provided.names("etc/plugstack.conf.d") == []
    assert (provided.prefix / "pyxis/withdrawn.conf").read_text() == before
    assert check(provided).stdout == ""


@pytest.mark.usefixtures("open_to_all")
@pytest.mark.parametrize("loss", ["plugin", "srun", "store", "everything"])
def test_whatever_is_missing_slurmctld_starts(provided: Slurm, loss: str) -> None:
    if loss == "everything":
        shutil.rmtree(provided.prefix)
    elif loss == "store":
        shutil.rmtree(provided.prefix / "pyxis")
        (provided.prefix / "pyxis").write_text("")
    else:
        (provided.built if loss == "plugin" else provided.prefix / "bin/srun").unlink()
    done = check(provided)
    assert (done.returncode, done.stderr) == (0, "")
    # With the store it has nowhere to go, and without srun nobody can tell; the journal says so.
    assert provided.entry.exists() == (loss in ("store", "srun"))
    assert ("File exists" in done.stdout) == (loss == "store")
    assert ("bin/srun --help could not be run" in done.stdout) == (loss == "srun")


def test_one_that_does_not_answer_in_time_is_neither_proven_nor_withdrawn(
    provided: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "TIMEOUT", 0.5)
    (provided.prefix / "hangs").write_text("")
    done = provided.plugin()
    assert "did not end within 0.5 s" in done["msg"]
    assert provided.entry.exists()
    assert "can not be told" in node(provided)["msg"]


# The other nodes


Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """programs("enroot") has a node find these alone, of what Enroot is and needs; an older one knows no overlay."""
    folder = tmp_path / "programs"
    folder.mkdir()
    which = SimpleNamespace(which=lambda name: shutil.which(name, path=str(folder)))
    monkeypatch.setattr(load, "shutil", which)

    def have(*names: str, native: bool = True) -> None:
        for name in names:
            Slurm.program(folder / name, "config::export ENROOT_NATIVE_OVERLAYFS true\n" if native else "#!/bin/bash\n")

    return have


@pytest.mark.parametrize(
    ("there", "native", "missing"),
    [
        ((), True, ""),
        (("enroot", "squashfuse"), True, ""),
        (("enroot",), True, "no squashfuse, with"),
        (("enroot", "squashfuse", "fuse-overlayfs"), False, ""),
        # Enroot 3.4.1 of official AMIs.
        (("enroot", "squashfuse"), False, "no fuse-overlayfs, with"),
        (("enroot",), False, "no squashfuse and no fuse-overlayfs, with"),
    ],
)
def test_images_are_mounted_only_with_what_mounts_them(
    slurm: Slurm, programs: Programs, there: tuple[str, ...], native: bool, missing: str
) -> None:
    programs(*there, native=native)
    for check in (True, False):
        found = slurm.build(check, squashfuse=True)
        assert found["failed"] is bool(missing)
        assert f"pyxis_options has use_squashfuse, and this node has {missing}" in found.get("msg", "") or not missing
    assert slurm.names("pyxis") == ([] if missing else ["0.24.0-slurm22.05.8"])
    assert not slurm.build()["failed"]


@pytest.mark.parametrize("version", ["0.20.0", "0.21.0"])
def test_an_older_pyxis_mounts_no_image(slurm: Slurm, programs: Programs, version: str) -> None:
    """What official AMIs bring: it would leave the option out, and images would be unpacked."""
    programs("enroot", "squashfuse")
    slurm.image.write_text(slurm.plugin_text(version=version))
    for check in (True, False):
        failed = slurm.plugin(check, squashfuse=True)
        assert failed["msg"] == (
            f"pyxis_options has use_squashfuse, and there is Pyxis {version}, the AMI's own; needed is Pyxis 0.22 or "
            "newer: set pyxis_build to always, with such a pyxis_version, or leave the option out"
        )
    assert slurm.names("pyxis") == []
    assert slurm.plugin(squashfuse=True, build="always")["due"]
    assert "0.21.3 built for Slurm" in slurm.plugin(squashfuse=True, build="always", version="0.21.3")["msg"]
    slurm.image.write_text(slurm.plugin_text(version="0.22.0"))
    assert not slurm.plugin(squashfuse=True)["failed"]


def test_a_node_without_what_mounts_images_fails(provided: Slurm, programs: Programs) -> None:
    provided.plugstack(options={"use_squashfuse": True})
    assert node(provided)["ready"]  # no Enroot, and so no containers
    programs("enroot")
    failed = node(provided)
    assert failed["msg"].startswith(f"{provided.entry} has use_squashfuse, and this node has no squashfuse, so that no")
    programs("squashfuse")
    assert node(provided)["ready"]
    provided.plugstack(options={"use_squashfuse": False})


def node(slurm: Slurm) -> dict[str, Any]:
    return slurm.run(pyxis_check, {})


def test_a_node_has_what_the_head_node_provides(provided: Slurm) -> None:
    done = node(provided)
    assert (done["changed"], done["ready"], done["summary"]) == (False, True, "Pyxis 0.24.0 of the head node")


def test_a_node_before_its_head_node_is_no_failure(slurm: Slurm) -> None:
    done = node(slurm)
    assert not done.get("failed")
    assert (done["ready"], done["summary"]) == (False, "no Pyxis yet: the head node has to provide it")
    assert done["waits_for"] == done["summary"]
    assert f"{slurm.entry} is not there yet" in slurm.warnings[0]


def test_a_node_on_which_it_does_not_load_fails(provided: Slurm) -> None:
    provided.built.unlink()
    failed = node(provided)
    assert failed["failed"]
    assert failed["msg"].startswith("srun fails on this node, and so does every job: plugin_load_from_file: dlopen(")

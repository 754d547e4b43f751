# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ofi_plugin with real libraries, which a compiler has made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.modules import ofi_plugin

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
Look = Callable[..., dict[str, Any]]


def library(home: Path, version: str, within: str = "lib", needs: str = "", linked: Path | None = None) -> Path:
    """Make a plugin that carries its version, and perhaps needs a function of a library, or one that nobody has."""
    folder = home / within
    folder.mkdir(parents=True)
    path = folder / "libnccl-net.so"
    call = f"extern int {needs}(void); int go(void) {{ return {needs}(); }}" if needs else ""
    code = f'const char text[] = "NET/OFI Initializing aws-ofi-nccl {version}"; {call}'
    line = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *(["-x", "none", str(linked)] if linked else [])]
    subprocess.run(line, input=code, text=True, check=True)
    return path


@pytest.fixture
def look(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Look:
    def run(**args: Any) -> dict[str, Any]:
        given = {"bundled": str(tmp_path / "amazon"), "published": str(tmp_path / "fsx"), "minimum": "1.17.2", **args}
        return run_module(ofi_plugin, given)

    return run


@pytest.mark.parametrize("within", ["lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"])
def test_the_installers_own_comes_first(tmp_path: Path, look: Look, within: str) -> None:
    path = library(tmp_path / "amazon", "1.17.2-aws", within)
    library(tmp_path / "fsx", "1.22.0")
    for builder in (True, False):
        done = look(builder=builder)
        assert (done["needed"], done["origin"], done["version"], done["directory"]) == (
            False,
            "bundled",
            "1.17.2-aws",
            str(path.parent),
        )
        assert done["summary"] == "aws-ofi-nccl 1.17.2-aws of the EFA installer"
        assert not done["changed"]


@pytest.mark.parametrize(
    ("version", "needs", "why"),
    [
        ("", "", "there is no libnccl-net.so in {home}"),
        ("1.9.2-aws", "", "{home}/lib/libnccl-net.so is 1.9.2-aws; needed is 1.17.2 (aws_ofi_nccl_minimum)"),
        ("?", "", "{home}/lib/libnccl-net.so is of an unknown version; needed is 1.17.2 (aws_ofi_nccl_minimum)"),
        ("1.21.1", "nobody_has_this", "{home}/lib/libnccl-net.so does not load: undefined symbol: nobody_has_this"),
    ],
)
def test_one_that_will_not_do(
    tmp_path: Path, look: Look, capfd: pytest.CaptureFixture[str], version: str, needs: str, why: str
) -> None:
    home = tmp_path / "amazon"
    if version:
        library(home, version, needs=needs)
    why = why.format(home=home)
    done = look(builder=True)
    assert done["needed"]
    assert why in done["why"]
    # A node that does not build takes what is published, or says that there is nothing.
    done = look()
    loads = bool(version) and not needs
    kept = f"aws-ofi-nccl {'of an unknown version' if version == '?' else version} of the EFA installer"
    assert (done["needed"], done["failed"], done["origin"]) == (True, False, "bundled" if loads else "")
    assert done["waits_for"] == done["summary"]
    assert done["summary"].startswith(f"{kept if loads else 'no plugin for NCCL'} for now: ")
    warning = capfd.readouterr().err
    assert why in warning
    assert "aws_ofi_nccl_build: always" in warning
    path = library(tmp_path / "fsx", "1.22.0")
    done = look()
    assert (done["needed"], done["origin"], done["version"]) == (False, "published", "1.22.0")
    assert done["waits_for"] == ""
    assert done["directory"] == str(path.parent)
    assert capfd.readouterr().err == ""


# What role aws_ofi_nccl says of an image without CUDA.
NO_CUDA = "aws_ofi_nccl_cuda_home: found no CUDA in /usr/local/cuda; needed: where it is, or common_builder: n1"


@pytest.mark.parametrize("builder", [True, False])
@pytest.mark.parametrize("build", ["auto", "never", "always"])
@pytest.mark.parametrize("lacks", ["", NO_CUDA])
def test_an_old_plugin_that_loads_is_kept_with_a_warning(
    tmp_path: Path, look: Look, capfd: pytest.CaptureFixture[str], build: str, lacks: str, builder: bool
) -> None:
    """EFA installer 1.30 brought aws-ofi-nccl 1.7.4, which NCCL 2.28 still loads."""
    path = library(tmp_path / "amazon", "1.7.4-aws")
    done = look(builder=builder, build=build, lacks=lacks)
    warning = capfd.readouterr().err
    if build == "always" and lacks and builder:
        said = f"aws_ofi_nccl_build is always, and none can be built. {lacks}, or aws_ofi_nccl_build: auto"
        assert done["msg"] == said
    elif build != "never" and not lacks:
        assert done["needed"]  # it is built, or waited for
        return
    else:
        assert (done["needed"], done["origin"], done["directory"]) == (False, "bundled", str(path.parent))
        assert done["summary"] == "aws-ofi-nccl 1.7.4-aws of the EFA installer"
        assert ("auto builds a newer one" in warning) is (build == "never" and not lacks)
        assert (NO_CUDA in warning) is (build != "never")
        assert "aws_ofi_nccl_minimum: 1.7.4" in warning
    # The remedies that both name.
    for remedy in remedies(build, lacks, builder, minimum="1.7.4"):
        done = look(**{"builder": builder, "build": build, "lacks": lacks, **remedy})
        assert not done["failed"], remedy
        assert done["needed"] or done["origin"] == "bundled", remedy


def remedies(build: str, lacks: str, builder: bool, minimum: str) -> list[dict[str, Any]]:
    """Return what a message names, as this module's options."""
    if build == "always" and builder:
        return [{"build": "auto"}, {"lacks": ""}]
    more = {"lacks": ""} if build != "never" else {"build": "auto"} if not lacks else None
    return [{"minimum": minimum}, *([more] if more else [])]


@pytest.mark.parametrize("builder", [True, False])
@pytest.mark.parametrize("build", ["auto", "never", "always"])
@pytest.mark.parametrize("lacks", ["", NO_CUDA])
@pytest.mark.parametrize("version", ["", "1.7.4-aws", "1.21.1"])
def test_without_a_plugin_that_loads_one_line_names_what_helps(
    tmp_path: Path, look: Look, build: str, lacks: str, builder: bool, version: str
) -> None:
    if version:
        library(tmp_path / "amazon", version, needs="cudaRuntimeGetVersion")
    done = look(builder=builder, build=build, lacks=lacks)
    if build != "never" and not lacks:
        assert done["needed"]  # it is built, or waited for
        return
    assert done["failed"]
    line = done["msg"]
    assert "\n" not in line
    # That works everywhere, as the module does not run then.
    assert line.endswith(", or aws_ofi_nccl_enabled: false, with which NCCL uses sockets")
    assert ("does not load: undefined symbol: cudaRuntimeGetVersion" in line) is bool(version) or build == "always"
    assert ("aws_ofi_nccl_build: auto" in line) is (build == "never" and not lacks)
    assert "aws_ofi_nccl_build: never" not in line
    assert (NO_CUDA in line) is (build != "never")
    remedy = {"lacks": ""} if build != "never" else {"build": "auto"} if not lacks else None
    if remedy:
        done = look(**{"builder": builder, "build": build, "lacks": lacks, **remedy})
        assert (done["failed"], done["needed"]) == (False, True)
    shutil.rmtree(tmp_path / "amazon", ignore_errors=True)
    library(tmp_path / "amazon", "1.21.1")  # newer EFA software
    done = look(builder=builder, build=build, lacks=lacks)
    assert done["failed"] is (build == "always" and builder)


@pytest.mark.parametrize("builder", [True, False])
def test_what_there_is_is_kept_where_none_can_be_built(
    tmp_path: Path, look: Look, capfd: pytest.CaptureFixture[str], builder: bool
) -> None:
    done = look(builder=builder, buildable=False)
    assert (done["needed"], done["failed"], done["summary"]) == (False, False, "no plugin for NCCL")
    path = library(tmp_path / "amazon", "1.9.2-aws")
    done = look(builder=builder, buildable=False)
    assert (done["needed"], done["origin"], done["directory"]) == (False, "bundled", str(path.parent))
    assert "is kept, because aws_ofi_nccl_sha256, without which" in capfd.readouterr().err
    library(tmp_path / "fsx", "1.22.0")
    assert look(buildable=False)["origin"] == "published"


def test_what_it_needs_of_cuda_is_found_where_cuda_is(
    tmp_path: Path, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older ones are linked with CUDA's runtime, which a job has, and the dynamic linker may not know."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    cuda = tmp_path / "cuda/lib64"
    cuda.mkdir(parents=True)
    line = [
        "cc",
        "-shared",
        "-fPIC",
        "-x",
        "c",
        "-",
        "-Wl,-soname,libcudart.so.12",
        "-o",
        str(cuda / "libcudart.so.12"),
    ]
    subprocess.run(line, input="int cudaRuntimeGetVersion(void) { return 0; }", text=True, check=True)
    library(tmp_path / "amazon", "1.17.2", needs="cudaRuntimeGetVersion", linked=cuda / "libcudart.so.12")
    assert "libcudart.so.12: cannot open shared object file" in look(builder=True)["why"]
    assert look(builder=True, libraries=[str(cuda)])["origin"] == "bundled"
    # What the environment of the run says comes first, and stays.
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda))
    assert look(builder=True, libraries=["/nowhere"])["origin"] == "bundled"


def test_one_of_its_own_in_any_case(tmp_path: Path, look: Look) -> None:
    library(tmp_path / "amazon", "1.21.1")
    assert look(builder=True, build="always")["needed"]
    library(tmp_path / "fsx", "1.22.0")
    assert look(build="always")["origin"] == "published"


def test_what_is_published_and_does_not_load_fails(tmp_path: Path, look: Look) -> None:
    path = library(tmp_path / "fsx", "1.22.0", needs="nobody_has_this")
    done = look()
    assert done["failed"]
    assert done["msg"].startswith(f"{path} does not load on this node: ")
    assert "nobody_has_this" in done["msg"]
    assert "\n" not in done["msg"]


def test_the_clusters_plugin_under_its_former_name(tmp_path: Path, look: Look) -> None:
    """A node that boots before the builder has run again: its link has no C library in its name yet."""
    path = library(tmp_path / "old", "1.21.0")
    done = look(former=str(tmp_path / "old"))
    assert (done["origin"], done["directory"], done["waits_for"]) == ("published", str(path.parent), "")
    assert look(builder=True, former=str(tmp_path / "old"))["needed"]
    # Another cluster's, which was compiled with another C library.
    shutil.rmtree(tmp_path / "old")
    library(tmp_path / "old", "1.21.0", needs="nobody_has_this")
    assert look(former=str(tmp_path / "old"))["waits_for"]
    path = library(tmp_path / "fsx", "1.22.0")
    assert look(former=str(tmp_path / "old"))["directory"] == str(path.parent)


def test_an_empty_file_is_no_plugin(tmp_path: Path, look: Look) -> None:
    (tmp_path / "amazon/lib").mkdir(parents=True)
    (tmp_path / "amazon/lib/libnccl-net.so").write_text("")
    assert "of an unknown version" in look(builder=True)["why"]
    assert look(minimum="new")["msg"] == "aws_ofi_nccl_minimum is 'new'; needed is a version such as 1.17.2"

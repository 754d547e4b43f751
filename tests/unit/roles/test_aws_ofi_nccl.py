# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What aws_ofi_nccl works out from the facts of a node, with Ansible's own templating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Variables = Callable[..., Callable[[str], Any]]
EFA = {"count": 32, "pci_count": 32}


def facts(kind: str = "head", efa: Any = None, software: str | None = "1.50.0", plugin: str | None = None) -> Any:
    devices = {"efa": efa} if efa else {}
    return {"node_type": kind, **devices, "components": {"cuda": "13.0.2", "efa": software, "aws_ofi_nccl": plugin}}


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(node, **more) returns a function that works out a variable."""

    def make(node: Any, **more: Any) -> Any:
        return work_out("common aws_ofi_nccl", node, **{"inventory_hostname": "one", **more})

    return make


@pytest.mark.parametrize(
    ("node", "builder", "gets"),
    [
        (facts("head"), "", True),
        (facts("head", software=None), "", False),
        (facts("head"), "other", False),
        (facts("compute", EFA), "", True),
        (facts("compute", {"count": 0, "pci_count": 32}, software=None), "", True),
        (facts("compute"), "", False),
        (facts("compute"), "ip-10-0-0-5", True),
        (facts("login"), "", False),
        ({**facts("compute", EFA), "image_build": True}, "", False),
    ],
)
def test_which_nodes_get_it(variables: Variables, node: Any, builder: str, gets: bool) -> None:
    assert variables(node, common_builder=builder)("aws_ofi_nccl_enabled") is gets


@pytest.mark.parametrize(
    ("node", "build", "asks"),
    [
        (facts("head", plugin="1.21.1"), "auto", False),
        (facts("head", plugin="unknown"), "auto", False),
        (facts("head", plugin="1.13.2"), "auto", False),  # what is there is kept, with a warning
        (facts("head"), "auto", False),
        (facts("head"), "never", False),
        (facts("head", plugin="1.21.1"), "always", True),
        (facts("compute", EFA), "always", False),
    ],
)
def test_who_needs_the_hash(complaints: Callable[..., list[str]], node: Any, build: str, asks: bool) -> None:
    said = complaints("aws_ofi_nccl", node, aws_ofi_nccl_build=build, aws_ofi_nccl_sha256={"noarch": ""})
    assert [line.partition(" ")[0] for line in said] == (["aws_ofi_nccl_sha256['noarch']"] if asks else [])


def test_how_it_is_built(variables: Variables) -> None:
    value = variables(facts(), aws_ofi_nccl_libfabric="/usr")
    assert value("__aws_ofi_nccl_url") == (
        "https://github.com/aws/aws-ofi-nccl/releases/download/v1.21.1/aws-ofi-nccl-1.21.1.tar.gz"
    )
    configure, make, install, copy = value("__aws_ofi_nccl_steps")
    assert configure == [
        "{source}/configure",
        "--prefix=/fsx/aws-ofi-nccl/current-x86_64-glibc2.39",
        "--with-libfabric=/usr",
        "--with-cuda=/usr/local/cuda",
        "--enable-platform-aws",
        "--disable-tests",
    ]
    assert make == ["make", "--jobs={jobs}"]
    # What is installed below another root is where the copy looks for it.
    assert install[-1] == "DESTDIR={scratch}/installed"
    assert copy[-2:] == ["{scratch}/installed/fsx/aws-ofi-nccl/current-x86_64-glibc2.39/.", "{stage}/"]
    assert value("__aws_ofi_nccl_environment")["LD_RUN_PATH"] == "/usr/lib:/usr/lib64"
    assert value("__aws_ofi_nccl_release") == "1.21.1-x86_64-glibc2.39"


@pytest.mark.parametrize(
    ("family", "missing", "packages"),
    [
        ("debian", ["g++"], ["g++", "libhwloc-dev"]),
        ("redhat", ["g++", "make"], ["gcc-c++", "make", "hwloc-devel"]),
        ("redhat", [], ["hwloc-devel"]),
    ],
)
def test_what_a_compiler_needs(variables: Variables, family: str, missing: list[str], packages: list[str]) -> None:
    node = {**facts(), "os": {"family": family}}
    value = variables(node, __aws_ofi_nccl_published={"missing": missing})
    assert value("__aws_ofi_nccl_packages") == packages


def test_a_wrong_directory_is_one_line(variables: Variables) -> None:
    assert variables(facts())("__aws_ofi_nccl_problems") == []
    (line,) = variables(facts(), aws_ofi_nccl_dir="a b")("__aws_ofi_nccl_problems")
    assert line.startswith("aws_ofi_nccl_dir: found a b; needed: an absolute path")


NO_CUDA = {"components": {"cuda": None, "efa": "1.50.0"}}


@pytest.mark.parametrize(
    ("node", "says", "remedies"),
    [
        (facts(), "", []),
        (
            {**facts(), "mounts": {"found": []}},
            "common_shared_dir: found /fsx, which is on the disk of this node itself (mounted file systems: none); "
            "needed: a directory that all nodes share, such as /home/shared",
            [{"common_shared_dir": "/home/shared"}],
        ),
        (
            {**facts(), **NO_CUDA},
            "aws_ofi_nccl_cuda_home: found no CUDA in /usr/local/cuda; needed: where it is, or "
            "common_builder: a node that has it",
            [{"aws_ofi_nccl_cuda_home": "/opt/cuda"}, {"common_builder": "gpu-st-p5-1"}],
        ),
        ({**facts("compute", EFA), **NO_CUDA}, "", []),  # it takes what is published, for which it needs no CUDA
    ],
)
def test_what_a_build_lacks_is_one_line_whose_remedies_work(
    variables: Variables, node: Any, says: str, remedies: list[dict[str, str]]
) -> None:
    assert variables(node)("__aws_ofi_nccl_lacks") == says
    for remedy in remedies:
        assert variables(node, **remedy)("__aws_ofi_nccl_lacks") == "", remedy

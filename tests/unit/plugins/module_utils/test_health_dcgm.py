# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dcgmi diag prints is read as DCGM means it; tests/unit/fixtures/dcgm says where its files are from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import health_dcgm

FIXTURES = Path(__file__).parents[2] / "fixtures/dcgm"


def fixture(name: str) -> str:
    return (FIXTURES / f"{name}.json").read_text()


def one_error(status: str = "Fail", **error: Any) -> health_dcgm.Diagnosis:
    """Return what is read of one error of GPU 2 in the test memory."""
    warning = {"warning": "a reason", "error_id": 1, "error_category": 0, "error_severity": 3, **error}
    result = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 2, "status": status, "warnings": [warning]}
    summary = {"status": status, "warnings": [warning]}
    tests = [{"name": "memory", "results": [result], "test_summary": summary}]
    categories = [{"category": "Hardware", "tests": tests}]
    return health_dcgm.read(json.dumps({"DCGM Diagnostic": {"test_categories": categories}}))


def test_all_passed() -> None:
    found = health_dcgm.read(fixture("r2-passed"))
    assert found == health_dcgm.Diagnosis(
        version="4.6.0", tests=(("software", "Pass"), ("memory", "Pass"), ("pcie", "Pass")), gpus=8
    )


def test_each_error_is_told_once_with_gpu_code_and_class() -> None:
    found = health_dcgm.read(fixture("r2-failed"))
    assert [(one.test, one.subject, one.code, one.severity, one.class_) for one in found.failures] == [
        ("software", "GPU 3", 80, "reset", "replace"),  # a failed row remapping is a reason to replace a GPU
        ("software", "GPU 3", 29, "config", "watch"),
        ("memory", "GPU 5", 57, "isolate", "replace"),
    ]
    assert found.tests == (("software", "Fail"), ("memory", "Fail"), ("pcie", "Skip"))
    software, memory = found.worst
    assert (software.code, software.source) == (80, health_dcgm._MEMORY)
    words = (
        "CUDA APIs have indicated that a double-bit ECC error has occured on GPU 5. Run a field diagnostic on the GPU."
    )
    assert memory.evidence == f"memory: {words} (error 57, isolate)"
    assert memory.source == health_dcgm.SOURCE


def test_dcgm_3() -> None:
    """It tells of GPUs alone, and the words of its first tests are under another name."""
    found = health_dcgm.read(fixture("dcgm3-failed"))
    assert (found.version, found.gpus) == ("3.3.6", 0)
    assert [(one.test, one.subject, one.message, one.class_) for one in found.failures] == [
        ("Page Retirement/Row Remap", "GPU 1", "GPU 1 had memory errors and row remappings are pending", "reset"),
        ("GPU Memory", "GPU 0", "Found 3 faulty memory elements on GPU 0", "replace"),
    ]
    assert dict(found.tests)["Diagnostic"] == "Skip"


@pytest.mark.parametrize(
    ("error", "class_"),
    [
        ({"error_severity": 1}, "watch"),
        ({"error_severity": 2}, "replace"),
        ({"error_severity": 4}, "watch"),
        ({"error_severity": 5}, "watch"),
        ({"error_severity": 6}, "reset"),
        ({"error_severity": 99}, "watch"),
        ({"error_id": 126, "error_severity": 2}, "reboot"),
    ],
)
def test_the_class_of_an_error(error: dict[str, Any], class_: str) -> None:
    (failure,) = one_error(**error).failures
    assert failure.class_ == class_


def test_an_error_of_a_test_that_passed_counts() -> None:
    """As it does for dcgmi's exit code; DCGM's memory test passes where it could not allocate what it wanted."""
    found = one_error("Pass", error_id=56, error_severity=4)
    assert [one.code for one in found.failures] == [56]
    assert found.tests == (("memory", "Fail"),)


def test_a_failure_without_a_reason() -> None:
    result = {"entity_group": "GPU", "entity_id": 1, "status": "Fail"}
    test = {"name": "pcie", "results": [result], "test_summary": {"status": "Fail"}}
    found = health_dcgm.read(json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": [test]}]}}))
    assert [(one.subject, one.evidence) for one in found.failures] == [
        ("GPU 1", "pcie: failed, and dcgmi told no reason")
    ]
    summary = {"name": "pcie", "results": [], "test_summary": {"status": "Fail"}}
    found = health_dcgm.read(json.dumps({"DCGM Diagnostic": {"test_categories": [{"tests": [summary]}]}}))
    assert [one.subject for one in found.failures] == [""]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "dcgmi printed no JSON: nothing"),
        ("Error: unable to establish\nError: no engine.\n", "dcgmi printed no JSON: Error: no engine."),
        ('{"DCGM Diagnostic": {"test_cat', 'dcgmi printed no JSON: {"DCGM Diagnostic": {"test_cat'),
        ("{}", "dcgmi told of no test"),
        ('{"DCGM Diagnostic": {"test_categories": [3, {"tests": "none"}]}}', "dcgmi told of no test"),
    ],
)
def test_no_result(text: str, problem: str) -> None:
    assert health_dcgm.read(text).problem == problem


def test_what_dcgm_says_instead_of_a_result() -> None:
    found = health_dcgm.read("Error: unable to establish a connection\n" + fixture("already-running"))
    assert found.problem.startswith("Error: Unable to complete diagnostic for entities *,cpu:*. Return: (-39) : A diag")
    assert (found.version, found.tests) == ("4.6.0", ())

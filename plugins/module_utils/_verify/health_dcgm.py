# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What `dcgmi diag --json` prints, and what each of its errors means for the node.

The names are those of DCGM 4 (NVIDIA/DCGM v4.5.3 and v4.6.0: dcgmi/Diag.cpp, nvvs/include/NvvsJsonStrings.h,
testing/python3/dcgm_diag_schema.json), and of DCGM 3 (v3.3.9: dcgmi/Diag.cpp), whose results are GPUs' alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document

# Errors are dcgmError_t, severities dcgmErrorSeverity_t of dcgmlib/dcgm_errors.h; which error has which severity is in
# dcgmlib/src/dcgm_errors.c.
SOURCE = "https://docs.nvidia.com/datacenter/dcgm/latest/reference/diagnostics/errors.html"
_SEVERITIES = {1: "monitor", 2: "isolate", 3: "unknown", 4: "triage", 5: "config", 6: "reset"}
_CLASSES = {"isolate": "replace", "reset": "reset"}
# Where DCGM's text or another page of NVIDIA's says more than the severity does.
_ROW_REMAP_FAILURE, _GPU_RECOVERY_REBOOT = 80, 126
_MEMORY = (
    "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html (a failed row remapping is a reason for RMA)"
)
_REBOOT = f"{SOURCE} (its text: Node requires reboot)"
_ERRORS = {_ROW_REMAP_FAILURE: ("replace", _MEMORY), _GPU_RECOVERY_REBOOT: ("reboot", _REBOOT)}
# The exit codes are negative numbers of dcgmReturn_t (dcgmlib/dcgm_structs.h) as a byte.
ALREADY_RUNNING, TIMEOUT = 256 - 39, 256 - 11
_GRAVITY = ("replace", "reboot", "reset", "watch")


class Failure(NamedTuple):
    """An error of one test."""

    test: str
    subject: str  # such as "GPU 3"; nothing where the error is of the node
    message: str
    code: int  # 0 where the test gave none
    severity: str

    @property
    def class_(self) -> str:
        """Return what is to be done with the node."""
        return _ERRORS.get(self.code, (_CLASSES.get(self.severity, "watch"), ""))[0]

    @property
    def source(self) -> str:
        """Return what tells the class."""
        return _ERRORS.get(self.code, ("", SOURCE))[1]

    @property
    def evidence(self) -> str:
        """Return the failure on one line, in DCGM's words."""
        more = f" (error {self.code}, {self.severity})" if self.code else ""
        return f"{self.test}: {self.message}{more}"


class Diagnosis(NamedTuple):
    """What a run of the diagnostic has found."""

    version: str = ""
    tests: tuple[tuple[str, str], ...] = ()  # the name and the status of each: Pass, Fail or Skip
    gpus: int = 0  # how many GPUs were looked at; 0 where the output does not tell
    failures: tuple[Failure, ...] = ()
    problem: str = ""  # why there is no result, on one line

    @property
    def worst(self) -> tuple[Failure, ...]:
        """Return the gravest failure of each test on each GPU."""
        found: dict[tuple[str, str], Failure] = {}
        for one in self.failures:
            other = found.setdefault((one.test, one.subject), one)
            if _GRAVITY.index(one.class_) < _GRAVITY.index(other.class_):
                found[(one.test, one.subject)] = one
        return tuple(found.values())


def read(text: str) -> Diagnosis:
    """Return what dcgmi has printed; before the JSON may stand lines for people."""
    try:
        told = document.parse(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        said = [line.strip() for line in text.splitlines() if line.strip()]
        return Diagnosis(problem=f"dcgmi printed no JSON: {said[-1] if said else 'nothing'}")
    body = _dict(told.get("DCGM Diagnostic") or told.get("DCGM GPU Diagnostic"))
    version = str(_dict(told.get("metadata")).get("version") or body.get("version") or told.get("version") or "")
    if body.get("runtime_error"):
        return Diagnosis(version, problem=" ".join(str(body["runtime_error"]).split()))
    groups = [one for one in _dicts(told.get("entity_groups")) if one.get("entity_group") == "GPU"]
    gpus = len(_dicts(groups[0].get("entities"))) if groups else 0
    tests, failures = [], list[Failure]()
    for category in _dicts(body.get("test_categories")):
        for test in _dicts(category.get("tests")):
            own = list(_failures(test))
            tests.append((str(test.get("name")), "Fail" if own else _status(test)))
            failures += own
    if not tests:
        return Diagnosis(version, problem="dcgmi told of no test")
    return Diagnosis(version, tuple(tests), gpus, tuple(failures))


def _failures(test: Mapping[str, Any]) -> Iterator[Failure]:
    """Yield the errors of a test. dcgmi fails for each error, whatever the status says, but why a test was skipped."""
    name, seen = str(test.get("name")), set[tuple[str, int]]()
    for result in [*_dicts(test.get("results")), {**_dict(test.get("test_summary")), "summary": True}]:
        status, subject = result.get("status"), _subject(result)
        warnings = _dicts(result.get("warnings")) if status != "Skip" else []
        for warning in warnings:
            message = " ".join(str(warning.get("warning") or warning.get("warnings") or "no reason").split())
            code = _whole(warning.get("error_id"))
            # The summary has the errors of all GPUs once more.
            if not (result.get("summary") and (message, code) in seen):
                severity = _SEVERITIES.get(_whole(warning.get("error_severity")), "unknown")
                yield Failure(name, subject, message, code, severity)
            seen.add((message, code))
        if status == "Fail" and not warnings and not (result.get("summary") and seen):
            seen.add(("", 0))
            yield Failure(name, subject, "failed, and dcgmi told no reason", 0, "unknown")


def _subject(result: Mapping[str, Any]) -> str:
    if "entity_id" in result:
        return f"{result.get('entity_group') or 'GPU'} {result['entity_id']}"
    gpu = str(result.get("gpu_id", ""))
    return f"GPU {gpu}" if gpu.isdigit() else ""


def _status(test: Mapping[str, Any]) -> str:
    """Return a test's status: that of its summary, which only DCGM 4 has, or what all of its results are."""
    told = _dict(test.get("test_summary")).get("status")
    statuses = {str(one.get("status")) for one in _dicts(test.get("results"))}
    return str(told or ("Skip" if statuses == {"Skip"} else "Pass"))


def _whole(value: Any) -> int:
    return int(document.fitted(value, int) or 0)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

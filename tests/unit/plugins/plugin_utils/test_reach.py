# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node is unreachable where its connection breaks, and a module that was cut off is not taken for one that failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from botocore.exceptions import EndpointConnectionError

from ansible_collections.pcluster.postboot.plugins.action import efa_installer, node_module
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import reach
from ansible_collections.pcluster.postboot.tests.unit.plugins import aws


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            aws.error("TargetNotConnected", "i-1 is not connected.", "StartSession"),
            "the node's SSM agent does not run, has just begun, or may not call SSM (ssm_online leaves such nodes out)"
            ": An error occurred (TargetNotConnected) when calling the StartSession operation: i-1 is not connected.",
        ),
        (
            aws.error("ThrottlingException", "Rate exceeded", "StartSession"),
            "AWS starts no more sessions at this rate; use fewer forks, or AWS_RETRY_MODE=adaptive: "
            "An error occurred (ThrottlingException) when calling the StartSession operation: Rate exceeded",
        ),
        (
            aws.error("404", "Not Found", "HeadBucket"),
            "`bucket` of the inventory names no bucket that your AWS credentials may use: "
            "An error occurred (404) when calling the HeadBucket operation: Not Found",
        ),
        (BrokenPipeError(32, "Broken pipe"), "the connection to the node broke: [Errno 32] Broken pipe"),
        (
            EndpointConnectionError(endpoint_url="https://ssm.us-east-9.amazonaws.com/"),
            "the connection to the node broke: "
            'Could not connect to the endpoint URL: "https://ssm.us-east-9.amazonaws.com/"',
        ),
    ],
)
@pytest.mark.parametrize("what", ["_low_level_execute_command", "_transfer_file"])
def test_errors_of_a_connection_are_an_unreachable_node(
    monkeypatch: pytest.MonkeyPatch, what: str, error: Exception, said: str
) -> None:
    def broken(*_args: Any, **_options: Any) -> Any:
        raise error

    monkeypatch.setattr(ActionBase, what, broken)
    action = node_module.ActionModule.__new__(node_module.ActionModule)
    with pytest.raises(AnsibleConnectionFailure) as caught:
        getattr(action, what)("command", "path")
    assert caught.value.message == said


@pytest.mark.parametrize("error", [AnsibleError("a template"), KeyError("a mistake of ours")])
def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def broken(*_args: Any, **_options: Any) -> Any:
        raise error

    monkeypatch.setattr(ActionBase, "_low_level_execute_command", broken)
    with pytest.raises(type(error)) as caught:
        efa_installer.ActionModule.__new__(efa_installer.ActionModule)._low_level_execute_command("command")
    assert caught.value is error


@pytest.mark.parametrize(
    ("transport", "error", "said"),
    [
        ("amazon.aws.aws_ssm", "Failed to create temporary directory. …", reach.HOMELESS),
        ("ssh", "Failed to create temporary directory. …", "Failed to create temporary directory. …"),
        ("amazon.aws.aws_ssm", "no way", "no way"),
    ],
)
def test_a_home_directory_of_another_user(
    monkeypatch: pytest.MonkeyPatch, transport: str, error: str, said: str
) -> None:
    def broken(*_args: Any, **_options: Any) -> Any:
        raise AnsibleConnectionFailure(error)

    monkeypatch.setattr(ActionBase, "_make_tmp_path", broken)
    action = node_module.ActionModule.__new__(node_module.ActionModule)
    action._connection = SimpleNamespace(transport=transport)
    with pytest.raises(AnsibleConnectionFailure) as caught:
        action._make_tmp_path()
    assert caught.value.message.startswith(said)


CUT_OFF = {
    "failed": True,
    "msg": "Module result deserialization failed: No start of json char found",
    "module_stdout": "\r\n",
    "module_stderr": "",
    "rc": 0,
}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (CUT_OFF, reach.UNANSWERED),
        ({**CUT_OFF, "rc": 1}, CUT_OFF["msg"]),
        ({**CUT_OFF, "module_stdout": "Traceback"}, CUT_OFF["msg"]),
        ({**CUT_OFF, "module_stderr": "Killed"}, CUT_OFF["msg"]),
        ({"failed": True, "msg": "found this; needed that", "rc": 0}, "found this; needed that"),
        ({"changed": False, "msg": "all is well"}, "all is well"),
    ],
)
def test_a_module_that_never_answered(monkeypatch: pytest.MonkeyPatch, result: dict[str, Any], said: str) -> None:
    monkeypatch.setattr(ActionBase, "_execute_module", lambda *_args, **_options: dict(result))
    assert node_module.ActionModule.__new__(node_module.ActionModule)._execute_module(module_name="x")["msg"] == said

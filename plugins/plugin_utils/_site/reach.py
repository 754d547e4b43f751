# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node that a connection does not reach is unreachable, whatever the connection raises.

Of amazon.aws.aws_ssm come botocore's own errors, for a node without an agent as for throttled calls, and errors of the
pipes to a session that has ended. To Ansible these are failed tasks: a run would go on to the node's next component,
and wait for the node again. A session that ends while a module runs is not even an error, but an empty answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of

LOST: tuple[type[Exception], ...] = (AnsibleError, OSError, *AwsErrors)
_THROTTLED = ("Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException", "SlowDown")
UNANSWERED = (
    "the session to the node ended before the module had answered, and what it did is not known; "
    "run again: the next run finishes what is left"
)

HOMELESS = (
    "ssm-user cannot write to its home directory, as where nodes share /home and have given ssm-user different numbers "
    "(docs/push.md says what to do)"
)


def explained(error: Exception) -> str:
    """Say what an error of a connection means. Ansible adds the error itself."""
    code, call = code_of(error), str(getattr(error, "operation_name", ""))
    if code == "TargetNotConnected":
        return (
            "the node's SSM agent does not run, has just begun, or may not call SSM (ssm_online leaves such nodes out)"
        )
    if code in _THROTTLED:
        return "AWS starts no more sessions at this rate; use fewer forks, or AWS_RETRY_MODE=adaptive"
    if call == "HeadBucket":
        return "`bucket` of the inventory names no bucket that your AWS credentials may use"
    return "the connection to the node broke"


@contextmanager
def reaching() -> Iterator[None]:
    """Have an error of the connection say that the node is unreachable."""
    try:
        yield
    except AnsibleError:
        raise
    except LOST as error:
        raise AnsibleConnectionFailure(explained(error)) from error


class Reaching(ActionBase):
    """An action that tells a connection that broke from a module that failed."""

    def _low_level_execute_command(self, *args: Any, **options: Any) -> Any:
        with reaching():
            return super()._low_level_execute_command(*args, **options)

    def _make_tmp_path(self, *args: Any, **options: Any) -> Any:
        try:
            return super()._make_tmp_path(*args, **options)
        except AnsibleConnectionFailure as error:
            # Ansible advises /tmp, where other users of a node could replace what root is about to run.
            if self._connection.transport.endswith("aws_ssm") and "create temporary directory" in str(error):
                raise AnsibleConnectionFailure(HOMELESS) from error
            raise

    def _transfer_file(self, *args: Any, **options: Any) -> Any:
        with reaching():
            return super()._transfer_file(*args, **options)

    def _execute_module(self, *args: Any, **options: Any) -> dict[str, Any]:
        result: dict[str, Any] = super()._execute_module(*args, **options)
        # A module that runs to its end prints a result, and one that crashes ends with another code than 0.
        empty = not str(result.get("module_stdout", "-")).strip() and not str(result.get("module_stderr")).strip()
        if result.get("failed") and empty and result.get("rc") == 0:
            return {**result, "msg": UNANSWERED}
        return result

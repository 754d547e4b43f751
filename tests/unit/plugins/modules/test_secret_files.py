# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""secret_files: where secrets come from, who can read them, and what is refused before anything is written."""

from __future__ import annotations

import grp
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.modules import secret_files
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import Run

GROUP = grp.getgrgid(os.getgid()).gr_name
HOOK = "https://hooks.slack.com/services/T0/B0/secret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "etc/secrets"


@pytest.fixture
def keep(run_module: Run, folder: Path) -> Run:
    """keep({name: origin}, named=…, check=…) runs the module."""

    def run(secrets: dict[str, Any], check: bool = False, **more: Any) -> dict[str, Any]:
        given = {"directory": str(folder), "group": GROUP, "secrets": secrets, "source": "app_secrets", **more}
        return run_module(secret_files, given, check=check)

    return run


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """aws(secret) puts an AWS CLI in PATH that knows the secret `main/alerts`, in us-east-2."""

    def put(secret: str) -> None:
        words = ["secretsmanager", "get-secret-value", "--secret-id", "main/alerts", "--output", "json"]
        words += ["--region", "us-east-2"]
        lab.program(
            tmp_path / "bin/aws",
            f"#!{sys.executable}\nimport sys\nif sys.argv[1:] != {words!r}: sys.exit('not found: ' + sys.argv[4])\n"
            f"print({json.dumps({'SecretString': secret})!r})\n",
        )
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")

    return put


@pytest.fixture
def local(tmp_path: Path) -> str:
    """The address of a file that nobody else can read."""
    path = tmp_path / "slack"
    path.write_text(HOOK + "\n")
    path.chmod(0o600)
    return f"file://{path}"


def like(path: Path) -> tuple[int, str]:
    return stat.S_IMODE(path.stat().st_mode), path.group()


def test_a_secret_is_for_its_service_alone_and_a_second_run_changes_nothing(
    keep: Run, folder: Path, local: str, aws: Callable[[str], None]
) -> None:
    aws(json.dumps({"smtp": "of the manager", "other": "x"}))
    secrets = {"slack": local, "smtp": "main/alerts"}
    foretold = keep(secrets, check=True, region="us-east-2")
    assert (foretold["changed"], foretold["written"]) == (True, ["slack", "smtp"])
    assert not folder.exists()
    with lab.umask(0):
        done = keep(secrets, region="us-east-2")
    assert (done["changed"], done["msg"]) == (True, "2 written")
    assert (folder / "slack").read_text() == HOOK + "\n"
    assert (folder / "smtp").read_text() == "of the manager\n"
    assert (like(folder), like(folder / "slack")) == ((0o750, GROUP), (0o640, GROUP))
    assert HOOK not in json.dumps(done)
    again = keep(secrets, region="us-east-2")
    assert (again["changed"], again["msg"]) == (False, "every secret is as it should be")


def test_what_became_open_is_closed_and_what_is_not_asked_for_goes(keep: Run, folder: Path, local: str) -> None:
    keep({"slack": local, "old": local})
    (folder / "slack").chmod(0o644)
    folder.chmod(0o755)
    done = keep({"slack": local})
    assert (done["written"], done["removed"]) == (["slack"], ["old"])
    assert (like(folder), like(folder / "slack")) == ((0o750, GROUP), (0o640, GROUP))
    assert sorted(path.name for path in folder.iterdir()) == ["slack"]
    folder.chmod(0o755)
    assert keep({"slack": local})["changed"]
    assert like(folder) == (0o750, GROUP)


def test_without_secrets_there_is_no_folder(keep: Run, folder: Path, local: str) -> None:
    assert not keep({})["changed"]
    keep({"slack": local})
    assert keep({}, check=True)["removed"] == ["slack"]
    assert (folder / "slack").exists()
    assert keep({})["removed"] == ["slack"]
    assert not folder.exists()
    assert not keep({})["changed"]


@pytest.mark.parametrize(
    ("secrets", "line"),
    [
        ({"../slack": "x"}, "app_secrets: found the name '../slack'; needed: letters, digits, and . _ -"),
        (
            {"slack": ""},
            "app_secrets: slack is ''; needed: the name or ARN of a secret in AWS Secrets Manager, or file",
        ),
        ({"slack": {"value": "x"}}, "app_secrets: slack is {'value': 'x'}; needed: the name or ARN of a secret in AWS"),
        (
            {"slack": "file://slack"},
            "app_secrets['slack']: found file://slack; needed: an absolute path, as in file:///",
        ),
        ({"slack": "file:///not/there"}, "app_secrets['slack'] /not/there cannot be read: No such file or directory"),
        (
            {"slack": "main/other"},
            "app_secrets['slack'] main/other cannot be read: not found: main/other; needed: secr",
        ),
        ({"slack": "main/alerts"}, "app_secrets['slack'] main/alerts is an object with ['smtp']; needed: text, or the"),
    ],
)
def test_what_is_no_secret_is_told_before_anything_is_written(
    keep: Run, folder: Path, local: str, aws: Callable[[str], None], secrets: dict[str, Any], line: str
) -> None:
    aws('{"smtp": "x"}')
    for check in (True, False):
        failed = keep({"good": local, **secrets}, check=check, region="us-east-2")
        assert failed["msg"].startswith(line)
    assert not folder.exists()


def test_a_file_that_everybody_can_read_is_no_secret(keep: Run, folder: Path, local: str) -> None:
    path = Path(local.removeprefix("file://"))
    path.chmod(0o644)
    assert keep({"slack": local})["msg"] == (
        f"app_secrets['slack']: {path} has mode 0644; needed: 0640 or less, as everybody on the node may read it"
    )
    assert not folder.exists()


def test_every_file_that_the_configuration_names_has_to_be_there(
    keep: Run, folder: Path, tmp_path: Path, local: str
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("x")
    mine.chmod(0o640)
    named = {"named_by": "app_receivers"}
    secrets = {"slack": local}
    assert not keep(secrets, named=[f"{folder}/slack", str(mine)], **named).get("failed")
    wrong = {
        f"{folder}/slak": f"found the file {folder}/slak; needed: a name of app_secrets (slack)",
        "slack": f"found the file slack; needed: an absolute path, such as {folder}/slack",
    }
    for path, line in wrong.items():
        assert keep(secrets, named=[path], **named)["msg"] == f"app_receivers: {line}"
    assert keep(secrets, named=["/not/there"], **named)["msg"].startswith("app_receivers /not/there cannot be read: No")
    mine.chmod(0o200)
    assert f"needed: 0640 root:{GROUP}" in keep(secrets, named=[str(mine)], **named)["msg"]


def test_without_the_services_group_only_a_check_goes_on(keep: Run, local: str) -> None:
    assert keep({"slack": local}, group="not-there", check=True)["written"] == ["slack"]
    assert keep({"slack": local}, group="not-there")["msg"].startswith("group 'not-there' is not on this node")

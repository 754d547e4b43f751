# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nvidia_ctk with an nvidia-ctk that edits daemon.json as the real one does, and a systemd that remembers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _nvidia_ctk
from ansible_collections.pcluster.postboot.plugins.module_utils._docker import engine
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import systemctl, unit
from ansible_collections.pcluster.postboot.plugins.modules import nvidia_ctk
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

# As upstream's: the runtime is replaced, the rest of `runtimes` is kept, and `features` is lost but for cdi.
CTK = """#!/usr/bin/env python3
import json, os, sys
arguments, top = sys.argv[1:], "{top}"
open(top + "/calls", "a").write(" ".join(arguments) + "\\n")
if arguments == ["--version"]:
    print("NVIDIA Container Toolkit CLI version 1.19.1\\ncommit: 1234")
elif arguments == ["cdi", "list"]:
    print(open(top + "/cdi").read() if os.path.exists(top + "/cdi") else "")
    sys.stderr.write(open(top + "/warnings").read() if os.path.exists(top + "/warnings") else "")
elif "configure" in arguments:
    path = [a for a in arguments if a.startswith("--config=")][0].partition("=")[2]
    config = json.load(open(path)) if os.path.exists(path) else {{}}
    if not isinstance(config.get("runtimes", {{}}), dict):
        sys.exit("panic: interface conversion: interface {{}} is []interface {{}}\\n\\ngoroutine 1 [running]:")
    config.setdefault("runtimes", {{}})["nvidia"] = {{"args": [], "path": "nvidia-container-runtime"}}
    if "--nvidia-set-as-default" in arguments:
        config["default-runtime"] = "nvidia"
    if "--cdi.enabled" in arguments:
        config["features"] = {{"cdi": True}}
    json.dump(config, open(path, "w"))
elif arguments[0] == "config":
    mode = arguments[-1].rpartition("=")[2]
    print('[nvidia-container-cli]\\nload-kmods = true\\n\\n[nvidia-container-runtime]\\nmode = "%s"' % mode)
"""
RUNTIME = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}


class Node:
    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top, self.run = top, run
        self.file = top / "docker/daemon.json"
        self.toml = top / "runtime/config.toml"
        (top / "bin").mkdir()
        self.program("nvidia-ctk", CTK.format(top=top))
        self.program("dockerd", f"#!/bin/sh\necho dockerd >> {top}/validated\n")
        self.program("systemctl", f"#!/bin/sh\n[ $1 = start ] && cp {top}/fresh {top}/cdi\n")
        (top / "fresh").write_text(
            "nvidia.com/gpu=0\nnvidia.com/gpu=1\nnvidia.com/gpu=10\nnvidia.com/gpu=GPU-8\nnvidia.com/gpu=all\n"
        )
        (top / "cdi").write_text((top / "fresh").read_text())
        self.actions: list[str] = []
        self.units = True
        self.asked: list[unit.Request] = []

    def program(self, name: str, text: str) -> None:
        lab.program(self.top / "bin" / name, text)

    def says(self, config: Any) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(json.dumps(config))

    def content(self) -> Any:
        return json.loads(self.file.read_text())

    def __call__(self, check: bool = False, **args: Any) -> dict[str, Any]:
        paths = {"daemon_config": str(self.file), "runtime_config": str(self.toml)}
        return self.run(nvidia_ctk, {**paths, "gpus": 2, **args}, check=check)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> Node:
    made = Node(tmp_path, run_module)

    def apply(request: unit.Request) -> unit.Outcome:
        made.asked.append(request)
        return unit.Outcome(list(made.actions), [], {}, [])

    monkeypatch.setattr(unit, "apply", apply)
    monkeypatch.setattr(systemctl, "status_of", lambda _name: {"LoadState": "loaded" if made.units else "not-found"})
    monkeypatch.setattr(systemctl, "journal_of", lambda _name: ["nvidia-smi has failed"])
    monkeypatch.setattr(engine, "PROGRAMS", (str(tmp_path / "bin/dockerd"),))
    monkeypatch.setattr(engine, "running", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return made


def test_check_apply_check_apply(node: Node) -> None:
    checked = node(check=True)
    assert checked["changed"]
    assert not node.file.exists()
    applied = node()
    assert applied["diff"] == checked["diff"]
    assert node.content() == {"runtimes": RUNTIME, "features": {"cdi": True}}
    assert node.file.stat().st_mode & 0o777 == 0o644
    assert applied["devices"] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=10"]
    assert applied["summary"] == "NVIDIA Container Toolkit 1.19.1, 3 CDI devices"
    for check in (True, False):
        again = node(check=check)
        assert (again["changed"], again["docker"], again["hold"]) == (False, True, False)
    assert not node.toml.exists()
    assert list(node.file.parent.iterdir()) == [node.file]


def test_what_others_put_into_daemon_json_stays(node: Node) -> None:
    there = {
        "live-restore": True,
        "features": {"containerd-snapshotter": False},
        "runtimes": {"crun": {"path": "/crun"}},
    }
    node.says(there)
    node()
    assert node.content() == {
        "live-restore": True,
        "features": {"containerd-snapshotter": False, "cdi": True},
        "runtimes": {"crun": {"path": "/crun"}, **RUNTIME},
    }


def test_what_the_user_wants_of_docker_is_not_fought_over(node: Node) -> None:
    wants = {"default-runtime": "runc", "features": {"cdi": False}}
    node.says(wants)
    assert node(set_as_default=True, daemon_settings=wants)["changed"]
    assert node.content() == {"default-runtime": "runc", "features": {"cdi": False}, "runtimes": RUNTIME}
    assert not node(set_as_default=True, daemon_settings=wants)["changed"]


def test_options_reach_nvidia_ctk(node: Node) -> None:
    node(set_as_default=True, cdi=False)
    assert node.content() == {"runtimes": RUNTIME, "default-runtime": "nvidia"}


def test_dockerd_has_a_say(node: Node) -> None:
    node.program("dockerd", "#!/bin/sh\necho 'unable to configure: no runtimes, please'; exit 1\n")
    node.says({"debug": True})
    failed = node()
    assert failed["failed"]
    assert "no runtimes, please" in failed["msg"]
    assert node.content() == {"debug": True}


def test_docker_is_left_alone_where_it_is_not_wanted_or_not_there(node: Node) -> None:
    assert not node(docker=False)["docker"]
    (node.top / "bin/dockerd").unlink()
    assert not node()["docker"]
    assert not node.file.exists()


def test_the_mode_of_the_runtime(node: Node) -> None:
    node(mode="cdi")
    assert _nvidia_ctk.mode_of(node.toml.read_text()) == "cdi"
    assert not node(check=True, mode="cdi")["changed"]
    assert node(check=True)["changed"], "back to auto"
    assert (
        _nvidia_ctk.mode_of('[other]\nmode = "x"\n[nvidia-container-runtime]\n#mode = "y"\n[z]\nmode = "q"') == "auto"
    )
    nested = (
        '[nvidia-container-runtime]\n  log-level = "info"\n  mode = "legacy"\n\n  [nvidia-container-runtime.modes]\n'
    )
    assert _nvidia_ctk.mode_of(nested) == "legacy"


def test_cdi_files_are_kept_fresh(node: Node) -> None:
    node.actions = ["enabled"]
    assert node(docker=False)["changed"]
    assert [(asked.name, asked.state, asked.enabled) for asked in node.asked] == [
        ("nvidia-cdi-refresh.service", "started", True),
        ("nvidia-cdi-refresh.path", "started", True),
    ]
    assert [bool(asked.dropins) for asked in node.asked] == [True, False]
    node.asked.clear()
    node(gpus=0, docker=False)
    assert node.asked[0].state == "present"


def test_docker_runs_with_what_it_reads_when_it_starts(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node()
    (docker,) = (asked for asked in node.asked if asked.name == "docker.service")
    assert (docker.state, docker.restart_on) == ("started", (str(node.file), *_nvidia_ctk.HOOKS))
    node.asked.clear()
    monkeypatch.setattr(engine, "running", lambda: engine.Running(started=1.0, containers=2, live_restore=False))
    assert node()["hold"]
    assert [asked.state for asked in node.asked if asked.name == "docker.service"] == ["present"]
    node.asked.clear()
    node(docker=False)
    assert not [asked for asked in node.asked if asked.name == "docker.service"]


def test_cdi_files_that_were_removed_come_back(node: Node) -> None:
    node()
    (node.top / "cdi").unlink()
    assert node(check=True)["changed"]
    assert not (node.top / "cdi").exists()
    found = node()
    assert (found["changed"], len(found["devices"])) == (True, 3)


def test_a_gpu_node_without_gpus_for_containers_fails_in_one_line(node: Node) -> None:
    (node.top / "cdi").unlink()
    (node.top / "fresh").write_text("")
    failed = node()
    assert failed["msg"] == (
        "'nvidia-ctk cdi list' offers no GPU, but this node has 2; see 'nvidia-smi' and "
        "'systemctl status nvidia-cdi-refresh.service'"
    )
    assert failed["journal"] == ["nvidia-smi has failed"]
    assert not node.file.exists()
    assert not node(gpus=0)["failed"]


def warns(*messages: str) -> str:
    """What nvidia-ctk 1.19.1 prints to its standard error beside the number of devices, which it always prints."""
    lines = [f'level=warning msg="{message}"' for message in messages] + ['level=info msg="Found 0 CDI devices"']
    return "".join(f'time="2026-11-27T20:19:09Z" {line}\n' for line in lines)


def conflict(*paths: str, devices: tuple[str, ...] = ("0", "1", "all")) -> list[str]:
    """As v1.19.1 printed it of such files, but for the paths; the order of devices and files is another each time."""
    specs = ", ".join(f'\\"{path}\\"' for path in paths)
    words = " ".join(f'conflicting device \\"nvidia.com/gpu={name}\\" (specs {specs})' for name in reversed(devices))
    return ["The following registry errors were reported:", *(f"{path}: [{words}]" for path in paths)]


UNREAD = (
    '/etc/cdi/bad.yaml: [failed to load CDI Spec failed to parse CDI Spec \\"/etc/cdi/bad.yaml\\": failed to unmarshal '
    "CDI Spec: error converting YAML to JSON: yaml: line 3: did not find expected node content]"
)


def test_two_cdi_files_with_the_same_gpus_are_named(node: Node) -> None:
    (node.top / "cdi").unlink()
    (node.top / "fresh").write_text("")
    (node.top / "warnings").write_text(warns(*conflict("/etc/cdi/nvidia.yaml", "/etc/cdi/manual.yaml"), UNREAD))
    assert node()["msg"] == (
        "'nvidia-ctk cdi list' offers no GPU, but this node has 2; nvidia-ctk warns: conflicting device "
        '"nvidia.com/gpu=0" and 2 more (specs "/etc/cdi/manual.yaml", "/etc/cdi/nvidia.yaml"); keep one of the files'
    )
    # A file that cannot be read, alone.
    (node.top / "warnings").write_text(warns("The following registry errors were reported:", UNREAD))
    assert node()["msg"].endswith("; nvidia-ctk warns: " + UNREAD.replace("\\", ""))


def test_a_single_gpu_that_two_cdi_files_hide_is_warned_of(node: Node, warnings: list[str]) -> None:
    node()
    assert warnings == []
    (node.top / "cdi").write_text("nvidia.com/gpu=1\nnvidia.com/gpu=all\n")
    (node.top / "warnings").write_text(warns(*conflict("/etc/cdi/a.yaml", "/etc/cdi/b.yaml", devices=("0",)), UNREAD))
    done = node()
    assert (done["failed"], done["devices"]) == (False, ["nvidia.com/gpu=1"])
    assert warnings == [
        'nvidia-ctk warns: conflicting device "nvidia.com/gpu=0" (specs "/etc/cdi/a.yaml", "/etc/cdi/b.yaml"); keep '
        "one of the files",
        "nvidia-ctk warns: " + UNREAD.replace("\\", ""),
    ]


def test_an_old_toolkit_is_used_with_a_warning(node: Node) -> None:
    node.units = False
    (node.top / "cdi").unlink()
    found = node()
    assert (found["failed"], found["devices"]) == (False, [])
    assert node.content()["runtimes"] == RUNTIME


def test_a_toolkit_with_a_known_flaw_is_told(node: Node) -> None:
    """Whether an AMI brought it, or a user's pin, or its replacement could not be had."""
    args = {"minimum_version": "1.19.1", "flaw": "CVE-2026-24260"}
    assert node(**args)["summary"] == "NVIDIA Container Toolkit 1.19.1, 3 CDI devices"
    node.program("nvidia-ctk", CTK.format(top=node.top).replace("1.19.1", "1.18.2"))
    assert node(**args)["summary"] == (
        "NVIDIA Container Toolkit 1.18.2, 3 CDI devices; it has CVE-2026-24260, which 1.19.1 mends: see "
        "nvidia_container_toolkit_version"
    )


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("nvidia-ctk", "'nvidia-ctk cdi list' did not end within 2 s"),
        (
            "systemctl",
            "'systemctl start nvidia-cdi-refresh.service' did not end within 2 s; see 'nvidia-smi' and "
            "'systemctl status nvidia-cdi-refresh.service'",
        ),
    ],
)
def test_a_program_that_hangs_is_one_line(node: Node, monkeypatch: pytest.MonkeyPatch, program: str, line: str) -> None:
    monkeypatch.setattr(_nvidia_ctk, "SECONDS", 2)
    (node.top / "cdi").unlink()
    node.program(program, "#!/bin/sh\nexec sleep 60\n")
    failed = node()
    assert failed["failed"]
    assert failed["msg"] == line


def test_a_running_docker_that_may_not_be_restarted(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    running = engine.Running(started=1.0, containers=2, live_restore=False)
    monkeypatch.setattr(engine, "running", lambda: running)
    found = node()
    assert found["hold"]
    assert "2 containers run in it" in found["why_hold"]
    assert not node(restart="always")["hold"]


def test_what_it_cannot_edit_is_one_line(node: Node) -> None:
    node.says({"runtimes": []})
    failed = node()
    assert "failed: panic: interface conversion" in failed["msg"]
    assert "\n" not in failed["msg"]
    assert node.content() == {"runtimes": []}
    node.file.write_text('{"debug": ')
    assert f"{node.file} is no valid JSON" in node()["msg"]


def test_check_mode_on_a_fresh_node(node: Node) -> None:
    (node.top / "bin/nvidia-ctk").unlink()
    assert node(check=True)["changed"]
    assert "nvidia-ctk is not there; install nvidia-container-toolkit first" in node()["msg"]
